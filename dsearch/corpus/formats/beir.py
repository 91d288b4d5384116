"""BEIR folders: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import orjson

from dsearch.corpus.formats.jsonl import json_objects
from dsearch.corpus.formats.lines import Problems, decoded_lines, opened
from dsearch.corpus.readers import BEIR_CORPUS, read
from dsearch.errors import InvalidRequest, InvalidSource
from dsearch.types import Document, Query

BEIR_QUERIES = "queries.jsonl"
BEIR_QRELS = "qrels"


class BeirFolder:
    """A test collection on disk.

    Raises:
        InvalidSource: no such folder, or one without corpus and queries.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise InvalidSource(f"{self.path}: no such file or folder; {_JUDGED}")
        if not any((self.path / name).is_file() for name in (BEIR_CORPUS, BEIR_QUERIES)):
            raise InvalidSource(f"{self.path}: no BEIR folder; {_JUDGED}")

    def documents(self, problems: Problems | None = None) -> Iterator[Document]:
        """The corpus, as a stream; see `read` for problems.

        Raises:
            InvalidSource: there is no `corpus.jsonl`, or a problem without collector.
        """
        return read(self.path / BEIR_CORPUS, problems=problems)

    def queries(self, problems: Problems | None = None) -> list[Query]:
        """Read all queries of `queries.jsonl`, of any split, in its order.

        A query without id or text, or with the id of an earlier one, is a problem.

        Raises:
            InvalidSource: there is no `queries.jsonl`, or a problem without collector.
        """
        return read_queries(self.path / BEIR_QUERIES, problems)

    def splits(self) -> list[str]:
        """The names of the splits that have judgements, sorted: `["test", "train"]`."""
        return sorted(path.stem for path in (self.path / BEIR_QRELS).glob("*.tsv"))

    def qrels_path(self, split: str) -> Path:
        """The file with the judgements of a split.

        Raises:
            InvalidSource: no such split; the message names the existing ones.
        """
        splits = self.splits()
        if split not in splits:
            available = (
                f"there are {', '.join(splits)}" if splits else f"there are none; expected {BEIR_QRELS}/*.tsv"
            )
            raise InvalidSource(f"{self.path}: no split {split!r}; {available}")
        return self.path / BEIR_QRELS / f"{split}.tsv"


def read_queries(path: str | PathLike[str], problems: Problems | None = None) -> list[Query]:
    """Queries from JSON lines with `_id` (or `id`) and `text`; like `BeirFolder.queries`."""
    path = Path(path)
    problems = Problems(strict=True) if problems is None else problems
    if not path.is_file():
        raise InvalidSource(f"{path}: no such file; queries are JSON lines with _id and text")
    queries: dict[str, Query] = {}
    with opened(path) as stream:
        for line, record in json_objects(decoded_lines(stream, str(path), problems), str(path), problems):
            identity, text = record.get("_id", record.get("id")), record.get("text")
            if isinstance(identity, int) and not isinstance(identity, bool):
                identity = str(identity)
            if not isinstance(identity, str) or not identity.strip():
                problems.add(str(path), line, "a query without id; give it a text or whole number as _id")
            elif not isinstance(text, str) or not text.strip():
                problems.add(str(path), line, f"query {identity!r} has no text")
            elif identity in queries:
                problems.add(str(path), line, f"duplicate query id {identity!r}; the first is kept")
            else:
                queries[identity] = Query(identity, text)
    return list(queries.values())


def write_beir(
    folder: str | PathLike[str],
    documents: Iterable[Document],
    queries: Iterable[Query],
    qrels: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> BeirFolder:
    """Write a collection; files of the same names are replaced.

    Args:
        folder: created if missing.
        documents: the corpus; `value` is written if present.
        queries: queries of all splits.
        qrels: split → query id → {document id: grade}. Whole grades are written without a point.

    Raises:
        InvalidRequest: an id in the judgements contains a tab or a line end.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / BEIR_CORPUS).open("wb") as file:
        for document in documents:
            file.write(orjson.dumps(record_of(document)) + b"\n")
    return write_beir_judgements(folder, queries, qrels)


def write_beir_judgements(
    folder: str | PathLike[str],
    queries: Iterable[Query],
    qrels: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> BeirFolder:
    """Write queries and judgements without a corpus; arguments and errors as for `write_beir`."""
    folder = Path(folder)
    (folder / BEIR_QRELS).mkdir(parents=True, exist_ok=True)
    with (folder / BEIR_QUERIES).open("wb") as file:
        for query in queries:
            file.write(orjson.dumps({"_id": query.id, "text": query.text}) + b"\n")
    for split, judged in qrels.items():
        rows = ["query-id\tcorpus-id\tscore"]
        rows += [
            f"{_column(query)}\t{_column(document)}\t{grade_text(grade)}"
            for query, grades in judged.items()
            for document, grade in grades.items()
        ]
        path = folder / BEIR_QRELS / f"{split}.tsv"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8", newline="\n")
    return BeirFolder(folder)


def record_of(document: Document) -> dict[str, Any]:
    """Convert a document to a line of `corpus.jsonl`."""
    record: dict[str, Any] = {"_id": document.id, "title": document.title, "text": document.text}
    record["metadata"] = document.metadata
    if document.value is not None:
        record["value"] = document.value
    return record


def grade_text(grade: float) -> str:
    """A grade as files of judgements have it: exactly; whole ones without a point."""
    number = float(grade)
    return f"{number:.0f}" if number.is_integer() else repr(number)


_LAYOUT = f"{BEIR_CORPUS}, {BEIR_QUERIES}, {BEIR_QRELS}/<split>.tsv"


def _column(identity: str) -> str:
    if any(mark in identity for mark in "\t\r\n"):
        raise InvalidRequest(f"id {identity!r} cannot stand in a qrels file: it holds a tab or a line end")
    return identity


_JUDGED = (
    f"judgements are a BEIR folder ({_LAYOUT}) or a file of query, document and grade "
    "(.csv, .tsv, .jsonl, TREC)"
)
