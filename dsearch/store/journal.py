"""The one writer: every change of a collection is an operation, and this is how one becomes durable.

    BEGIN IMMEDIATE → the operation's statements → its facts added to the set digest, sequence + 1 → COMMIT
    (synced) → mark in the watermark (synced) → the caller gets its receipt

watermark.py has the table of crash windows. An error of the file system in or after COMMIT leaves unknown
what is on the medium, and a repeated fsync may report success for pages that the kernel has dropped (Rebello
et al. 2020, "Can applications recover from fsync failures?"). So it is never retried: the store refuses
further writes until it is opened again, and goes on reading.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..errors import CorruptData, Unavailable
from .connect import connect, translate
from .digest import add_facts
from .schema import State, read_state, write_state
from .watermark import Mark, Marks, Watermark, check_database


class Operation:
    """One write transaction in progress. `sequence` is the number it will have if it changes anything."""

    def __init__(self, connection: sqlite3.Connection, state: State) -> None:
        self.connection = connection
        self.sequence = state.sequence + 1
        self.last_row = state.last_row
        self.documents = state.documents
        self.tombstones = state.tombstones
        self._before = state
        self._facts = 0
        self._changed = False

    def add_fact(self, fact: int) -> None:
        """Count one statement into the set digest; an operation without any is a no-op and is not written."""
        self._facts += fact
        self._changed = True

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self._changed

    def outcome(self) -> State:
        """The state that the collection has when this is committed."""
        if not self._changed:
            return self._before
        return State(
            sequence=self.sequence,
            digest=add_facts(self._before.digest, self._facts),
            previous_sequence=self._before.sequence,
            previous_digest=self._before.digest,
            last_row=self.last_row,
            documents=self.documents,
            tombstones=self.tombstones,
        )


class Journal:
    """The writer's connection, its lock and the watermark."""

    def __init__(self, folder: Path, *, accept_loss: bool = False) -> None:
        """Become the writer of a collection folder; raises HomeLocked, CorruptData.

        With `accept_loss` a database that does not agree with its watermark is taken as it is. The operation
        numbers of what was lost are not used again.
        """
        self._folder = folder
        self._lock = threading.Lock()
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
                self._acknowledge(state)  # twice: both slots have to be whole again
                self._acknowledge(state)
            else:
                check_database(folder, state.marks, before=marks, after=marks)
            self._catch_up(state)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def operation(self) -> Generator[Operation]:
        """Run one operation; when the block ends without an error and changed something, it is durable."""
        with self._lock:
            if self._failure is not None:
                raise Unavailable(self._failure)
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                before = read_state(self._connection)
                self._catch_up(before)
                operation = Operation(self._connection, before)
                yield operation
                if operation.changed:
                    write_state(self._connection, operation.outcome())
                    self._commit()
                    self._acknowledge(operation.outcome())
            except sqlite3.Error as error:
                raise translate(error, self._folder) from error
            finally:
                self._roll_back()

    def close(self) -> None:
        """Close the database (which folds the write-ahead log into it) and release the lock."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._failure = f"{self._folder} was closed; open it again"
                self._connection.close()
                self._watermark.close()

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorname or "").startswith("SQLITE_IOERR"):
                self._fail(f"the commit failed ({error})")
            raise

    def _acknowledge(self, state: State) -> None:
        try:
            self._watermark.write(Mark(state.sequence, state.digest))
        except OSError as error:
            self._fail(f"the watermark could not be written ({error})")
            raise Unavailable(self._failure) from error

    def _catch_up(self, state: State) -> None:
        """Mark an operation that was committed and then cut off (a kill, an interrupt) before its mark was
        written.

        Only then may the next one begin: the watermark's argument needs a database at most one ahead.
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
