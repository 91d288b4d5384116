"""The identity of a collection in its database, and what a new one is made with."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsearch.errors import CorruptData, UnsupportedFormat
from dsearch.store import Store
from dsearch.store.sqlite.schema import (
    APPLICATION_ID,
    FORMAT,
    NEW_FORMAT,
    PAGE_BYTES,
    CollectionMeta,
    create_tables,
    read_meta,
    read_state,
)

META = CollectionMeta("food", {"name": "test", "é": 1}, 8, {"tokens": 256})


def made(meta: CollectionMeta = META) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create_tables(connection, meta, b"d" * 32)
    return connection


def test_a_new_database_has_large_pages_and_is_marked_as_one(tmp_path: Path) -> None:
    with Store.create(tmp_path / "food", name="food", encoder={}, dimension=8):
        pass
    with closing(sqlite3.connect(tmp_path / "food" / "documents.db")) as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (8192,)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert read_meta(connection).format == NEW_FORMAT
    assert (8192, 2, 4, int.from_bytes(b"dsea")) == (PAGE_BYTES, NEW_FORMAT, FORMAT, APPLICATION_ID)


@pytest.mark.parametrize("passages", [None, {"tokens": 256, "overlap": 32}])
def test_the_identity_is_read_as_it_was_written(passages: dict[str, Any] | None) -> None:
    meta = replace(META, passages=passages)
    assert read_meta(made(meta)) == meta


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_format_up_to_the_newest_is_read(number: int) -> None:
    connection = made()
    connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(number),))
    if number == 1:
        connection.execute("DELETE FROM meta WHERE key = 'passages'")
    read = read_meta(connection)
    assert read == replace(META, format=number, passages=None if number == 1 else META.passages)


@pytest.mark.parametrize("written", ["0", "5", "x", "", "²", "-1", None])
def test_other_formats_are_refused(written: str | None) -> None:
    connection = made()
    connection.execute("DELETE FROM meta WHERE key = 'format'")
    if written is not None:
        connection.execute("INSERT INTO meta VALUES ('format', ?)", (written,))
    named = "unknown" if written is None else written
    with pytest.raises(UnsupportedFormat, match=f"has store format {named}; this release reads 1 to 4"):
        read_meta(connection)


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"encoder": {"name": "x"}}, {"dimension": 9}, {"format": 3}, {"passages": None}],
)
def test_every_part_of_the_identity_is_in_the_set_digest(change: dict[str, Any]) -> None:
    assert replace(META, **change).fact != META.fact


def test_the_first_format_had_no_passages_in_its_digest() -> None:
    first = replace(META, format=1)
    assert replace(first, passages=None).fact == first.fact


def test_a_new_state_has_no_operation_and_no_row() -> None:
    state = read_state(made())
    assert (state.sequence, state.previous_sequence, state.last_row) == (0, 0, 0)
    assert (state.documents, state.tombstones) == (0, 0)
    assert state.digest == state.previous_digest == b"d" * 32


def test_a_state_that_is_gone_is_damage() -> None:
    connection = made()
    connection.execute("DELETE FROM state")
    with pytest.raises(CorruptData, match="the row of its table `state` is not what was written"):
        read_state(connection)


def test_at_most_one_version_of_an_id_is_live() -> None:
    connection = made()
    insert = "INSERT INTO document VALUES (?, 'a', '', '', '{}', NULL, x'00', 1, ?)"
    connection.execute(insert, (1, 2))
    connection.execute(insert, (2, None))
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(insert, (3, None))
    assert json.loads(dict(connection.execute("SELECT * FROM meta"))["encoder"]) == META.encoder
