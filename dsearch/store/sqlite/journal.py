"""Writer of a database: every change is an operation, and the journal makes operations durable.

    BEGIN IMMEDIATE → the statements of each operation, its facts added to the set digest, sequence + 1 →
    COMMIT (synced) → mark in the watermark (synced) → every caller gets its receipt

It writes documents, feedback and tasks alike; database.py has what they differ in. watermark.py has the table
of crash windows: a mark that was cut off before it was written is written before the next operation.

**Group commit.** If others wait for their turn, an operation leaves the transaction open for them; the last
in line, or the first that finds the transaction 5 ms old, commits for all. A single writer commits at once. A
failed operation is rolled back by itself (a savepoint), and the others continue.

**Errors.** After an error of the file system the content of the medium is unknown, and a repeated fsync may
report success for pages that the kernel has dropped (Rebello et al. 2020, "Can applications recover from
fsync failures?"). So no write is retried: every further one is refused until the database is opened again,
and reads continue. A full disk is different: the kernel rejected the write and it was rolled back, so the
next one may try again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path

from dsearch.errors import CorruptData, DsearchError, Unavailable
from dsearch.store.sqlite.connection import connect, is_full, raise_readable, translate
from dsearch.store.sqlite.database import DatabaseFile, MarkedState, write_state
from dsearch.store.sqlite.digest import DIGEST_BYTES, add_facts
from dsearch.store.sqlite.schema import DOCUMENTS
from dsearch.store.sqlite.watermark import (
    Watermark,
    check_database,
    require_unwritten,
    sync_folder,
    unwritable,
)

_WINDOW_S = 0.005
_NOTHING = bytes(DIGEST_BYTES)


class Journal:
    """The writer's connection, its lock and the watermark; safe in many threads.

    Nothing is opened before the first operation or `open`.
    """

    def __init__(self, folder: Path, of: DatabaseFile = DOCUMENTS) -> None:
        self._folder, self._of = folder, of
        self._lock = threading.Lock()  # held by the current writer
        self._counting = threading.Lock()
        self._waiting = 0
        self._group: CommitGroup | None = None
        self._connection: sqlite3.Connection | None = None
        self._watermark: Watermark | None = None
        self._refusal: str | None = None
        self._acknowledged = 0
        self._closed = False

    def open(self, *, accept_loss: bool = False) -> None:
        """Become the writer of the database; raises HomeLocked, CorruptData, UnsupportedFormat.

        With `accept_loss` a database that contradicts its watermark is accepted. The numbers of lost
        operations are not used again.
        """
        try:
            with self._turn():
                self._finish(self._join(accept_loss))
        except BaseException:
            self.close()
            raise

    @property
    def failed(self) -> bool:
        """True if writes are rejected: the disk failed, or the journal was closed."""
        return self._refusal is not None

    @property
    def acknowledged(self) -> int:
        """Number of the last operation that is durable and marked."""
        return self._acknowledged

    @contextmanager
    def operation(self, *, accept_loss: bool = False) -> Generator[Operation]:
        """Run one operation; when the block ends without an error and changed something, it is durable.

        With `accept_loss` a database that contradicts its watermark is accepted first.
        """
        with self._turn():
            group = self._join(accept_loss)
            try:
                yield from self._run(group)
            finally:
                if self._group is group and (self._waiting == 0 or group.age_s >= _WINDOW_S):
                    self._finish(group)
        while not group.wait(_WINDOW_S):  # the waiting writers may have been interrupted
            with self._lock:
                if self._group is group:
                    self._finish(group)

    @contextmanager
    def refusing(self, reason: str) -> Generator[None]:
        """Refuse every write (Unavailable) from here on; if the block raises, take them as before."""
        with self._turn():
            if self._group is not None:
                self._finish(self._group)
            before, self._refusal = self._refusal, reason
        try:
            yield
        except BaseException:
            with self._lock:
                self._refusal = before
            raise

    def vacuum(self) -> bool:
        """Rewrite the database without free space, and empty the write-ahead log.

        Returns True if the log was emptied; an active reader prevents it. Raises Unavailable,
        InsufficientStorage (it temporarily needs twice the space).
        """
        with self._turn():
            if self._group is not None:
                self._finish(self._group)
            self._require_writable()
            assert self._connection is not None
            try:
                self._connection.execute("VACUUM")
                (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                self._distrust(error)
                raise translate(error, self._folder, self._of) from error
        return busy == 0

    def close(self) -> None:
        """Close the database, which checkpoints the write-ahead log, and release the lock."""
        with self._lock:
            if not self._closed:
                if self._group is not None:
                    self._finish(self._group)
                self._closed = True
                self._refusal = self._refusal or f"{self._folder} was closed; open it again"
                for opened in (self._connection, self._watermark):
                    if opened is not None:
                        opened.close()

    # ---- groups

    @contextmanager
    def _turn(self) -> Generator[None]:
        with self._counting:
            self._waiting += 1
        try:
            self._lock.acquire()
        finally:
            with self._counting:
                self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    def _join(self, accept_loss: bool) -> CommitGroup:
        """Return the open group, or a new one."""
        self._require_writable()
        if self._group is not None:
            if not accept_loss:
                return self._group
            self._finish(self._group)
        try:
            self._group = group = self._begin(accept_loss)
        except BaseException as error:
            if self._connection is not None:
                roll_back(self._connection)
            self._release()
            if isinstance(error, sqlite3.Error):
                self._distrust(error)
            raise_readable(error, self._folder, self._of)
            raise
        return group

    def _run(self, group: CommitGroup) -> Generator[Operation]:
        """Execute one operation within the group atomically."""
        first = group.members == 0
        try:
            if not first:
                group.connection.execute("SAVEPOINT operation")
            operation = group.operation()
            yield operation
            if not first:
                group.connection.execute("RELEASE operation")
            group.add(operation)
        except BaseException as error:
            self._undo(group, error)
            raise_readable(error, self._folder, self._of)
            raise

    def _undo(self, group: CommitGroup, cause: BaseException) -> None:
        """Undo a failed operation; if SQLite undid the whole transaction, the group has failed."""
        if isinstance(cause, sqlite3.Error):
            self._distrust(cause)
        try:
            if group.members == 0:
                roll_back(group.connection)
            else:
                group.connection.execute("ROLLBACK TO operation")
                group.connection.execute("RELEASE operation")
                return
        except sqlite3.Error:
            roll_back(group.connection)
        self._group = None
        self._release()
        group.finish(self._explain(cause) if group.members else None)

    def _finish(self, group: CommitGroup) -> None:
        """Commit and acknowledge; every member of the group gets the outcome."""
        self._group = None
        outcome: DsearchError | None = None
        try:
            if group.state != group.committed:
                write_state(group.connection, group.state)
                self._commit(group.connection)
                self._acknowledge(group.watermark, group.state)
        except Exception as error:
            outcome = self._explain(error)
        except BaseException:
            outcome = Unavailable(
                f"{self._folder}: interrupted; this write is not acknowledged, send it again"
            )
            raise
        finally:
            roll_back(group.connection)
            self._release()
            group.finish(outcome)

    def _explain(self, error: BaseException) -> DsearchError:
        if isinstance(error, sqlite3.Error):
            return translate(error, self._folder, self._of)
        if isinstance(error, DsearchError):
            return error
        return Unavailable(f"{self._folder}: {error!r}; this write is not acknowledged, send it again")

    # ---- database and watermark

    def _begin(self, accept_loss: bool) -> CommitGroup:
        """Begin a transaction on a state that agrees with the watermark, which is locked."""
        create = accept_loss or self._of.prepare is not None
        if self._watermark is None:
            try:
                self._watermark = Watermark(self._folder, self._of, create=create)
            except OSError as error:  # a full disk, no permission
                raise unwritable(self._folder / self._of.watermark, error) from error
        watermark = self._watermark
        if self._connection is None:
            self._connection = self._opened(watermark, accept_loss)
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        state = self._of.read_state(connection, self._folder)
        problem = self._contradiction(watermark, state)
        if problem is not None:
            if not accept_loss:
                raise problem
            state = later(state, watermark, state.digest)
            write_state(connection, state)
            self._commit(connection)
            for _ in range(2):
                self._acknowledge(watermark, state)
            connection.execute("BEGIN IMMEDIATE")
        elif watermark.marks.newest.sequence < state.sequence:
            # It was committed and then cut off. The watermark's argument needs a database at most one ahead.
            self._acknowledge(watermark, state)
        self._acknowledged = state.sequence
        return CommitGroup(connection, watermark, state)

    def _contradiction(self, watermark: Watermark, state: MarkedState) -> CorruptData | None:
        if watermark.unreadable is not None:
            return watermark.unreadable
        marks = watermark.marks
        if marks.other_is_whole and (state.sequence, state.digest) == (
            marks.newest.sequence,
            marks.newest.digest,
        ):
            return None
        try:
            check_database(self._folder, state.marks, self._of, before=marks, after=marks)
        except CorruptData as error:
            return error
        return None

    def _opened(self, watermark: Watermark, accept_loss: bool) -> sqlite3.Connection:
        """Connect, and create the tables or bring an earlier format up to date."""
        prepare = self._of.prepare
        connection = connect(self._folder, writer=True, create=prepare is not None, file=self._of.file)
        try:
            if prepare is not None:
                try:
                    sync_folder(self._folder)  # both names are durable before anything is acknowledged
                except OSError as error:
                    raise Unavailable(self._fail(str(error))) from error
                connection.execute("BEGIN IMMEDIATE")
                facts = prepare(connection)
                if facts is not None:
                    self._insert_state(connection, watermark, facts, accept_loss)
                roll_back(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _insert_state(
        self, connection: sqlite3.Connection, watermark: Watermark, facts: int, accept_loss: bool
    ) -> None:
        """Commit the first state of a database: operation 0, which acknowledges nothing."""
        digest = add_facts(_NOTHING, facts)
        state = MarkedState(0, digest, 0, digest)
        if not accept_loss:
            require_unwritten(self._folder, watermark.marks, self._of)
        if watermark.marks.newest.sequence == 0:  # before the commit: a crash leaves marks of nothing
            for _ in range(2):
                self._acknowledge(watermark, state)
        connection.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?)", astuple(state))
        self._commit(connection)

    def _release(self) -> None:
        """Unlock the watermark of a database that others may write to."""
        if self._of.shared and self._watermark is not None:
            self._watermark.close()
            self._watermark = None

    def _commit(self, connection: sqlite3.Connection) -> None:
        """Commit; raises SQLite's error, after which nothing more is written unless the disk was full."""
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            roll_back(connection)
            if not is_full(error):
                self._fail(f"the commit failed ({error})")
            raise

    def _acknowledge(self, watermark: Watermark, state: MarkedState) -> None:
        """Mark a committed state."""
        try:
            watermark.write(state.marks[0])
        except OSError as error:
            raise Unavailable(self._fail(f"the watermark could not be written ({error})")) from error
        self._acknowledged = state.sequence

    # ---- trust in the disk

    def _require_writable(self) -> None:
        if self._refusal is not None:
            raise Unavailable(self._refusal)

    def _distrust(self, error: sqlite3.Error) -> None:
        """Refuse further writes if this is an error of the disk; a large transaction syncs before COMMIT."""
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_IOERR") and not is_full(error):
            self._fail(f"the disk failed ({error})")

    def _fail(self, reason: str) -> str:
        """Refuse further writes; the message."""
        self._refusal = f"{self._folder / self._of.file}: a write failed ({reason}); {self._of.refused}"
        return self._refusal


