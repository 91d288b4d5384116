"""`MarkedState`: the row of table `state` in a database that has a watermark beside it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from dsearch.store.sqlite.watermark import Watermark, WatermarkEntry


@dataclass(frozen=True, slots=True)
class MarkedState:
    """The row of table `state`: the last operation and the one before it, with the set digests then.

    Subclasses have further columns.
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


AnyState = TypeVar("AnyState", bound=MarkedState)


def later(state: AnyState, watermark: Watermark, digest: bytes) -> AnyState:
    """Return the state after one more operation.

    Its number is past all that the watermark has seen: where writes were lost, none is used twice.
    """
    sequence = max(state.sequence, watermark.marks.newest.sequence) + 1
    previous = {"previous_sequence": state.sequence, "previous_digest": state.digest}
    return replace(state, sequence=sequence, digest=digest, **previous)


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
