"""Read any supported file, folder or stream as a stream of documents."""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import cast

from dsearch.corpus.folders import base_of, files_below, is_pattern, matches
from dsearch.corpus.formats.arrow import read_arrow, read_parquet
from dsearch.corpus.formats.datasets import dataset_files, is_dataset
from dsearch.corpus.formats.jsonl import documents_of_lines, read_jsonl
from dsearch.corpus.formats.lines import ByteStream, decoded_lines, opened, unzipped
from dsearch.corpus.formats.pages import read_html, read_pdf
from dsearch.corpus.formats.tables import read_csv
from dsearch.corpus.formats.texts import read_markdown, read_text
from dsearch.corpus.problems import Problems
from dsearch.corpus.records import BadRecord, Place, RecordFields, content_id
from dsearch.errors import InvalidSource, MissingExtra
from dsearch.types import Document

STANDARD_INPUT = "-"
BEIR_CORPUS = "corpus.jsonl"

RecordReader = Callable[[ByteStream, str, Problems, RecordFields], Iterator[Place]]
TextReader = Callable[[ByteStream, str], Document]
Refuse = Callable[[Document], str | None]

RECORDS: dict[str, RecordReader] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}
TEXTS: dict[str, TextReader] = {
    ".txt": read_text,
    ".text": read_text,
    ".rst": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
}
SUPPORTED = (
    f"files {', '.join([*RECORDS, *TEXTS])}, each also as .gz; folders of them; patterns ('notes/**/*.md'); "
    f"BEIR folders ({BEIR_CORPUS}); Hugging Face datasets saved to disk; "
    "- for standard input (JSON lines, or one text a line)"
)


def read(
    source: str | PathLike[str],
    *,
    problems: Problems | None = None,
    fields: RecordFields | None = None,
    stdin: ByteStream | None = None,
    refuse: Refuse | None = None,
) -> Iterator[Document]:
    """Yield the documents of one source; only their ids stay in memory.

    - **JSON lines** and **tables** (CSV, TSV, Parquet, Arrow) have a document per line or row; see
      `to_document` for the fields and for the id of one that has none.
    - **Text, Markdown, HTML and PDF files** are one document; its id is the path, relative to the folder
      given.
    - **Patterns** (`notes/**/*.md`) are the files that match; ids are relative to the folder in front of the
      first wildcard.
    - **Datasets** that Hugging Face's library saved to disk are read split after split; labels stay numbers.
    - **Folders** are read recursively, sorted by path; hidden files and folders, links to folders, and files
      of other kinds are passed over (`Problems.passed_over` counts them). A folder with `corpus.jsonl` is a
      BEIR folder: that file alone is its corpus.
    - **Standard input**, `-`, is JSON lines when it begins with `{`, otherwise one document per line that is
      not blank.

    Args:
        source: a path, or `-`.
        problems: collects the skipped records; without it the first problem raises. Of documents with the
            same id the first is kept, the others are problems.
        fields: names of the fields of id, title and text in JSON lines and tables.
        stdin: stream for `-`; None for the process's standard input.
        refuse: returns the reason to reject a document, which becomes a problem of its record.

    Raises:
        InvalidSource: at once, when there is no such file or its kind is not supported; while reading, at
            the first problem when `problems` is strict or not given.
        MissingExtra: while reading, when a source that was named itself needs packages that are not
            installed; in a folder such a file is a problem.
    """
    return read_sources([source], problems=problems, fields=fields, stdin=stdin, refuse=refuse)


def read_sources(
    sources: Iterable[str | PathLike[str]],
    *,
    problems: Problems | None = None,
    fields: RecordFields | None = None,
    stdin: ByteStream | None = None,
    refuse: Refuse | None = None,
) -> Iterator[Document]:
    """Yield the documents of several sources; ids are unique across all. Otherwise as `read`."""
    problems = Problems(strict=True) if problems is None else problems
    fields = RecordFields() if fields is None else fields
    parts = [_reader(fspath(source), problems, fields, stdin) for source in sources]
    return _accepted(itertools.chain.from_iterable(part() for part in parts), problems, refuse)


Located = tuple[str, int | None, Document]


