"""`Transactions`: commits to a database that has a watermark beside it, of documents or of feedback.

    BEGIN IMMEDIATE → mark what was committed and cut off → statements → COMMIT (synced) → mark (synced)

watermark.py has the table of crash windows. After an error of the file system the content of the medium is
unknown, and a repeated fsync may report success for pages that the kernel has dropped (Rebello et al. 2020,
"Can applications recover from fsync failures?"). So no write is retried: every further one is refused until
the file is opened again. A full disk is different: the kernel rejected the write and it was rolled back, so
the next one may try again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dsearch.errors import Unavailable
from dsearch.store.sqlite.connection import is_full
from dsearch.store.sqlite.watermark import MarkedState, Watermark


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
