"""Single writer: every change of a collection is an operation, and the journal makes operations durable.

    BEGIN IMMEDIATE → the statements of each operation, its facts added to the set digest, sequence + 1 →
    COMMIT (synced) → mark in the watermark (synced) → every caller gets its receipt

**Group commit.** If others wait for their turn, an operation leaves the transaction open for them; the last
in line, or the first that finds the transaction 5 ms old, commits for all. A single writer commits at once. A
failed operation is rolled back by itself (a savepoint), and the others continue.

**Errors.** watermark.py has the table of crash windows. After an error of the file system in or after COMMIT
the content of the medium is unknown, and a repeated fsync may report success for pages that the kernel has
dropped (Rebello et al. 2020, "Can applications recover from fsync failures?"). So it is never retried: the
store rejects further writes until it is opened again, and continues to read. A full disk is different: the
kernel rejected the write and it was rolled back, so the next write may try again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dsearch.errors import CorruptData, DsearchError, Unavailable
from dsearch.store.sqlite.connection import connect, is_full, translate
from dsearch.store.sqlite.digest import add_facts
from dsearch.store.sqlite.schema import State, read_state, write_state
from dsearch.store.sqlite.watermark import Mark, Marks, Watermark, check_database

_WINDOW_S = 0.005


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
        self._failure: str | None = None
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
                state = self._jump(state)
                self._acknowledge(state)  # twice, to make both slots valid
                self._acknowledge(state)
            else:
                check_database(folder, state.marks, before=marks, after=marks)
            self._catch_up(state)
        except BaseException:
            self.close()
            raise

    @property
    def failed(self) -> bool:
        """True if writes are rejected: the disk failed, or the journal was closed."""
        return self._failure is not None

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
            if self._failure is not None:
                raise Unavailable(self._failure)
            try:
                self._connection.execute("VACUUM")
                (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                self._distrust(error)
                raise translate(error, self._folder) from error
        return busy == 0

    def close(self) -> None:
        """Close the database, which checkpoints the write-ahead log, and release the lock."""
        with self._lock:
            if not self._closed:
                if self._group is not None:
                    self._finish(self._group)
                self._closed = True
                self._failure = f"{self._folder} was closed; open it again"
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
        if self._failure is not None:
            raise Unavailable(self._failure)
        if self._group is not None:
            return self._group
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            state = read_state(self._connection)
            self._catch_up(state)
            self._group = group = CommitGroup(self._connection, state)
        except BaseException as error:
            self._roll_back()
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
        if isinstance(cause, sqlite3.OperationalError):
            self._distrust(cause)  # a large transaction begins its log before COMMIT
        try:
            if group.members == 0:
                self._roll_back()
            else:
                self._connection.execute("ROLLBACK TO operation")
                self._connection.execute("RELEASE operation")
                return
        except sqlite3.Error:
            self._roll_back()
        self._group = None
        group.finish(self._explain(cause) if group.members else None)

    def _finish(self, group: CommitGroup) -> None:
        """Commit and acknowledge; every member of the group gets the outcome."""
        self._group = None
        outcome: DsearchError | None = None
        try:
            if group.state != group.committed:
                write_state(self._connection, group.state)
                self._commit()
                self._acknowledge(group.state)
        except Exception as error:
            outcome = self._explain(error)
        except BaseException:
            outcome = Unavailable(
                f"{self._folder}: interrupted; this write is not acknowledged, send it again"
            )
            raise
        finally:
            self._roll_back()
            group.finish(outcome)

    def _explain(self, error: BaseException) -> DsearchError:
        if isinstance(error, sqlite3.Error):
            return translate(error, self._folder)
        if isinstance(error, DsearchError):
            return error
        return Unavailable(f"{self._folder}: {error!r}; this write is not acknowledged, send it again")

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorname or "").startswith("SQLITE_IOERR") and not is_full(error):
                self._fail(f"the commit failed ({error})")
            raise

    def _distrust(self, error: sqlite3.OperationalError) -> None:
        if "FSYNC" in (error.sqlite_errorname or ""):
            self._fail(f"the disk failed ({error})")

    def _acknowledge(self, state: State) -> None:
        try:
            self._watermark.write(Mark(state.sequence, state.digest))
        except OSError as error:
            self._fail(f"the watermark could not be written ({error})")
            raise Unavailable(self._failure) from error

    def _catch_up(self, state: State) -> None:
        """Mark an operation that was committed, but interrupted before its mark was written.

        The next one must wait for that: the watermark requires a database at most one operation ahead.
        """
        if self._watermark.marks.newest.sequence < state.sequence:
            self._acknowledge(state)

    def _jump(self, state: State) -> State:
        sequence = max(state.sequence, self._watermark.marks.newest.sequence) + 1
        state = replace(
            state, sequence=sequence, previous_sequence=state.sequence, previous_digest=state.digest
        )
        self._connection.execute("BEGIN IMMEDIATE")
        write_state(self._connection, state)
        self._connection.execute("COMMIT")
        return state

    def _fail(self, reason: str) -> None:
        self._failure = (
            f"{self._folder}: {reason}; this write is not acknowledged and no more are taken. "
            "Searches go on. Check the disk and open the collection again"
        )

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _agrees(folder: Path, marks: Marks, state: State) -> bool:
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
