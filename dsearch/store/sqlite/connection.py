"""Connections to databases: setup, sharing between threads, and translation of SQLite's errors.

Never `open()` such a file by other means in a process that has it open through SQLite. Closing such a file
drops SQLite's POSIX locks (sqlite.org/howtocorrupt.html, section 2.2). A program that embeds dsearch may do
it all the same, by copying a home that it has open. So that no acknowledged write is lost then, a reader
that finds a log never deletes it (`connect`).

Rows are inserted in blocks, many with one statement. A statement costs as much in Python and in locking as
its row costs in SQLite, and other threads get Python's lock between two statements.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from dsearch.errors import DsearchError, InsufficientStorage, Unavailable
from dsearch.store.sqlite.database import DatabaseFile
from dsearch.store.sqlite.schema import DOCUMENTS, FILE_NAME, PAGE_BYTES

_BUSY_TIMEOUT_S = 10.0
_WAL_LIMIT_BYTES = 64 * 1024 * 1024


def connect(folder: Path, *, writer: bool, create: bool = False, file: str = FILE_NAME) -> sqlite3.Connection:
    """Open a database of a collection folder in autocommit mode; transactions are begun explicitly.

    Closing the last connection deletes the write-ahead log. A reader that finds a log may not be the last,
    even if SQLite finds no lock of the writer's: it is opened read-only, and SQLite deletes nothing then.
    Without a log it is opened read-write, with `query_only` set, so that it leaves no empty log behind. The
    same holds where a read-only connection fails: after a crash that it cannot recover from, and on damage,
    which the first read then reports.
    """
    place = (folder / file).absolute()
    if writer:
        return _opened(place, "rwc" if create else "rw", _WRITER)
    if place.with_name(f"{place.name}-wal").exists():
        with suppress(sqlite3.Error):
            return _opened(place, "ro", (*_READER, "SELECT count(*) FROM sqlite_master"))
    return _opened(place, "rw", _READER)


_BOTH = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON")
_WRITER = (
    *_BOTH,
    f"PRAGMA page_size = {PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA secure_delete = ON",
    f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}",
)
_READER = (*_BOTH, "PRAGMA query_only = ON")


def _opened(place: Path, mode: str, statements: Sequence[str]) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(place))}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # the pool gives a connection to one thread at a time
    )
    try:
        for statement in statements:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


class ReaderPool:
    """Pool of read connections, one for each concurrent reader; a read is one transaction."""

    def __init__(self, folder: Path, of: DatabaseFile = DOCUMENTS) -> None:
        self._folder, self._of = folder, of
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def reading(self) -> ReadTransaction:
        """Lend a connection inside a read transaction; raises CorruptData or Unavailable."""
        return ReadTransaction(self, self._folder, self._of)

    def close(self) -> None:
        """Close all idle connections; those in use are closed on return."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def take(self) -> sqlite3.Connection:
        """Lend a connection in autocommit mode; the borrower gives it back."""
        with self._lock:
            if self._closed:
                raise Unavailable(f"{self._folder} was closed; open it again")
            if self._idle:
                return self._idle.pop()
        return connect(self._folder, writer=False, file=self._of.file)

    def give(self, connection: sqlite3.Connection) -> None:
        """Take a connection back, out of its transaction."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
            return
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


class ReadTransaction:
    """A read transaction on a connection of the pool; every answer begins one, so no generator does it."""

    __slots__ = "_connection", "_folder", "_of", "_pool"

    def __init__(self, pool: ReaderPool, folder: Path, of: DatabaseFile) -> None:
        self._pool, self._folder, self._of = pool, folder, of
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection = connection = self._pool.take()
            connection.execute("BEGIN")
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return connection

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._connection is not None:
            self._pool.give(self._connection)
        if error is not None:
            raise_readable(error, self._folder, self._of)


@contextmanager
def readable_errors(folder: Path, of: DatabaseFile = DOCUMENTS) -> Generator[None]:
    """Translate SQLite's errors to dsearch's; see `translate`."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise_readable(error, folder, of)


def raise_readable(error: BaseException, folder: Path, of: DatabaseFile = DOCUMENTS) -> None:
    """Raise dsearch's error in place of one of SQLite; return for any other."""
    if isinstance(error, sqlite3.Error):
        raise translate(error, folder, of) from error
    if isinstance(error, UnicodeDecodeError):  # SQLite's message about a damaged schema is not UTF-8
        raise of.damaged(folder, "its schema cannot be read") from error


def is_full(error: sqlite3.Error) -> bool:
    """True if the error means a full disk, including no space for the index of the write-ahead log (-shm)."""
    return (getattr(error, "sqlite_errorname", "") or "").startswith(("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"))


def translate(error: sqlite3.Error, folder: Path, of: DatabaseFile = DOCUMENTS) -> DsearchError:
    """Translate an SQLite error to a dsearch error.

    Args:
        error: SQLite's error.
        folder: folder of the database.
        of: the database.

    Raises:
        sqlite3.Error: any other error, which is a bug.
    """
    name, place = getattr(error, "sqlite_errorname", "") or "", folder / of.file
    if is_full(error):
        return InsufficientStorage(
            f"{place}: the disk is full; nothing of this write was kept. Free space and send it again; "
            "until then writes are refused and searches go on"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Unavailable(f"{place}: another process holds the database; try again")
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")):
        return Unavailable(
            f"{place}: the database cannot be read or written ({error}); check disk and permissions"
        )
    corrupt = name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "decode to UTF-8" in str(error)
    # For example a missing table, an impossible length, or a constraint that only damage can break.
    if corrupt or isinstance(error, (sqlite3.OperationalError, sqlite3.DataError, sqlite3.IntegrityError)):
        return of.damaged(folder, str(error))
    raise error


_BLOCK_ROWS = 16


def insert_rows(connection: sqlite3.Connection, into: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows, each with as many values as there are columns; `into` is a table, or table and columns."""
    if not rows:
        return
    whole = len(rows) - len(rows) % _BLOCK_ROWS
    for start in range(0, whole, _BLOCK_ROWS):
        values = chain.from_iterable(rows[start : start + _BLOCK_ROWS])
        connection.execute(_statement(into, len(rows[0]), _BLOCK_ROWS), tuple(values))
    if whole < len(rows):
        connection.executemany(_statement(into, len(rows[0]), 1), rows[whole:])


@cache
def _statement(into: str, columns: int, rows: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"INSERT INTO {into} VALUES {','.join([row] * rows)}"