def later(state: MarkedState, watermark: Watermark, digest: bytes) -> MarkedState:
    """Return the state after one more operation.

    Its number is past all that the watermark has seen: where writes were lost, none is used twice.
    """
    sequence = max(state.sequence, watermark.marks.newest.sequence) + 1
    previous = {"previous_sequence": state.sequence, "previous_digest": state.digest}
    return replace(state, sequence=sequence, digest=digest, **previous)


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction, if there is one: a full disk may have ended it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class Operation:
    """One change in progress.

    `before` is its initial state, `committed` the state before its group.

    Attributes:
        connection: in the group's transaction.
        sequence: the number that the operation has if it changes anything.
        counters: further columns of the row of state, to be changed in place.
    """

    def __init__(self, connection: sqlite3.Connection, before: MarkedState, committed: MarkedState) -> None:
        self.connection = connection
        self.sequence = before.sequence + 1
        self.counters = before.counters()
        self._before = before
        self._committed = committed
        self._digest, self._facts = before.digest, 0
        self._changed = False

    def add_fact(self, fact: int) -> None:
        """Add one fact to the set digest; an operation without facts is a no-op and is not written."""
        self._facts += fact
        self._changed = True

    def add_facts(self, facts: Sequence[int]) -> None:
        """Add several facts, or none."""
        if facts:
            self.add_fact(sum(facts))

    def take_fact(self, fact: int) -> None:
        """Remove a fact from the set digest."""
        self.add_fact(-fact)

    def recount(self, facts: int) -> None:
        """Let the set digest be the sum of `facts`, whatever it was; for a loss that is accepted."""
        self._digest, self._facts, self._changed = _NOTHING, facts, True

    @property
    def changed(self) -> bool:
        """True if there is anything to commit."""
        return self._changed

    @property
    def reached(self) -> int:
        """The sequence of `outcome`."""
        return self.sequence if self._changed else self._before.sequence

    def outcome(self) -> MarkedState:
        """State of the database after the commit."""
        if not self._changed:
            return self._before
        return type(self._before)(
            self.sequence,
            add_facts(self._digest, self._facts),
            self._committed.sequence,
            self._committed.digest,
            **self.counters,
        )


class CommitGroup:
    """Operations of one transaction. All of them are acknowledged or none is."""

    def __init__(self, connection: sqlite3.Connection, watermark: Watermark, committed: MarkedState) -> None:
        self.connection, self.watermark = connection, watermark
        self._opened_s = time.monotonic()
        self._done = threading.Event()
        self._error: DsearchError | None = None
        self.committed = committed
        self.state = committed
        self.members = 0

    @property
    def age_s(self) -> float:
        """Seconds since the first operation began."""
        return time.monotonic() - self._opened_s

    def operation(self) -> Operation:
        """Begin the next operation of the group."""
        return Operation(self.connection, self.state, self.committed)

    def add(self, operation: Operation) -> None:
        """Add an operation whose statements are executed."""
        self.state = operation.outcome()
        self.members += 1

    def finish(self, error: DsearchError | None) -> None:
        """Give the members the outcome."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the outcome; return False on timeout. Raises the error that prevented acknowledgement."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            # each thread raises its own copy
            raise type(self._error)(*self._error.args, hint=self._error.hint) from self._error
        return True
