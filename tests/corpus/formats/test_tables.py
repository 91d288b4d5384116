"""CSV and TSV: delimiters, quoting, and problems with the first line of their row."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dsearch.corpus import Problems, RecordFields
from dsearch.corpus.formats import tables
from dsearch.corpus.formats.tables import dataset_files, is_dataset, read_arrow, read_csv, read_parquet
from dsearch.errors import InvalidSource


def table(raw: str | bytes, **fields: str) -> tuple[list[tuple[int, str]], list[str]]:
    """First line and text of each document, and the problems."""
    problems = Problems()
    content = raw if isinstance(raw, bytes) else raw.encode()
    read = read_csv(io.BytesIO(content), "t.csv", problems, RecordFields(**fields))  # type: ignore[arg-type]
    documents = [(line, document.text) for line, document in read]
    return documents, [str(problem) for problem in problems.first]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_most_frequent_delimiter_of_the_header_is_that_of_the_table(delimiter: str) -> None:
    raw = f"id{delimiter}text{delimiter}note\n1{delimiter}one{delimiter}a\n"
    assert table(raw) == ([(2, "one")], [])
    others = ",;\t".replace(delimiter, "")
    raw = f'id{delimiter}text{delimiter}"{others} in its name"\n1{delimiter}one{delimiter}a\n'
    assert table(raw) == ([(2, "one")], [])


def test_a_document_has_the_first_line_of_its_row() -> None:
    raw = 'id,text\n1,"two\nlines"\n\n2,"a ""word"", or two"\n'
    assert table(raw) == ([(2, "two\nlines"), (5, 'a "word", or two')], [])


def test_a_bad_row_is_told_with_its_first_line_and_costs_only_itself() -> None:
    documents, problems = table('id,text\n1,one\n2\n3,"a\nb"\n4,four,more\n5," "\n6,six\n')
    assert documents == [(2, "one"), (4, "a\nb"), (8, "six")]
    assert problems == [
        "t.csv:3: 1 cell, but the header has 2 columns",
        "t.csv:6: 3 cells, but the header has 2 columns",
        "t.csv:7: empty: neither title nor text says anything",
    ]


def test_quoting_that_breaks_is_told_with_its_row() -> None:
    documents, problems = table('id,text\n1,one\n2,"x"y\n3,three\n')
    assert documents == [(2, "one"), (4, "three")]
    assert len(problems) == 1
    assert problems[0].startswith("t.csv:3: broken row: ")


def test_bytes_that_are_no_text_are_told_with_their_column() -> None:
    good = "é".encode() * 3
    documents, problems = table(b"id,text\n1,a" + good + b"\n2,b\xff\n3,c\n")
    assert documents == [(2, "aééé"), (4, "c")]
    assert problems == ["t.csv:3: column 'text' is not UTF-8; save the file as UTF-8"]


def test_a_header_that_is_none_is_told() -> None:
    assert table("") == ([], ["t.csv:1: empty; a table begins with a header that names its columns"])
    assert table("text,text\na,b\n") == (
        [],
        ["t.csv:1: the header names a column twice: ['text', 'text']"],
    )
    assert "no column text, contents, body" in table("id,words\n1,a\n")[1][0]
    assert table(" id , words \n1,a\n", text="words") == ([(2, "a")], [])


def test_a_cell_may_be_longer_than_python_allows_by_itself() -> None:
    long = "x" * 200_000
    assert table(f"id,text\n1,{long}\n") == ([(2, long)], [])


def test_only_columns_without_a_meaning_are_typed() -> None:
    problems = Problems()
    raw = b"id,title,text,value,n\n7,8,9,1.5,3\n"
    [(_, document)] = read_csv(io.BytesIO(raw), "t.csv", problems, RecordFields())
    assert (document.id, document.title, document.text, document.value) == ("7", "8", "9", 1.5)
    assert document.metadata == {"n": 3}


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
    read = list(tables._documents(each, "a.parquet", problems, RecordFields()))
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
    [(_, document)] = tables._documents(lambda: iter([batch]), "a", problems, RecordFields())
    assert document.metadata == {"n": 1}


@pytest.mark.parametrize("form", ["new_stream", "new_file", "parquet"])
def test_large_files_are_read_in_slices(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    ipc, parquet = pytest.importorskip("pyarrow.ipc"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(tables, "_ROWS_AT_A_TIME", 3)
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


def saved(folder: Path, *files: str, missing: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_info.json").write_text("{}")
    state: dict[str, Any] = {"_data_files": [{"filename": name} for name in files]}
    (folder / "state.json").write_text(json.dumps(state))
    for name in files:
        if name != missing and Path(name).suffix:
            (folder / name).write_bytes(b"")
    return folder


def test_a_dataset_has_its_state_and_its_description_or_splits(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "0.arrow")
    assert is_dataset(folder)
    for name in ("state.json", "dataset_info.json"):
        half = saved(tmp_path / f"without-{name}")
        (half / name).unlink()
        assert not is_dataset(half)
    (tmp_path / "dataset_dict.json").write_text('{"splits": []}')
    assert is_dataset(tmp_path)
    assert dataset_files(tmp_path) == []


def test_files_come_in_the_order_of_the_dataset(tmp_path: Path) -> None:
    for split in ("test", "train"):
        saved(tmp_path / split, "b.arrow", "a.arrow")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert dataset_files(tmp_path) == [
        tmp_path / split / name for split in ("train", "test") for name in ("b.arrow", "a.arrow")
    ]


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "in/a", ".."])
def test_a_name_with_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSource, match="is not a plain name"):
        dataset_files(saved(tmp_path / "a", name))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(InvalidSource, match="is not a plain name"):
        dataset_files(tmp_path)


def test_what_is_missing_or_no_dataset_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, "0.arrow", "1.arrow", missing="1.arrow")
    with pytest.raises(InvalidSource, match=r"1\.arrow: missing, though state\.json names it"):
        dataset_files(folder)
    for content in ("[]", "{}", "no json", '{"_data_files": [{}]}'):
        (folder / "state.json").write_text(content)
        with pytest.raises(InvalidSource, match="not a whole saved dataset"):
            dataset_files(folder)
