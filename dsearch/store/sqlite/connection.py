"""Connections to `documents.db`: setup, sharing between threads, and translation of SQLite's errors.

Never `open()` documents.db by other means in a process that has it open through SQLite. Closing such a file
drops SQLite's POSIX locks (sqlite.org/howtocorrupt.html, section 2.2). A program that embeds dsearch may do
it all the same, by copying a home that it has open. So that no acknowledged write is lost then, a reader
that finds a log never deletes it (`connect`).

Rows are inserted in blocks, many with one statement. A statement costs as much in Python and in locking as
its row costs in SQLite, and other threads get Python's lock between two statements.

`Transactions`: commits to a database that has a watermark beside it, of documents or of feedback.

    BEGIN IMMEDIATE → mark what was committed and cut off → statements → COMMIT (synced) → mark (synced)

watermark.py has the table of crash windows. After an error of the file system the content of the medium is
unknown, and a repeated fsync may report success for pages that the kernel has dropped (Rebello et al. 2020,
"Can applications recover from fsync failures?"). So no write is retried: every further one is refused until
the file is opened again. A full disk is different: the kernel rejected the write and it was rolled back, so
the next one may try again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from dsearch.errors import CorruptData, DsearchError, InsufficientStorage, Unavailable
from dsearch.store.sqlite.schema import FILE_NAME, PAGE_BYTES
from dsearch.store.sqlite.watermark import MarkedState, Watermark

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def reading(self) -> ReadTransaction:
        """Lend a connection inside a read transaction; raises CorruptData or Unavailable."""
        return ReadTransaction(self, self._folder)

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
        return connect(self._folder, writer=False)

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

    __slots__ = "_connection", "_folder", "_pool"

    def __init__(self, pool: ReaderPool, folder: Path) -> None:
        self._pool, self._folder = pool, folder
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
            raise_readable(error, self._folder)


Damaged = Callable[[str], CorruptData]
"""SQLite's message of a damaged file → the error with the remedy."""


@contextmanager
def readable_errors(place: Path, damaged: Damaged | None = None) -> Generator[None]:
    """Translate SQLite's errors to dsearch's; see `translate`."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise_readable(error, place, damaged)


def raise_readable(error: BaseException, place: Path, damaged: Damaged | None = None) -> None:
    """Raise dsearch's error in place of one of SQLite; return for any other."""
    if isinstance(error, sqlite3.Error):
        raise translate(error, place, damaged) from error
    if isinstance(error, UnicodeDecodeError):  # SQLite's message about a damaged schema is not UTF-8
        raise (damaged or _documents_at(place))("its schema cannot be read") from error


def is_full(error: sqlite3.Error) -> bool:
    """True if the error means a full disk, including no space for the index of the write-ahead log (-shm)."""
    return (getattr(error, "sqlite_errorname", "") or "").startswith(("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"))


def translate(error: sqlite3.Error, place: Path, damaged: Damaged | None = None) -> DsearchError:
    """Translate an SQLite error to a dsearch error.

    Args:
        error: SQLite's error.
        place: file or collection folder of the error.
        damaged: creates the error of a damaged file; that of the collection's documents when None.

    Raises:
        sqlite3.Error: any other error, which is a bug.
    """
    name = getattr(error, "sqlite_errorname", "") or ""
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
    # For example a missing table, or an impossible length.
    if corrupt or isinstance(error, (sqlite3.OperationalError, sqlite3.DataError)):
        return (damaged or _documents_at(place))(str(error))
    raise error


def _documents_at(folder: Path) -> Damaged:
    def damaged(why: str) -> CorruptData:
        return CorruptData(f"{folder}: documents.db is damaged ({why}); restore a backup, or index again")

    return damaged


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


class Transactions:
    """Commits and acknowledges the transactions of one file; remembers when its disk is not to be trusted.

    Args:
        place: file or folder, for messages.
        consequence: what a failed write means for later ones, for messages.
    """

    def __init__(self, place: Path, consequence: str) -> None:
        self._place, self._consequence = place, consequence
        self.refusal: str | None = None

    def require_writable(self) -> None:
        """Return if writes are taken; raises Unavailable."""
        if self.refusal is not None:
            raise Unavailable(self.refusal)

    def finish(
        self, connection: sqlite3.Connection, watermark: Watermark, state: MarkedState, *, marks: int = 1
    ) -> None:
        """Commit and mark: now the operation is acknowledged.

        Args:
            connection: in a transaction whose last statement wrote `state`.
            watermark: its file, locked.
            state: the state after the transaction.
            marks: number of slots to write; 2 where both have to be whole again.
        """
        self.commit(connection)
        for _ in range(marks):
            self.acknowledge(watermark, state)

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit; raises SQLite's error, after which nothing more is written unless the disk was full."""
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            roll_back(connection)
            if not is_full(error):
                self.fail(f"the commit failed ({error})")
            raise

    def acknowledge(self, watermark: Watermark, state: MarkedState) -> None:
        """Mark a committed state."""
        try:
            watermark.write(state.marks[0])
        except OSError as error:
            raise Unavailable(self.fail(f"the watermark could not be written ({error})")) from error

    def catch_up(self, watermark: Watermark, state: MarkedState) -> None:
        """Mark an operation that was committed and then cut off (a kill, an interrupt) before its mark.

        Only then may the next one begin: the watermark's argument needs a database at most one ahead.
        """
        if watermark.marks.newest.sequence < state.sequence:
            self.acknowledge(watermark, state)

    @contextmanager
    def distrusting(self) -> Generator[None]:
        """Refuse further writes after an error of the disk inside the block."""
        try:
            yield
        except sqlite3.Error as error:
            self.distrust(error)
            raise

    def distrust(self, error: sqlite3.Error) -> None:
        """Refuse further writes if this is an error of the disk; a large transaction syncs before COMMIT."""
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_IOERR") and not is_full(error):
            self.fail(f"the disk failed ({error})")

    def fail(self, reason: str) -> str:
        """Refuse further writes; the message."""
        self.refusal = f"{self._place}: a write failed ({reason}); {self._consequence}"
        return self.refusal


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction, if there is one: a full disk may have ended it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
