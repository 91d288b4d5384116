"""Parquet and Arrow by batches: rows are numbered through, and what breaks ends the file."""

from __future__ import annotations

from typing import Any

import pytest

from dsearch.corpus import Problems, RecordFields
from dsearch.corpus.formats import arrow
from dsearch.corpus.formats.arrow import read_arrow, read_parquet


class _Batch:
    def __init__(self, *rows: dict[str, Any]):
        self._rows = rows
        self.schema = type("Schema", (), {"names": list(rows[0]) if rows else []})

    def to_pylist(self) -> list[dict[str, Any]]:
        return list(self._rows)


def gathered(*batches: _Batch | Exception) -> tuple[list[tuple[int, str]], list[str]]:
    def each() -> Any:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch

    problems = Problems()
    read = list(arrow._documents(each, "a.parquet", problems, RecordFields()))
    return [(row, document.id) for row, document in read], [str(problem) for problem in problems.first]


def row(id: str, text: str = "x", **more: Any) -> dict[str, Any]:
    return {"id": id, "text": text, **more}


def test_rows_are_numbered_through_all_batches() -> None:
    documents, problems = gathered(_Batch(row("a"), row("b", " ")), _Batch(row("c")))
    assert documents == [(1, "a"), (3, "c")]
    assert problems == ["a.parquet:2: empty: neither title nor text says anything"]


@pytest.mark.parametrize("error", [OSError, ValueError, NotImplementedError, MemoryError])
def test_what_cannot_be_read_ends_the_file_with_the_next_row(error: type[Exception]) -> None:
    documents, problems = gathered(_Batch(row("a")), error("broken"), _Batch(row("c")))
    assert documents == [(1, "a")]
    assert problems == ["a.parquet:2: cannot be read from here on: broken"]
    assert gathered(error("broken")) == ([], ["a.parquet:1: cannot be read from here on: broken"])


def test_columns_are_complained_of_once_and_for_the_whole_file() -> None:
    documents, problems = gathered(_Batch({"id": "a"}), _Batch({"id": "b"}))
    assert documents == []
    assert len(problems) == 1
    assert problems[0].startswith("a.parquet: no column text, contents, body")


def test_columns_of_bytes_are_left_out() -> None:
    problems = Problems()
    batch = _Batch(row("a", raw=b"x", buffer=bytearray(b"y"), n=1))
    [(_, document)] = arrow._documents(lambda: iter([batch]), "a", problems, RecordFields())
    assert document.metadata == {"n": 1}


@pytest.mark.parametrize("form", ["new_stream", "new_file", "parquet"])
def test_large_files_are_read_in_slices(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    ipc, parquet = pytest.importorskip("pyarrow.ipc"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(arrow, "_ROWS_AT_A_TIME", 3)
    rows = pyarrow.table({"id": [str(n) for n in range(8)], "text": ["x"] * 8})
    path, reader = tmp_path / "a", read_arrow
    if form == "parquet":
        parquet.write_table(rows, path)
        reader = read_parquet
    else:
        with getattr(ipc, form)(str(path), rows.schema) as file:
            file.write_table(rows)
    with path.open("rb") as stream:
        read = list(reader(stream, "a", Problems(), RecordFields()))
    assert [(number, document.id) for number, document in read] == [(n + 1, str(n)) for n in range(8)]


@pytest.mark.parametrize(
    ("kind", "units", "count"),
    [("date32", [], 2**30), ("timestamp", ["us"], 2**62), ("duration", ["s"], 2**62)],
)
def test_a_time_that_python_cannot_hold_is_a_problem_of_its_row(
    tmp_path: Any, kind: str, units: list[str], count: int
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    form = getattr(pyarrow, kind)(*units)
    table = pyarrow.table({"id": ["a", "b", "c"], "text": ["x"] * 3, "t": pyarrow.array([0, count, 1], form)})
    parquet.write_table(table, tmp_path / "a.parquet")
    problems = Problems()
    with open(tmp_path / "a.parquet", "rb") as file:
        read = list(read_parquet(file, "a.parquet", problems, RecordFields()))
    assert [(row, document.id) for row, document in read] == [(1, "a"), (3, "c")]
    assert len(problems.first) == 1
    assert str(problems.first[0]).startswith("a.parquet:2: a date, time or duration out of range: ")