def _reader(
    source: str, problems: Problems, fields: RecordFields, stdin: ByteStream | None
) -> Callable[[], Iterator[Located]]:
    """Reader of a source, after checking that it is readable."""
    if source == STANDARD_INPUT:
        return partial(
            _read_stream, cast(ByteStream, sys.stdin.buffer) if stdin is None else stdin, problems, fields
        )
    if is_pattern(source):
        files = matches(source)
        if not any(_kind(file) for file in files):
            raise InvalidSource(
                f"{source}: {len(files)} files match and none can be read; supported are {SUPPORTED}"
            )
        return partial(_read_files, files, base_of(source), problems, fields)
    path = Path(source)
    if path.is_dir():
        if (path / BEIR_CORPUS).is_file():
            return partial(_read_file, path / BEIR_CORPUS, BEIR_CORPUS, problems, fields)
        if is_dataset(path):
            return partial(_read_dataset, dataset_files(path), problems, fields)
        if not any(_kind(file) for file in files_below(path)):
            raise InvalidSource(f"{path}: no file in this folder can be read; supported are {SUPPORTED}")
        return partial(_read_files, files_below(path), path, problems, fields)
    if not path.exists():
        raise InvalidSource(f"{path}: no such file or folder{_nearest(path)}; supported are {SUPPORTED}")
    if not path.is_file():
        raise InvalidSource(f"{path}: neither a file nor a folder; pipe it into standard input, `-`")
    if not _kind(path):
        raise InvalidSource(
            f"{path}: files {path.suffix or 'without suffix'} are not read; supported are {SUPPORTED}"
        )
    return partial(_read_file, path, path.name, problems, fields)


def _read_file(path: Path, identity: str, problems: Problems, fields: RecordFields) -> Iterator[Located]:
    name, kind = str(path), _kind(path)
    try:
        with opened(path) as stream:
            if kind in RECORDS:
                for line, document in RECORDS[kind](stream, name, problems, fields):
                    yield name, line, document
            else:
                yield name, None, TEXTS[kind](stream, identity)
    except BadRecord as error:
        problems.add(name, error.line, str(error))
    except (OSError, EOFError, zlib.error) as error:
        problems.add(name, None, f"cannot be read: {error}")


def _read_files(
    files: Iterable[Path], folder: Path, problems: Problems, fields: RecordFields
) -> Iterator[Located]:
    for path in files:
        if not _kind(path):
            problems.passed_over[path.suffix.lower()] += 1
            continue
        try:
            yield from _read_file(path, path.relative_to(folder).as_posix(), problems, fields)
        except MissingExtra as error:
            problems.add(str(path), None, str(error))


def _read_dataset(files: Iterable[Path], problems: Problems, fields: RecordFields) -> Iterator[Located]:
    for path in files:
        yield from _read_file(path, path.name, problems, fields)


def _read_stream(stream: ByteStream, problems: Problems, fields: RecordFields) -> Iterator[Located]:
    name = "standard input"
    lines = ((n, line) for n, line in decoded_lines(unzipped(stream), name, problems) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    lines = itertools.chain([first], lines)
    if first[1].lstrip().startswith("{"):
        for number, document in documents_of_lines(lines, name, problems, fields):
            yield name, number, document
    else:
        for number, line in lines:
            yield name, number, Document(id=content_id("", line.strip()), text=line.strip())


def _accepted(located: Iterable[Located], problems: Problems, refuse: Refuse | None) -> Iterator[Document]:
    """Yield documents with unique ids that are not rejected."""
    ids: set[str] = set()
    for name, line, document in located:
        if refuse is not None and (reason := refuse(document)):
            problems.add(name, line, f"the document {reason}")
        elif document.id in ids:
            problems.add(name, line, f"duplicate id {document.id!r}; the first document of that id is kept")
        else:
            ids.add(document.id)
            yield document


def _kind(path: Path) -> str:
    """Return the suffix that selects the reader; empty without one."""
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    return suffix if suffix in RECORDS or suffix in TEXTS else ""


def _nearest(path: Path) -> str:
    """Existing names in the folder, for a message."""
    parent = path.parent
    if not parent.is_dir():
        return f" (nor is there a folder {parent})"
    names = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    listing = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f" ({parent} holds {listing or 'nothing'})"
