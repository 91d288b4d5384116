"""Read any supported file, folder or stream as a stream of documents."""

from __future__ import annotations

import io
import itertools
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import cast

from dsearch.corpus.files import (
    CODE_SUFFIXES,
    SourceFile,
    base_of,
    files_below,
    is_pattern,
    matches,
    parts_of,
)
from dsearch.corpus.formats.jsonl import documents_of_array, documents_of_lines, read_jsonl
from dsearch.corpus.formats.lines import ByteStream, Problems, decoded_lines, opened, unzipped
from dsearch.corpus.formats.mail import read_eml, read_mbox
from dsearch.corpus.formats.pages import read_docx, read_epub, read_html, read_pdf, read_pptx
from dsearch.corpus.formats.tables import dataset_files, is_dataset, read_arrow, read_csv, read_parquet
from dsearch.corpus.formats.texts import (
    read_markdown,
    read_notebook,
    read_org,
    read_rst,
    read_source,
    read_text,
)
from dsearch.corpus.mirror import Mirror
from dsearch.corpus.records import (
    BadRecord,
    ContentNumbers,
    Place,
    RecordFields,
    content_id,
    content_id_in,
    has_content_id,
    numbered,
)
from dsearch.errors import InvalidSource, MissingExtra, amount
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
    ".mbox": read_mbox,
}
JSON = ".json"
PLAIN_NAMES = ("readme", "license", "licence", "copying", "notice", "authors", "changelog", "changes", "news")
TEXTS: dict[str, TextReader] = {
    ".txt": read_text,
    ".text": read_text,
    ".rst": read_rst,
    ".org": read_org,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
    ".ipynb": read_notebook,
    ".eml": read_eml,
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".epub": read_epub,
    **dict.fromkeys(CODE_SUFFIXES, read_source),
}
_SHORT = [*RECORDS, *(suffix for suffix in TEXTS if suffix not in CODE_SUFFIXES), JSON]
READABLE = f"files {', '.join(_SHORT)}, source code and configuration (.py, .ts, .yaml, …), each also as .gz"
SUPPORTED = (
    f"{READABLE}; folders of them; patterns ('notes/**/*.md'); "
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
    mirror: Mirror | None = None,
    ignored: bool = False,
) -> Iterator[Document]:
    """Yield the documents of one source; only their ids stay in memory.

    - **JSON lines**, **JSON arrays** of objects with a text, **tables** (CSV, TSV, Parquet, Arrow) and
      **mbox** files have a document per line, object, row or message; see `to_document` for the fields and
      for the id of one that has none, `RecordFields` for types.
    - **Text, Markdown, reStructuredText, Org, HTML, PDF, Word, PowerPoint, EPUB, e-mail, notebook, source
      code and other JSON files** are one document; its id is the path, relative to the folder given. Its
      metadata is described in `files`. Text of more than 1 MiB is split (`parts_of`).
    - **Patterns** (`notes/**/*.md`) are the files that match; ids are relative to the folder in front of the
      first wildcard.
    - **Datasets** that Hugging Face's library saved to disk are read split after split; labels stay numbers.
    - **Folders** are read recursively, sorted by path; hidden files and folders, what `.gitignore` files
      name, links to folders, and files of other kinds are passed over (`Problems.passed_over` counts the
      last). A folder with `corpus.jsonl` is a BEIR folder: that file alone is its corpus.
    - **Standard input**, `-`, is JSON lines when it begins with `{`, otherwise one document per line that is
      not blank.

    Args:
        source: a path, or `-`.
        problems: collects the skipped records; without it the first problem raises. Of documents with the
            same id the first is kept, the others are problems.
        fields: names of the fields of id, title and text in JSON lines and tables.
        stdin: stream for `-`; None for the process's standard input.
        refuse: returns the reason to reject a document, which becomes a problem of its record.
        mirror: gives the documents of folders the ids that a collection has for them.
        ignored: True to read what `.gitignore` files name, too.

    Raises:
        InvalidSource: at once, when there is no such file or its kind is not supported; while reading, at
            the first problem when `problems` is strict or not given.
        MissingExtra: while reading, when a source that was named itself needs packages that are not
            installed; in a folder such a file is a problem.
    """
    return read_sources(
        [source], problems=problems, fields=fields, stdin=stdin, refuse=refuse, mirror=mirror, ignored=ignored
    )


