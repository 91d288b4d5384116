"""Single writer: every change of a collection is an operation, and the journal makes operations durable.

    BEGIN IMMEDIATE → the statements of each operation, its facts added to the set digest, sequence + 1 →
    COMMIT (synced) → mark in the watermark (synced) → every caller gets its receipt

**Group commit.** If others wait for their turn, an operation leaves the transaction open for them; the last
in line, or the first that finds the transaction 5 ms old, commits for all. A single writer commits at once. A
failed operation is rolled back by itself (a savepoint), and the others continue.

**Errors.** connection.py: after an error of the disk the store rejects further writes until it is opened
again, and continues to read; after a full disk the next write may try again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dsearch.errors import CorruptData, DsearchError, Unavailable
from dsearch.store.sqlite.connection import Transactions, connect, readable_errors, roll_back, translate
from dsearch.store.sqlite.digest import add_facts
from dsearch.store.sqlite.schema import State, read_state
from dsearch.store.sqlite.watermark import Watermark, WatermarkSlots, check_database, later, write_state

_WINDOW_S = 0.005
_REFUSED = (
    "this write is not acknowledged and no more are taken. Searches go on. Check the disk and open the "
    "collection again"
)


class Journal:
    """The writer's connection, its lock and the watermark."""

    def __init__(self, folder: Path, *, accept_loss: bool = False) -> None:
        """Become the writer of a collection folder; raises HomeLocked, CorruptData.

        With `accept_loss` a database that contradicts its watermark is accepted. The numbers of lost
        operations are not used again.
        """
        self._folder = folder
        self._lock = threading.Lock()  # held by the current writer
        self._counting = threading.Lock()
        self._waiting = 0
        self._group: CommitGroup | None = None
        self._transactions = Transactions(folder, _REFUSED)
        self._closed = False
        self._watermark = Watermark(folder, replace_unreadable=accept_loss)
        try:
            self._connection = connect(folder, writer=True)
        except BaseException:
            self._watermark.close()
            raise
        try:
            state = read_state(self._connection)
            marks = self._watermark.marks
            if accept_loss and not _agrees(folder, marks, state):
                state = later(state, self._watermark, state.digest)
                self._connection.execute("BEGIN IMMEDIATE")
                write_state(self._connection, state)
                self._transactions.finish(self._connection, self._watermark, state, marks=2)
            else:
                check_database(folder, state.marks, before=marks, after=marks)
                self._transactions.catch_up(self._watermark, state)
        except BaseException:
            self.close()
            raise

    @property
    def failed(self) -> bool:
        """True if writes are rejected: the disk failed, or the journal was closed."""
        return self._transactions.refusal is not None

    @property
    def acknowledged(self) -> int:
        """Number of the last operation that is durable and marked."""
        return self._watermark.marks.newest.sequence

    @contextmanager
    def operation(self) -> Generator[Operation]:
        """Run one operation; when the block ends without an error and changed something, it is durable."""
        with self._turn():
            group = self._join()
            try:
                yield from self._run(group)
            finally:
                if self._group is group and (self._waiting == 0 or group.age_s >= _WINDOW_S):
                    self._finish(group)
        while not group.wait(_WINDOW_S):  # the waiting writers may have been interrupted
            with self._lock:
                if self._group is group:
                    self._finish(group)

    def vacuum(self) -> bool:
        """Rewrite the database without free space, and empty the write-ahead log.

        Returns True if the log was emptied; an active reader prevents it. Raises Unavailable,
        InsufficientStorage (it temporarily needs twice the space).
        """
        with self._turn():
            if self._group is not None:
                self._finish(self._group)
            self._transactions.require_writable()
            with readable_errors(self._folder), self._transactions.distrusting():
                self._connection.execute("VACUUM")
                (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return busy == 0

    def close(self) -> None:
        """Close the database, which checkpoints the write-ahead log, and release the lock."""
        with self._lock:
            if not self._closed:
                if self._group is not None:
                    self._finish(self._group)
                self._closed = True
                self._transactions.refusal = f"{self._folder} was closed; open it again"
                self._connection.close()
                self._watermark.close()

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

    def _join(self) -> CommitGroup:
        """Return the open group, or a new one."""
        self._transactions.require_writable()
        if self._group is not None:
            return self._group
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            state = read_state(self._connection)
            self._transactions.catch_up(self._watermark, state)
            self._group = group = CommitGroup(self._connection, state)
        except BaseException as error:
            roll_back(self._connection)
            if isinstance(error, sqlite3.Error):
                raise translate(error, self._folder) from error
            raise
        return group

    def _run(self, group: CommitGroup) -> Generator[Operation]:
        """Execute one operation within the group atomically."""
        first = group.members == 0
        try:
            if not first:
                self._connection.execute("SAVEPOINT operation")
            operation = group.operation()
            yield operation
            if not first:
                self._connection.execute("RELEASE operation")
            group.add(operation)
        except BaseException as error:
            self._undo(group, error)
            if isinstance(error, sqlite3.Error):
                raise translate(error, self._folder) from error
            raise

    def _undo(self, group: CommitGroup, cause: BaseException) -> None:
        """Undo a failed operation; if SQLite undid the whole transaction, the group has failed."""
        if isinstance(cause, sqlite3.Error):
            self._transactions.distrust(cause)
        try:
            if group.members == 0:
                roll_back(self._connection)
            else:
                self._connection.execute("ROLLBACK TO operation")
                self._connection.execute("RELEASE operation")
                return
        except sqlite3.Error:
            roll_back(self._connection)
        self._group = None
        group.finish(self._explain(cause) if group.members else None)

    def _finish(self, group: CommitGroup) -> None:
        """Commit and acknowledge; every member of the group gets the outcome."""
        self._group = None
        outcome: DsearchError | None = None
        try:
            if group.state != group.committed:
                write_state(self._connection, group.state)
                self._transactions.finish(self._connection, self._watermark, group.state)
        except Exception as error:
            outcome = self._explain(error)
        except BaseException:
            outcome = Unavailable(
                f"{self._folder}: interrupted; this write is not acknowledged, send it again"
            )
            raise
        finally:
            roll_back(self._connection)
            group.finish(outcome)

    def _explain(self, error: BaseException) -> DsearchError:
        if isinstance(error, sqlite3.Error):
            return translate(error, self._folder)
        if isinstance(error, DsearchError):
            return error
        return Unavailable(f"{self._folder}: {error!r}; this write is not acknowledged, send it again")


def _agrees(folder: Path, marks: WatermarkSlots, state: State) -> bool:
    try:
        check_database(folder, state.marks, before=marks, after=marks)
    except CorruptData:
        return False
    return True


class Operation:
    """One change of the collection in progress. `sequence` is the number it has if it changes anything.

    `before` is its initial state, `committed` the state before its group.
    """

    def __init__(self, connection: sqlite3.Connection, before: State, committed: State) -> None:
        self.connection = connection
        self.sequence = before.sequence + 1
        self.last_row = before.last_row
        self.documents = before.documents
        self.tombstones = before.tombstones
        self._before = before
        self._committed = committed
        self._facts = 0
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

    @property
    def changed(self) -> bool:
        """True if there is anything to commit."""
        return self._changed

    @property
    def reached(self) -> int:
        """The sequence of `outcome`."""
        return self.sequence if self._changed else self._before.sequence

    def outcome(self) -> State:
        """State of the collection after the commit."""
        if not self._changed:
            return self._before
        return State(
            sequence=self.sequence,
            digest=add_facts(self._before.digest, self._facts),
            previous_sequence=self._committed.sequence,
            previous_digest=self._committed.digest,
            last_row=self.last_row,
            documents=self.documents,
            tombstones=self.tombstones,
        )


class CommitGroup:
    """Operations of one transaction. All of them are acknowledged or none is."""

    def __init__(self, connection: sqlite3.Connection, committed: State) -> None:
        self._connection = connection
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
        return Operation(self._connection, self.state, self.committed)

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
