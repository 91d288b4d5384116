"""`DatabaseFile`: what documents, feedback and tasks say of their databases; the code that runs them is one.

Each has a row of table `state` with the last operation and the set digest then (`MarkedState`), a counter of
its own, and a watermark beside it (watermark.py). journal.py writes to it. Feedback never advances the
sequence of the documents, which answers, cursors and gradients are pinned to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from dsearch.errors import Command, CorruptData
from dsearch.store.sqlite.digest import DIGEST_BYTES, add_facts


@dataclass(frozen=True, slots=True)
class WatermarkEntry:
    """Operation `sequence` was acknowledged, and the facts of the collection then summed to `digest`."""

    sequence: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class MarkedState:
    """The row of table `state`: the last operation and the one before it, with the set digests then.

    Subclasses have further columns, which are counters.
    """

    sequence: int
    digest: bytes
    previous_sequence: int
    previous_digest: bytes

    @property
    def marks(self) -> tuple[WatermarkEntry, WatermarkEntry]:
        """Marks that are consistent with this state: this operation, or the one before after a crash."""
        return WatermarkEntry(self.sequence, self.digest), WatermarkEntry(
            self.previous_sequence, self.previous_digest
        )

    def counters(self) -> dict[str, int]:
        """The further columns."""
        return {}


@dataclass(frozen=True, slots=True)
class DatabaseFile:
    """A database with a watermark: its files, its tables, who may write, and words for messages.

    Attributes:
        file: name of the database's file.
        watermark: name of the watermark's file.
        written: noun for its writes.
        remedy: advice after a loss.
        repair: advice for a damaged file.
        refused: consequence of a failed write.
        hint: command that goes with `remedy`.
        repair_hint: command that goes with `repair`.
        state: its row of table `state`.
        prepare: creates the tables, or brings an earlier format up to date, and returns the sum of the facts
            of all rows; None if nothing was to be done. None for a database that is created as a whole.
        shared: any process may write, and locks the watermark for one transaction; otherwise for as long as
            it is open.
        patience_s: time to wait for another writer; None refuses at once.
    """

    file: str
    watermark: str
    written: str
    remedy: str
    repair: str
    refused: str
    hint: Command | None = None
    repair_hint: Command | None = None
    state: type[MarkedState] = MarkedState
    prepare: Callable[[sqlite3.Connection], int | None] | None = None
    shared: bool = False
    patience_s: float | None = None

    def lost(self, problem: str) -> CorruptData:
        """Create the error of a loss, with the remedy."""
        return CorruptData(f"{problem}; {self.remedy}", hint=self.hint)

    def damaged(self, folder: Path, why: str) -> CorruptData:
        """Create the error of a file that cannot be read."""
        return CorruptData(f"{folder / self.file} is damaged ({why}); {self.repair}", hint=self.repair_hint)

    def read_state(self, connection: sqlite3.Connection, folder: Path) -> MarkedState:
        """Read the row of table `state`; raises CorruptData where it is not what was written."""
        state = read_row(connection, self.state)
        if state is None:
            raise self.damaged(folder, "the row of its table `state` is not what was written")
        return state

    def require_facts(self, folder: Path, state: MarkedState, facts: int) -> None:
        """Compare the sum of the facts of all rows with the set digest; raises CorruptData."""
        if add_facts(bytes(DIGEST_BYTES), facts) != state.digest:
            raise self.lost(f"{folder / self.file} does not hold the rows that were acknowledged")


AnyState = TypeVar("AnyState", bound=MarkedState)


def read_row(connection: sqlite3.Connection, kind: type[AnyState]) -> AnyState | None:
    """Read the row of table `state`; None where it is not what was written."""
    columns = fields(kind)
    names = ", ".join(column.name for column in columns)
    row = connection.execute(f"SELECT {names} FROM state").fetchone()
    # One flipped bit in the header of SQLite's record makes a number NULL, or a text.
    if row is None or [type(value).__name__ for value in row] != [column.type for column in columns]:
        return None
    return kind(*row)


def write_state(connection: sqlite3.Connection, state: MarkedState) -> None:
    """Write the row of table `state`; part of the operation's own transaction."""
    names = [column.name for column in fields(state)]
    connection.execute(
        f"UPDATE state SET {', '.join(f'{name} = ?' for name in names)}",
        [getattr(state, name) for name in names],
    )