def read_sources(
    sources: Sequence[str | PathLike[str]],
    *,
    problems: Problems | None = None,
    fields: RecordFields | None = None,
    stdin: ByteStream | None = None,
    refuse: Refuse | None = None,
    mirror: Mirror | None = None,
    ignored: bool = False,
) -> Iterator[Document]:
    """Yield the documents of several sources; ids are unique across all. Otherwise as `read`."""
    problems = Problems(strict=True) if problems is None else problems
    reading = _Reading(
        problems,
        RecordFields() if fields is None else fields,
        Mirror() if mirror is None else mirror,
        ignored,
        cast(ByteStream, sys.stdin.buffer) if stdin is None and STANDARD_INPUT in sources else stdin,
    )
    parts = [_reader(fspath(source), reading) for source in sources]
    return _accepted(itertools.chain.from_iterable(part() for part in parts), reading, refuse)


def read_sent(stream: ByteStream, name: str, size: int, problems: Problems) -> Iterator[Document]:
    """Yield the documents of a file that a client sent, given as its bytes and its name: nothing is opened.

    Documents are those that `read` makes of a file of this path in a folder. Of a record without a text all
    other values are its text: whoever sends a table over the web has no option that names a column.

    Args:
        stream: the bytes, unpacked.
        name: name of the file as it was sent; its suffix selects the reader.
        size: bytes of the file.
        problems: collects the skipped records.

    Raises:
        InvalidSource: a kind of file that is not read.
        MissingExtra: packages that read it are not installed.
    """
    kind = kind_of(PurePath(name))
    if not kind:
        suffix = PurePath(name).suffix or "without suffix"
        raise InvalidSource(f"files {suffix} are not read; supported are {READABLE}")
    file = SourceFile(Path(name), "", name, kind, size)
    reading = _Reading(problems, RecordFields(whole=True), Mirror(), False, None)
    return _accepted(_located(file, stream, reading), reading, None)


Located = tuple[str, int | None, Document]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Settings and state that the sources of one run share."""

    problems: Problems
    fields: RecordFields
    mirror: Mirror
    ignored: bool
    stdin: ByteStream | None

    def below(self, folder: Path) -> Iterator[Path]:
        return files_below(folder, self.not_listed, self.ignored)

    def not_listed(self, folder: Path, error: OSError) -> None:
        self.problems.add(str(folder), None, f"cannot be read: {error.strerror or error}")


def _reader(source: str, reading: _Reading) -> Callable[[], Iterator[Located]]:
    """Reader of a source, after checking that it is readable."""
    if source == STANDARD_INPUT:
        assert reading.stdin is not None
        return partial(_read_stream, reading.stdin, reading.problems, reading.fields)
    if is_pattern(source):
        files = matches(source)
        if not any(kind_of(file) for file in files):
            raise InvalidSource(
                f"{source}: {amount(len(files), 'file matches', 'files match')} and none can be read; "
                f"supported are {SUPPORTED}"
            )
        return partial(_read_files, files, base_of(source), reading)
    path = Path(source)
    if path.is_dir():
        if (path / BEIR_CORPUS).is_file():
            return partial(_read_untracked, [path / BEIR_CORPUS], reading)
        if is_dataset(path):
            return partial(_read_untracked, dataset_files(path), reading)
        if not any(kind_of(file) for file in files_below(path, _ignore_error, reading.ignored)):
            raise InvalidSource(f"{path}: no file in this folder can be read; supported are {SUPPORTED}")
        return partial(_read_folder, path, reading)
    if not path.exists():
        raise InvalidSource(f"{path}: no such file or folder{_nearest(path)}; supported are {SUPPORTED}")
    if not path.is_file():
        raise InvalidSource(f"{path}: neither a file nor a folder; pipe it into standard input, `-`")
    if not kind_of(path):
        raise InvalidSource(
            f"{path}: files {path.suffix or 'without suffix'} are not read; supported are {SUPPORTED}"
        )
    return partial(_read_single, path, reading)


def _ignore_error(_folder: Path, _error: OSError) -> None:
    """Such a folder becomes a problem when it is read."""


def _read_folder(folder: Path, reading: _Reading) -> Iterator[Located]:
    reading.mirror.enter(os.path.realpath(folder))
    yield from _read_files(reading.below(folder), folder, reading)


def _read_files(files: Iterable[Path], folder: Path, reading: _Reading) -> Iterator[Located]:
    for path in files:
        if not kind_of(path):
            reading.problems.passed_over[_printable(path.suffix.lower())] += 1
            continue
        try:
            yield from _read_file(_source_file(path, folder, reading.mirror), reading)
        except MissingExtra as error:
            reading.problems.add(str(path), None, str(error))


def _read_single(path: Path, reading: _Reading) -> Iterator[Located]:
    """Records of a file that was named itself replace those of the same ids, wherever they came from."""
    tracked = reading.mirror.covers(os.path.realpath(path.parent))
    return _read_file(_source_file(path, path.parent, reading.mirror), reading, tracked)


def _read_untracked(files: Iterable[Path], reading: _Reading) -> Iterator[Located]:
    for path in files:
        yield from _read_file(_source_file(path, path.parent, reading.mirror), reading, tracked=False)


def _source_file(path: Path, folder: Path, mirror: Mirror) -> SourceFile:
    above = os.path.realpath(folder)
    root = mirror.root_of(above)
    inside = os.path.join(os.path.relpath(above, root), path.relative_to(folder))
    return SourceFile(path, root, Path(os.path.normpath(inside)).as_posix(), kind_of(path))


def _read_file(file: SourceFile, reading: _Reading, tracked: bool = True) -> Iterator[Located]:
    """Read a file; `tracked` records note where they come from."""
    name, problems = _printable(str(file.file)), reading.problems
    if name != str(file.file):
        problems.add(name, None, "its name is not UTF-8, and ids are; rename it")
        return
    try:
        with opened(file.file) as stream:
            yield from _located(file, stream, reading, tracked)
    except (OSError, EOFError, zlib.error) as error:
        problems.add(name, None, f"cannot be read: {error}")


def _located(
    file: SourceFile, stream: ByteStream, reading: _Reading, tracked: bool = True
) -> Iterator[Located]:
    """Documents of a file's bytes, with their places."""
    try:
        for line, document in _places(file, stream, reading):
            if line is not None:
                yield file.label, line, file.recorded(document) if tracked else document
            else:
                for part, whole in parts_of(document):
                    yield file.label, None, file.described(whole, part)
    except BadRecord as error:
        reading.problems.add(file.label, error.line, str(error))


