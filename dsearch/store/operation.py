"""Write operations: what one changes, and the group of them that becomes durable by one commit."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence

from ..errors import DsearchError
from .digest import add_facts
from .schema import State


class Operation:
    """One change of the collection in progress. `sequence` is the number it has if it changes anything.

    `before` is the state that it starts from, `committed` the one before its group.
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
        """Count one statement into the set digest; an operation without any is a no-op and is not written."""
        self._facts += fact
        self._changed = True

    def add_facts(self, facts: Sequence[int]) -> None:
        """Count several statements in, or none."""
        if facts:
            self.add_fact(sum(facts))

    def take_fact(self, fact: int) -> None:
        """Take a statement that held until now out of the set digest."""
        self.add_fact(-fact)

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self._changed

    @property
    def reached(self) -> int:
        """The sequence of `outcome`."""
        return self.sequence if self._changed else self._before.sequence

    def outcome(self) -> State:
        """The state that the collection has when this is committed."""
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


class Group:
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
        """The next operation of the group."""
        return Operation(self._connection, self.state, self.committed)

    def add(self, operation: Operation) -> None:
        """Count in an operation whose statements are all executed."""
        self.state = operation.outcome()
        self.members += 1

    def finish(self, error: DsearchError | None) -> None:
        """Let the members know how it ended."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended, within that time. Raises what kept it from being acknowledged."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error  # each thread has its own to raise
        return True
