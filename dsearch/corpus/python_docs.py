"""Demo corpus that exists on every machine: the documentation of Python itself, with derived judgements.

The docstrings of the standard library's modules, classes and functions are read from their sources with
`ast`; nothing is imported. The authors of Python have answered the search task themselves: the summary line
of a docstring is the query, and its own entry, whose text without that line describes the same thing, is
relevant.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from dsearch.corpus.formats.beir import BeirFolder, write_beir
from dsearch.errors import InvalidSource
from dsearch.types import Document, Query

LEFT_OUT = frozenset(
    # tests, installed packages, and sources without documentation for users
    {"test", "tests", "site-packages", "dist-packages", "__pycache__", "_bundled", "lib-dynload"}
    | {"idlelib", "lib2to3", "turtledemo"}
)
WORD = re.compile(r"[A-Za-z]{2,}")
MIN_QUERY_WORDS = 3
MIN_BODY_WORDS = 3


class PythonCorpus(NamedTuple):
    """Documents, queries, and query id → {document id: 1.0}."""

    documents: list[Document]
    queries: list[Query]
    qrels: dict[str, dict[str, float]]


def python_corpus(public_only: bool = True, library: str | PathLike[str] | None = None) -> PythonCorpus:
    """The documentation of the running Python, sorted by name.

    A document is a module, class, method or function with a docstring. Its id and title are its qualified
    name (`collections.Counter.most_common`), its text is signature and docstring, as in `help`, its metadata
    are `kind`, `module`, `signature`, `summary` and `line`. A summary that is a query is removed from the
    text.

    A first line is a query if it is a summary by PEP 257: complete (ending in a full stop, or followed by a
    blank line), of several words, no signature, and followed by text that does not repeat it. Entries with
    equal summaries (except for case, blanks and the final stop) are relevant to the same query. A summary
    that is the whole text of another entry is no query, since that entry would match it verbatim.

    Args:
        public_only: omit names that begin with an underscore, and everything within them; names like
            `__enter__` are public.
        library: the folder of the sources; the running Python's standard library when not given.

    Raises:
        InvalidSource: there are no sources; some Pythons have compiled files only.
    """
    root = Path(sysconfig.get_path("stdlib") if library is None else library)
    entries = [entry for entry in _entries(root) if not (public_only and _is_private(entry.name))]
    if not entries:
        raise InvalidSource(
            f"{root}: no Python sources with docstrings; use a Python that has its library as .py files"
        )
    return _with_judgements(entries)


def python_documents(public_only: bool = True, library: str | PathLike[str] | None = None) -> list[Document]:
    """The documents of `python_corpus`."""
    return python_corpus(public_only, library).documents


def python_judgements(
    public_only: bool = True, library: str | PathLike[str] | None = None
) -> tuple[list[Query], dict[str, dict[str, float]]]:
    """The queries and the judgements of `python_corpus`."""
    corpus = python_corpus(public_only, library)
    return corpus.queries, corpus.qrels


def write_python_docs(
    folder: str | PathLike[str], public_only: bool = True, library: str | PathLike[str] | None = None
) -> BeirFolder:
    """Write `python_corpus` as a BEIR folder with the split `test`."""
    corpus = python_corpus(public_only, library)
    return write_beir(folder, corpus.documents, corpus.queries, {"test": corpus.qrels})


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    kind: str
    module: str
    signature: str
    docstring: str
    summary: str
    body: str
    apart: bool  # a blank line stands between summary and body
    line: int


def _with_judgements(entries: list[_Entry]) -> PythonCorpus:
    one_liners = {_normal(entry.summary) for entry in entries if not entry.body}
    by_query: dict[str, list[_Entry]] = defaultdict(list)
    for entry in entries:
        key = _normal(entry.summary)
        if _is_query(entry) and key not in one_liners:
            by_query[key].append(entry)
    queries: list[Query] = []
    qrels: dict[str, dict[str, float]] = {}
    shortened: set[str] = set()
    for number, answers in enumerate(by_query.values(), start=1):
        query = Query(f"q{number}", answers[0].summary)
        queries.append(query)
        qrels[query.id] = {entry.name: 1.0 for entry in answers}
        shortened.update(entry.name for entry in answers)
    documents = [_document(entry, entry.name in shortened) for entry in entries]
    return PythonCorpus(documents, queries, qrels)


def _document(entry: _Entry, without_summary: bool) -> Document:
    metadata = {
        "kind": entry.kind,
        "module": entry.module,
        "signature": entry.signature,
        "summary": entry.summary,
        "line": entry.line,
    }
    text = entry.body if without_summary else entry.docstring
    return Document(entry.name, f"{entry.signature}\n\n{text}".strip(), title=entry.name, metadata=metadata)


def _is_query(entry: _Entry) -> bool:
    complete = entry.summary.endswith((".", "!", "?")) or (entry.apart and entry.summary[-1] not in ":,;")
    signature = re.match(r"[\w.]+\s*\(.*\)|.*->|>>>", entry.summary)
    return (
        complete
        and signature is None
        and len(WORD.findall(entry.summary)) >= MIN_QUERY_WORDS
        and len(WORD.findall(entry.body)) >= MIN_BODY_WORDS
        and _normal(entry.summary) not in _normal(entry.body)
    )


def _normal(summary: str) -> str:
    return " ".join(summary.casefold().split()).rstrip(".")


def _entries(root: Path) -> list[_Entry]:
    """Return every documented name once, sorted; the first definition with a docstring counts."""
    entries: dict[str, _Entry] = {}
    for path in _sources(root):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # templates and samples that this Python cannot parse
        for entry in _documented(tree, module, module):
            entries.setdefault(entry.name, entry)
    return [entries[name] for name in sorted(entries)]


def _sources(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_OUT or path.name.startswith((".", "config-")):
            continue
        if path.is_dir():
            if path.name.isidentifier():
                yield from _sources(path)
        elif path.suffix == ".py" and path.stem.isidentifier():
            yield path


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _documented(node: ast.Module | _Definition, name: str, module: str) -> Iterator[_Entry]:
    docstring = (ast.get_docstring(node) or "").strip()
    if docstring and _encodable(docstring):
        summary, _, body = docstring.partition("\n")
        yield _Entry(
            name=name,
            kind=_kind(node, name, module),
            module=module,
            signature=_signature(node),
            docstring=docstring,
            summary=summary.strip(),
            body=body.strip(),
            apart=not body.partition("\n")[0].strip(),
            line=getattr(node, "lineno", 1),
        )
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in _definitions(node.body):
            yield from _documented(child, f"{name}.{child.name}", module)


def _definitions(body: list[ast.stmt]) -> Iterator[_Definition]:
    """Yield the definitions of a body, also under `if`, `try` and `with` for platforms."""
    for statement in body:
        if isinstance(statement, _Definition):
            yield statement
        elif isinstance(statement, ast.If | ast.With | ast.Try):
            yield from _definitions(statement.body)
            for handler in getattr(statement, "handlers", []):
                yield from _definitions(handler.body)
            yield from _definitions(getattr(statement, "orelse", []))


def _kind(node: ast.AST, name: str, module: str) -> str:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    return "method" if "." in name.removeprefix(f"{module}.") else "function"


def _signature(node: ast.Module | _Definition) -> str:
    """Return the signature without self and cls, such as `most_common(n=None)`; bases for a class."""
    if isinstance(node, ast.Module):
        return ""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    arguments = ast.unparse(node.args)
    return f"{node.name}({re.sub(r'^(self|cls)(, (/, )?|$)', '', arguments)})"


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not re.fullmatch(r"__\w+__", part) for part in name.split("."))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
