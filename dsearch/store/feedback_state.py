"""Which operation `feedback.db` is at, its format, and the words for what its watermark misses."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from ..errors import CorruptData, UnsupportedFormat
from .feedback_rows import damaged
from .watermark import Mark, Marked

FEEDBACK_FILE = "feedback.db"
FEEDBACK = Marked(
    "feedback.watermark",
    FEEDBACK_FILE,
    "clicks and judgements",
    "documents and searches are whole; go on with what is there: dsearch feedback clear --damaged",
)
FORMAT = 2
OLDEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class FeedbackState:
    """The row of table `state`: the last operation and the one before it, with the set digests then."""

    sequence: int
    digest: bytes
    previous_sequence: int
    previous_digest: bytes

    @property
    def marks(self) -> tuple[Mark, Mark]:
        """What the watermark may say beside this: this operation, or the one before."""
        return Mark(self.sequence, self.digest), Mark(self.previous_sequence, self.previous_digest)

    def later(self, sequence: int, digest: bytes) -> FeedbackState:
        """The state after an operation of this number."""
        return FeedbackState(sequence, digest, self.sequence, self.digest)


def read_state(connection: sqlite3.Connection, path: Path) -> FeedbackState | None:
    """The row of table `state`; None in a file of format 1. Raises UnsupportedFormat, CorruptData."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    if row is None or row[0] not in (str(OLDEST_FORMAT), str(FORMAT)):
        found = "unknown" if row is None else row[0]
        raise UnsupportedFormat(
            f"{path} has feedback format {found}; this release reads {OLDEST_FORMAT} to {FORMAT}: "
            "use the release that wrote it to export it"
        )
    if row[0] == str(OLDEST_FORMAT):
        return None
    row = connection.execute(
        "SELECT sequence, digest, previous_sequence, previous_digest FROM state"
    ).fetchone()
    if row is None or [type(value) for value in row] != [int, bytes, int, bytes]:
        raise damaged_file(path, "the row of its table `state` is not what was written")
    return FeedbackState(*row)


def insert_state(connection: sqlite3.Connection, state: FeedbackState) -> None:
    """Bring a file of format 1 up to the present one; part of a transaction."""
    values = (state.sequence, state.digest, state.previous_sequence, state.previous_digest)
    connection.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?)", values)
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('format', ?)", (str(FORMAT),))


def write_state(connection: sqlite3.Connection, state: FeedbackState) -> None:
    """Write the row of table `state`; part of the operation's own transaction."""
    connection.execute(
        "UPDATE state SET sequence = ?, digest = ?, previous_sequence = ?, previous_digest = ?",
        (state.sequence, state.digest, state.previous_sequence, state.previous_digest),
    )


def damaged_file(path: Path, why: str) -> CorruptData:
    """The error that a file which SQLite cannot read raises, or one row of it that Python cannot."""
    if "decode to UTF-8" in why:
        return damaged()
    return CorruptData(
        f"{path} is damaged ({why}); move it and {FEEDBACK.file_name} away (documents are not in them) and "
        "go on without them"
    )
