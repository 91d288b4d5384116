"""Commits and their marks: what stops writing, what is rolled back, and what is made up for."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dsearch.errors import Unavailable
from dsearch.store.sqlite.database import MarkedState, WatermarkEntry, read_row, write_state
from dsearch.store.sqlite.journal import Journal, later, roll_back
from dsearch.store.sqlite.watermark import Watermark, create_watermark

STATE = MarkedState(7, b"n" * 32, 6, b"p" * 32)


@pytest.fixture
def journal() -> Journal:
    return Journal(Path("/home/papers"))


@pytest.fixture
def watermark(tmp_path: Path) -> Any:
    create_watermark(tmp_path, WatermarkEntry(0, bytes(32)))
    opened = Watermark(tmp_path)
    yield opened
    opened.close()


def failing(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("its message")
    error.sqlite_errorname = name
    return error


class Connection:
    """One whose commit fails; it notes what it was told."""

    in_transaction = True

    def __init__(self, error: sqlite3.Error | None = None):
        self.error, self.told = error, list[str]()

    def execute(self, statement: str) -> None:
        self.told.append(statement)
        if statement == "COMMIT" and self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("name", "stops"), [("SQLITE_FULL", False), ("SQLITE_IOERR_FSYNC", True), ("SQLITE_BUSY", True)]
)
def test_a_failed_commit_is_rolled_back_and_stops_writing_unless_the_disk_is_full(
    journal: Journal, name: str, stops: bool
) -> None:
    connection: Any = Connection(failing(name))
    with pytest.raises(sqlite3.OperationalError, match="its message"):
        journal._commit(connection)
    assert connection.told == ["COMMIT", "ROLLBACK"]
    assert journal.failed == stops
    if stops:
        with pytest.raises(Unavailable, match="its message"), journal.operation():
            pass


def test_a_mark_that_cannot_be_written_stops_writing(
    journal: Journal, watermark: Watermark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise OSError("no more")

    monkeypatch.setattr(watermark, "write", broken)
    with pytest.raises(Unavailable, match="no more"):
        journal._acknowledge(watermark, STATE)
    assert journal.failed


@pytest.mark.parametrize(
    ("name", "stops"),
    [
        ("SQLITE_IOERR_READ", True),
        ("SQLITE_IOERR_SHMSIZE", False),
        ("SQLITE_FULL", False),
        ("SQLITE_ERROR", False),
    ],
)
def test_only_a_failing_disk_is_distrusted(journal: Journal, name: str, stops: bool) -> None:
    journal._distrust(failing(name))
    assert journal.failed == stops


def test_nothing_is_rolled_back_outside_a_transaction() -> None:
    connection: Any = Connection()
    connection.in_transaction = False
    roll_back(connection)
    assert connection.told == []


def test_the_next_operation_follows_database_and_watermark(watermark: Watermark) -> None:
    """A number that a lost operation had is never given again."""
    following = later(STATE, watermark, b"d" * 32)
    assert following == MarkedState(8, b"d" * 32, 7, b"n" * 32)
    watermark.write(WatermarkEntry(20, bytes(32)))
    assert later(STATE, watermark, b"d" * 32) == MarkedState(21, b"d" * 32, 7, b"n" * 32)
    assert STATE.marks == (WatermarkEntry(7, b"n" * 32), WatermarkEntry(6, b"p" * 32))


def test_a_state_is_read_as_it_was_written_and_other_types_are_none() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE state (sequence, digest, previous_sequence, previous_digest)")
    assert read_row(connection, MarkedState) is None
    connection.execute("INSERT INTO state VALUES (0, x'', 0, x'')")
    write_state(connection, STATE)
    assert read_row(connection, MarkedState) == STATE
    for change in ("sequence = 'seven'", "digest = 'text'", "previous_sequence = NULL"):
        connection.execute(f"UPDATE state SET {change}")
        assert read_row(connection, MarkedState) is None
        write_state(connection, STATE)
    connection.close()
