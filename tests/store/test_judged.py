"""Rows of the query memory in the store: durable, checked, taken back, and gone from every file."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import EXAMPLE

from dsearch.errors import CorruptData, DimensionMismatch, InvalidRequest, UnsupportedFormat
from dsearch.store import MemoryRow, Store
from dsearch.store.sqlite import schema

GOLDEN = EXAMPLE / "golden"


def row(text: str, store: Store, **more: Any) -> MemoryRow:
    return MemoryRow(text, np.linspace(0, 1, store.dimension, dtype=np.float32), {3: 1.0, 5: 0.5}, **more)


def format_of(folder: Path) -> str:
    with sqlite3.connect(folder / "documents.db") as connection:
        return connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()[0]


def test_rows_are_read_back_in_the_order_of_operations(store: Store, folder: Path) -> None:
    assert list(store.judged()) == []
    assert store.judged_state() == (0, 0)
    assert format_of(folder) == "2"
    first = store.add_judged([row("one", store), row("two", store, source="clicks", key="k1")])
    second = store.add_judged([row("three", store)])
    assert second == first + 1 == store.sequence
    assert store.add_judged([]) == second
    assert store.judged_state() == (second, 0)
    rows = store.judged()
    assert [one.text for one in rows] == ["one", "two", "three"]
    assert [one.written for one in rows] == [first, first, second]
    assert (rows[1].source, rows[1].key, rows[1].grades) == ("clicks", "k1", {3: 1.0, 5: 0.5})
    assert np.array_equal(rows[0].state, row("one", store).state)
    assert [one.text for one in store.judged(first)] == ["three"]
    assert format_of(folder) == "3"
    store.close()
    with Store.open(folder) as again:
        assert [one.text for one in again.judged()] == ["one", "two", "three"]
        assert again.verify().ok


def test_later_rows_are_dropped(store: Store) -> None:
    first = store.add_judged([row("one", store)])
    store.add_judged([row("two", store), row("three", store)])
    reached, dropped = store.drop_judged(first)
    assert (reached, dropped) == (store.sequence, 2)
    assert [one.text for one in store.judged()] == ["one"]
    assert store.judged_state() == (reached, reached)
    assert store.drop_judged(first) == (reached, 0)
    store.add_judged([row("four", store)])
    assert store.drop_judged(first)[1] == 1  # the same operation again
    assert store.judged_state() == (store.sequence, store.sequence)
    assert store.verify().ok


def test_rows_of_a_source_and_key_are_counted_from_the_first(store: Store) -> None:
    assert store.count_judged("clicks") == (0, 0)
    first = store.add_judged([row("one", store, key="k1"), row("", store, source="clicks", key="k1")])
    later = store.add_judged([row("", store, source="clicks", key=key) for key in ("k2", "k1", "")])
    counts = [store.count_judged("clicks", key) for key in (None, "k1", "k2", "", "k3")]
    assert counts == [(4, first), (2, first), (1, later), (1, later), (0, 0)]


def test_a_purge_removes_the_texts_of_dropped_rows_from_every_file(store: Store, folder: Path) -> None:
    store.add_judged([row("secret question", store)])
    store.drop_judged(0)
    store.purge()
    store.close()
    content = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    assert b"secret question" not in content


CHANGES = [
    *(("text", "other"), ("grades", '{"3":2.0}'), ("key", "k2")),
    # Of the same bytes, but a blob where text was, or the other way round.
    *(("text", b"one"), ("grades", b'{"3":1.0,"5":0.5}'), ("source", b"judgements"), ("state", "x" * 32)),
]


@pytest.mark.parametrize(("column", "value"), CHANGES)
def test_a_changed_row_is_damage(store: Store, folder: Path, column: str, value: object) -> None:
    store.add_judged([row("one", store)])
    store.close()
    with sqlite3.connect(folder / "documents.db") as connection:
        connection.execute(f"UPDATE judged SET {column} = ?", (value,))
    with Store.open(folder) as again:
        assert any("row 1 of the query memory" in damage for damage in again.verify().damage)
        with pytest.raises(CorruptData, match="row 1 of the query memory"):
            again.judged()


def test_a_lost_row_is_damage(store: Store, folder: Path) -> None:
    store.add_judged([row("one", store)])
    store.close()
    with sqlite3.connect(folder / "documents.db") as connection:
        connection.execute("DELETE FROM judged")
    with Store.open(folder) as again:
        assert any("as a whole" in damage for damage in again.verify().damage)


def test_what_cannot_be_a_row_is_refused(store: Store) -> None:
    state = np.zeros(store.dimension, np.float32)
    for grades in ({}, {1: 0.0}, {1: float("nan")}, {1: float("inf")}, {1: -0.2}):
        with pytest.raises(InvalidRequest, match="one above 0"):
            store.add_judged([MemoryRow("one", state, grades)])
    with pytest.raises(DimensionMismatch):
        store.add_judged([MemoryRow("one", state[:-1], {1: 1.0})])
    assert list(store.judged()) == []
    assert store.verify().ok


def test_an_older_release_refuses_a_collection_with_rows(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_judged([row("one", store)])
    store.close()
    monkeypatch.setattr(schema, "FORMAT", 2)
    with pytest.raises(UnsupportedFormat, match="store format 3; this release reads 1 to 2"):
        Store.open(folder)


def test_a_collection_of_format_1_can_have_rows(tmp_path: Path) -> None:
    """It becomes one of format 3, with a table of passages."""
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "golden"))
    with Store.open(folder) as store:
        before = [document.id for document in store.list()]
        store.add_judged([row("one", store)])
        assert store.verify().ok
    with Store.open(folder) as store:
        assert [one.text for one in store.judged()] == ["one"]
        assert [document.id for document in store.list()] == before
        assert store.cutting is None
        assert store.verify().ok


@pytest.mark.parametrize("grades", [{}, {1: 0.0}, {1: -1.0}, {1: 1.0, 2: float("inf")}, {1: float("nan")}])
def test_a_row_has_finite_grades_and_one_above_zero(store: Store, grades: dict[int, float]) -> None:
    state = np.zeros(store.dimension, np.float32)
    before = store.sequence
    with pytest.raises(InvalidRequest, match="a judged query needs finite grades, one above 0"):
        store.add_judged([MemoryRow("fine", state, {1: 0.1}), MemoryRow("query", state, grades)])
    assert (store.sequence, list(store.judged())) == (before, [])
    assert store.add_judged([]) == before
