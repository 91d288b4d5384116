"""Each option of reading reaches every kind of source, however it is named."""

from __future__ import annotations

import csv
import gzip
import inspect
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dsearch.corpus import BeirFolder, Mirror, Problems, RecordFields, read, read_sources
from dsearch.errors import InvalidSource
from dsearch.types import Document, EmbeddedDocument

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

GIVEN = RecordFields("own id", "own title", "own text", "own value", "own embedding", {"year": "text"})
RECORD: dict[str, Any] = {
    "own id": "given-id",
    "own title": "given-title",
    "own text": "given-text",
    "own value": 0.5,
    "own embedding": [0.6, 0.8],
    "year": 1937,
}
READ = {
    "id": "given-id",
    "title": "given-title",
    "text": "given-text",
    "value": 0.5,
    "embedding": [0.6, 0.8],
    "types": "1937",
}
"""By the names of `RecordFields`: what a document has of it."""


def _lines() -> bytes:
    return json.dumps(RECORD).encode() + b"\n"


def _table(delimiter: str) -> bytes:
    table = io.StringIO()
    writer = csv.writer(table, delimiter=delimiter)
    cells = [json.dumps(cell) if isinstance(cell, list) else cell for cell in RECORD.values()]
    writer.writerows([list(RECORD), cells])
    return table.getvalue().encode()


def _columns() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([RECORD]), file)
    return file.getvalue()


def _stream() -> bytes:
    table, file = pyarrow.Table.from_pylist([RECORD]), io.BytesIO()
    with pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "a.jsonl": _lines,
    "a.ndjson": _lines,
    "a.jsonl.gz": lambda: gzip.compress(_lines()),
    "a.json": lambda: b"[" + _lines() + b"]",
    "a.csv": lambda: _table(","),
    "a.tsv": lambda: _table("\t"),
    "a.parquet": _columns,
    "a.arrow": _stream,
}
Ask = Callable[..., Iterator[Document]]


def _ways(folder: Path, name: str) -> Iterator[tuple[str, Ask]]:
    """Each way to read a file."""
    content = FILES[name]()
    (folder / name).write_bytes(content)
    yield "by its name", lambda **how: read(folder / name, **how)
    yield "among others", lambda **how: read_sources([folder / name], **how)
    yield "in its folder", lambda **how: read(folder, **how)
    yield "by a pattern", lambda **how: read(f"{folder}/*", **how)
    if ".jsonl" in name:
        yield "on standard input", lambda **how: read("-", stdin=io.BytesIO(content), **how)
    if name == "a.jsonl":
        (folder / "beir").mkdir()
        (folder / "beir" / "corpus.jsonl").write_bytes(content)
        yield "of BEIR", lambda **how: read(folder / "beir", **how)


def _of(document: Document) -> dict[str, Any]:
    embedding = document.embedding if isinstance(document, EmbeddedDocument) else None
    own = {name: getattr(document, name) for name in ("id", "title", "text", "value")}
    own["embedding"] = None if embedding is None else list(embedding)
    return {**own, "types": document.metadata["year"]}


def test_every_field_of_records_is_given() -> None:
    assert {*READ, "whole"} == {field.name for field in fields(RecordFields)}  # whole: test_sent.py
    assert all(getattr(GIVEN, name) != getattr(RecordFields(), name) for name in READ)


@pytest.mark.parametrize("name", FILES)
def test_names_of_fields_reach_every_kind_of_source(tmp_path: Path, name: str) -> None:
    lost = []
    for way, ask in _ways(tmp_path, name):
        read_documents = [_of(document) for document in ask(fields=GIVEN)]
        documents = [{**each, "id": each["id"].rpartition("/")[2]} for each in read_documents]
        if READ not in documents:
            lost.append(f"{way}: {documents}")
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize("name", FILES)
def test_reasons_to_refuse_and_problems_reach_every_kind_of_source(tmp_path: Path, name: str) -> None:
    lost = []
    for way, ask in _ways(tmp_path, name):
        problems = Problems()
        kept = list(ask(fields=GIVEN, problems=problems, refuse=lambda document: f"is {document.title}"))
        if kept or "the document is given-title" not in {problem.message for problem in problems.first}:
            lost.append(f"{way}: {kept} {problems.first}")
        if name == "a.json":  # an array of objects without a text is one document, as other JSON is
            continue
        missing = RecordFields(text="no such field")
        with pytest.raises(InvalidSource, match="no such field"):
            list(ask(fields=missing))  # the first problem of a record, without a collector
        problems = Problems()
        if list(ask(fields=missing, problems=problems)) or not problems.count:
            lost.append(f"{way}: no problem")
    assert not lost, "\n".join(lost)


def test_one_source_has_every_option_of_several() -> None:
    one, several = (inspect.signature(each).parameters for each in (read, read_sources))
    assert list(one)[1:] == list(several)[1:]
    assert all(one[name].default == several[name].default for name in list(one)[1:])


def test_files_that_are_ignored_are_read_where_it_is_said(tmp_path: Path) -> None:
    for name in (".gitignore", "kept.txt", "ignored.txt"):
        (tmp_path / name).write_text("ignored.txt" if name == ".gitignore" else name)
    for ask in (read, lambda source, **how: read_sources([source], **how)):
        assert [each.id for each in ask(tmp_path)] == ["kept.txt"]
        assert [each.id for each in ask(tmp_path, ignored=True)] == ["ignored.txt", "kept.txt"]


def test_records_of_a_folder_name_their_file_and_are_those_of_the_collection(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_lines())
    (document,) = read(tmp_path, fields=GIVEN)
    assert document.metadata["path"] == "a.jsonl"
    for ask in (read, lambda source, **how: read_sources([source], **how)):
        mirror = Mirror()
        mirror.learn([replace(document, id="kept-id")])  # of an earlier release, say
        assert [each.id for each in ask(tmp_path, fields=GIVEN, mirror=mirror)] == ["kept-id"]


def test_problems_of_a_corpus_are_collected(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "river"}\nno JSON\n')
    problems = Problems()
    assert [each.id for each in BeirFolder(tmp_path).documents(problems)] == ["a"]
    assert problems.count == 1
    with pytest.raises(InvalidSource, match=r"corpus\.jsonl:2"):
        list(BeirFolder(tmp_path).documents())
