"""Connections: how readers and writers are set, the pool, and SQLite's errors in our words."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from support.guarded import guarded

from dsearch.errors import CorruptData, DsearchError, InsufficientStorage, Unavailable
from dsearch.store import Store
from dsearch.store.feedback import FEEDBACK
from dsearch.store.sqlite.connection import (
    ReaderPool,
    connect,
    insert_rows,
    is_full,
    readable_errors,
    translate,
)
from dsearch.store.sqlite.schema import PAGE_BYTES

checked = guarded(ReaderPool, "_idle", "_closed", free=("closed",))


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_writer_is_durable_and_leaves_nothing_legible(store: Store) -> None:
    connection = connect(store.path, writer=True)
    settings = (
        *("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync", "secure_delete", "query_only"),
        *("trusted_schema", "cell_size_check", "journal_size_limit", "page_size"),
    )
    values = {name: pragma(connection, name) for name in settings}
    connection.close()
    assert values == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "secure_delete": 1,
        "query_only": 0,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "journal_size_limit": 64 * 1024 * 1024,
        "page_size": PAGE_BYTES,
    }


def test_a_reader_cannot_write_and_trusts_no_schema(store: Store) -> None:
    connection = connect(store.path, writer=False)
    assert (pragma(connection, "query_only"), pragma(connection, "trusted_schema")) == (1, 0)
    assert pragma(connection, "cell_size_check") == 1
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM meta")
    connection.close()


@pytest.mark.parametrize("writer", [True, False])
def test_no_database_is_created_unless_it_is_wanted(tmp_path: Path, writer: bool) -> None:
    with pytest.raises(sqlite3.OperationalError):
        connect(tmp_path, writer=writer)
    assert list(tmp_path.iterdir()) == []
    connect(tmp_path, writer=True, create=True, file="other.db").close()
    assert (tmp_path / "other.db").is_file()


def test_readers_are_used_again_and_end_with_the_pool(store: Store) -> None:
    pool = ReaderPool(store.path)
    with pool.reading() as first:
        assert first.in_transaction
        with pool.reading() as second:
            assert second is not first
    assert not first.in_transaction
    with pool.reading() as again:
        assert again in (first, second)
        pool.close()
        assert pool.closed
    for connection in (first, second):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    with pytest.raises(Unavailable, match="was closed; open it again"), pool.reading():
        pass


def test_a_reader_keeps_its_state_while_others_write(store: Store) -> None:
    pool = ReaderPool(store.path)
    with pool.reading() as connection:
        before = connection.execute("SELECT count(*) FROM live").fetchone()
        writer = connect(store.path, writer=True)
        writer.execute("INSERT INTO live VALUES (1, 'model', 1)")
        writer.close()
        assert connection.execute("SELECT count(*) FROM live").fetchone() == before
    with pool.reading() as connection:
        assert connection.execute("SELECT count(*) FROM live").fetchone() == (before[0] + 1,)
    pool.close()


def test_a_connection_that_fails_to_roll_back_is_not_used_again(store: Store) -> None:
    pool = ReaderPool(store.path)
    with pytest.raises(ValueError, match="mine"), pool.reading() as broken:  # noqa: PT012
        broken.execute("SELECT 1")
        raise ValueError("mine")
    with pool.reading() as same:
        assert same is broken
        assert same.in_transaction
    pool.close()


def test_a_connection_serves_one_thread_at_a_time_whichever(store: Store) -> None:
    pool, counts = ReaderPool(store.path), list[int]()

    def read() -> None:
        with pool.reading() as connection:
            counts.append(connection.execute("SELECT count(*) FROM meta").fetchone()[0])

    read()
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(counts) == 2
    assert counts[0] == counts[1] > 0
    pool.close()


def named(name: str, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = kind("its message")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("name", "expected", "message"),
    [
        ("SQLITE_FULL", InsufficientStorage, "the disk is full; nothing of this write was kept"),
        ("SQLITE_IOERR_SHMSIZE", InsufficientStorage, "the disk is full"),
        ("SQLITE_BUSY", Unavailable, "another process holds the database; try again"),
        ("SQLITE_BUSY_SNAPSHOT", Unavailable, "another process holds the database"),
        ("SQLITE_LOCKED", Unavailable, "another process holds the database"),
        ("SQLITE_IOERR_READ", Unavailable, r"cannot be read or written \(its message\); check disk"),
        ("SQLITE_CANTOPEN", Unavailable, "cannot be read or written"),
        ("SQLITE_READONLY_DBMOVED", Unavailable, "cannot be read or written"),
        ("SQLITE_CORRUPT_VTAB", CorruptData, r"documents.db is damaged \(its message\); restore a backup"),
        ("SQLITE_NOTADB", CorruptData, "documents.db is damaged"),
        ("SQLITE_ERROR", CorruptData, "documents.db is damaged"),
    ],
)
def test_errors_of_sqlite_say_what_to_do(name: str, expected: type[DsearchError], message: str) -> None:
    error = named(name)
    assert is_full(error) == (expected is InsufficientStorage)
    translated = translate(error, Path("/home/papers"))
    assert type(translated) is expected
    assert str(translated).startswith("/home/papers")
    with pytest.raises(expected, match=message), readable_errors(Path("/home/papers")):
        raise error


def test_other_errors_of_sqlite_stay_what_they_are() -> None:
    error = sqlite3.ProgrammingError("closed")
    with pytest.raises(sqlite3.ProgrammingError) as raised:
        translate(error, Path("x"))
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [named("SQLITE_CORRUPT", sqlite3.DatabaseError), named("SQLITE_CONSTRAINT", sqlite3.IntegrityError)],
)
def test_damage_names_its_file_and_the_way_out(error: sqlite3.Error) -> None:
    """A constraint that fails is damage: no statement of ours breaks one."""
    damaged = translate(error, Path("x"), FEEDBACK)
    assert type(damaged) is CorruptData
    assert str(Path("x") / "feedback.db") in str(damaged)
    assert damaged.hint == FEEDBACK.repair_hint


def test_a_schema_that_is_no_text_is_damage() -> None:
    with pytest.raises(CorruptData, match="its schema cannot be read"), readable_errors(Path("x")):
        b"\xff".decode()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 32, 50])
def test_rows_are_inserted_in_order_whatever_their_number(count: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, text TEXT)")
    insert_rows(connection, "kept (number, text)", [(number, f"t{number}") for number in range(count)])
    rows = connection.execute("SELECT number, text FROM kept ORDER BY rowid").fetchall()
    assert rows == [(number, f"t{number}") for number in range(count)]
    connection.close()