def _places(file: SourceFile, stream: ByteStream, reading: _Reading) -> Iterable[tuple[int | None, Document]]:
    """Records of a file with their lines, or the one document that it is."""
    name = file.label
    if file.kind == JSON:
        raw = stream.read()
        records = documents_of_array(raw, name, reading.problems, reading.fields)
        if records is not None:
            return _numbered(records)
        stream = io.BytesIO(raw)
    elif file.kind in RECORDS:
        return _numbered(RECORDS[file.kind](stream, name, reading.problems, reading.fields))
    return [(None, TEXTS[file.kind](stream, file.path))]


def _numbered(records: Iterable[Place]) -> Iterator[Place]:
    """Number the records of a file that have no id of their own and equal content."""
    counts: Counter[str] = Counter()
    for line, document in records:
        if document.id == content_id_in(document.id) and has_content_id(document):
            counts[document.id] += 1
            yield line, replace(document, id=numbered(document.id, counts[document.id]))
        else:
            yield line, document


def _read_stream(stream: ByteStream, problems: Problems, fields: RecordFields) -> Iterator[Located]:
    name = "standard input"
    lines = ((n, line) for n, line in decoded_lines(unzipped(stream), name, problems) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    lines = itertools.chain([first], lines)
    if first[1].lstrip().startswith("{"):
        records = documents_of_lines(lines, name, problems, fields)
    else:
        texts = ((number, line.strip()) for number, line in lines)
        records = ((number, Document(content_id("", text), text)) for number, text in texts)
    for number, document in _numbered(records):
        yield name, number, document


def _accepted(located: Iterable[Located], reading: _Reading, refuse: Refuse | None) -> Iterator[Document]:
    """Yield documents with unique ids that are not rejected."""
    ids: set[str] = set()
    problems, numbers = reading.problems, ContentNumbers()
    for name, line, read_document in located:
        document = reading.mirror.identify(read_document)
        if refuse is not None and (reason := refuse(document)):
            problems.add(name, line, f"the document {reason}", skipped=())
            continue
        if document.id in ids and has_content_id(document):  # of another file
            document = replace(document, id=numbers.free(document.id, ids.__contains__))
        if document.id in ids:
            message = f"duplicate id {document.id!r}; the first document of that id is kept"
            problems.add(name, line, message, skipped=())
        else:
            ids.add(document.id)
            yield document


def kind_of(path: PurePath) -> str:
    """Return the suffix that selects the reader of a file by its name; empty without one."""
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if not suffix and name in PLAIN_NAMES:
        return ".txt"
    return suffix if suffix in RECORDS or suffix in TEXTS else ""


def _printable(name: str) -> str:
    """A name of the file system, its bytes that are not UTF-8 written as such: they stand in no message."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _nearest(path: Path) -> str:
    """Existing names in the folder, for a message."""
    parent = path.parent
    if not parent.is_dir():
        return f" (nor is there a folder {parent})"
    names = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    listing = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f" ({parent} holds {listing or 'nothing'})"
