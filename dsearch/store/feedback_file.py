"""`FeedbackFile`: `feedback.db` as a file: its format, its transactions, its watermark.

A transaction is: lock the watermark → BEGIN IMMEDIATE → hold the database against the marks → the change, its
facts added to the set digest, sequence + 1 → COMMIT (synced) → mark (synced) → unlock. What can be cut off in
between, and what it looks like afterwards, is the table in watermark.py; the next writer marks what had been
committed. Unlike the documents' writer this one holds the lock for one transaction, so that a command can
clear feedback beside a running server.

Format 1 had no sequence and no watermark. Such a file is read as it is, and its first writer brings it up to
format 2: marks of operation 0 are written before that is committed, so an upgrade or a creation that was cut
off is known by them. Operation 0 acknowledges nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import CorruptData, Unavailable, UnsupportedFormat
from .backup import copy_database
from .connect import connect, is_full, readable_errors
from .digest import DIGEST_BYTES, add_facts
from .feedback_rows import TABLES, all_facts, damaged
from .watermark import (
    Mark,
    Marked,
    Marks,
    Watermark,
    check_database,
    create_watermark,
    read_watermark,
    sync_folder,
)

FEEDBACK_FILE = "feedback.db"
FEEDBACK = Marked(
    "feedback.watermark",
    FEEDBACK_FILE,
    "clicks and judgements",
    "documents and searches are whole; go on with what is there: dsearch feedback clear --damaged",
)
FORMAT = 2
OLDEST_FORMAT = 1
_PATIENCE_S = 10.0
_NOTHING = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class _State:
    """The row of table `state`: the last operation and the one before it."""

    sequence: int
    digest: bytes
    previous_sequence: int
    previous_digest: bytes

    @property
    def marks(self) -> tuple[Mark, Mark]:
        return Mark(self.sequence, self.digest), Mark(self.previous_sequence, self.previous_digest)

    def later(self, sequence: int, digest: bytes) -> _State:
        return _State(sequence, digest, self.sequence, self.digest)


@dataclass(slots=True)
class Change:
    """A transaction at work: rows are written through `connection`, and their facts added here."""

    connection: sqlite3.Connection
    facts: int = 0


class FeedbackFile:
    """The feedback of one collection folder, to be read and written in transactions; safe in many threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._failure: str | None = None

    @property
    def path(self) -> Path:
        """Of the database."""
        return self._folder / FEEDBACK_FILE

    @property
    def there(self) -> bool:
        """Whether there is feedback, or was."""
        return self.path.is_file() or (self._folder / FEEDBACK.file_name).is_file()

    @contextmanager
    def writing(self, *, accept_loss: bool = False) -> Generator[Change]:
        """A transaction, durable when the block has ended; nothing of it stays when the block raises.

        Args:
            accept_loss: go on with the rows that are there in the end, though acknowledged ones are missing.

        Raises:
            CorruptData: acknowledged rows are missing, or the file is damaged.
            InsufficientStorage, Unavailable, UnsupportedFormat.
        """
        with self._lock, self._errors():
            if self._failure is not None:
                raise Unavailable(self._failure)
            made = not (self._folder / FEEDBACK.file_name).exists()
            watermark = Watermark(self._folder, FEEDBACK, replace_unreadable=True, patience_s=_PATIENCE_S)
            with closing(watermark):
                if made:
                    sync_folder(self._folder)
                yield from self._change(watermark, accept_loss)

    def vacuum(self) -> None:
        """Write the file anew, without what was deleted, and empty its log."""
        with self._lock, self._errors():
            connection = self._connection()
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection | None]:
        """A read transaction of its own; None when nothing was ever written.

        Raises:
            CorruptData: acknowledged rows are missing, or the file is damaged.
            UnsupportedFormat, Unavailable.
        """
        before = self._marks()
        if not self.path.is_file():
            self._require_nothing_lost(before)
            yield None
            return
        with self._errors(), closing(connect(self._folder, writer=False, file=FEEDBACK_FILE)) as connection:
            connection.execute("BEGIN")
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                self._require_nothing_lost(before)
                yield None  # a first write was cut off
                return
            state = self.state(connection)
            if state is None:
                self._require_nothing_lost(before)
            else:
                after = read_watermark(self._folder, FEEDBACK)
                # Without marks before, this is the first transaction: it was committed after we had looked.
                marks = Marks(state.marks[0], 0, other_is_whole=True) if before is None else before
                check_database(self._folder, state.marks, before=marks, after=after, of=FEEDBACK)
            yield connection

    def require_rows(self, connection: sqlite3.Connection) -> None:
        """Hold all rows that a read transaction sees against the set digest; raises CorruptData."""
        state = self.state(connection)
        if state is not None and add_facts(_NOTHING, all_facts(connection)) != state.digest:
            raise CorruptData(f"{self.path} does not hold the rows that were acknowledged; {FEEDBACK.remedy}")

    def stop_writing(self) -> None:
        """Refuse every further write (Unavailable)."""
        with self._lock:
            self._failure = f"{self.path}: its collection was replaced by another; open that one"

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    # ---- inside

    def _change(self, watermark: Watermark, accept_loss: bool) -> Generator[Change]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            state = self._checked(connection, watermark, accept_loss)
            change, before = Change(connection), connection.total_changes
            yield change
            changed = accept_loss or connection.total_changes != before
            if changed:
                digest = (
                    add_facts(_NOTHING, all_facts(connection))
                    if accept_loss  # the rows that are there count, whatever was before
                    else add_facts(state.digest, change.facts)
                )
                # Past whatever the watermark has seen: a number is not used twice.
                state = state.later(max(state.sequence, watermark.marks.newest.sequence) + 1, digest)
                _write_state(connection, state)
        except BaseException:
            if connection.in_transaction:  # a full disk may have ended it
                connection.execute("ROLLBACK")
            raise
        self._commit(connection)
        if changed:
            self._mark(watermark, state)
            if accept_loss:
                self._mark(watermark, state)  # both slots have to be whole again

    def _checked(self, connection: sqlite3.Connection, watermark: Watermark, accept_loss: bool) -> _State:
        """The state that a transaction starts from, after bringing an older file up to the present format."""
        state = self.state(connection)
        if state is None:
            if not accept_loss:
                self._require_nothing_lost(watermark.marks)
            state = _State(0, digest := add_facts(_NOTHING, all_facts(connection)), 0, digest)
            if watermark.marks.newest.sequence == 0:
                self._mark(watermark, state)
                self._mark(watermark, state)
            connection.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?)", (0, digest, 0, digest))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('format', ?)", (str(FORMAT),))
            return state
        if accept_loss:
            return state
        if watermark.unreadable is not None:
            raise watermark.unreadable
        marks = watermark.marks
        check_database(self._folder, state.marks, before=marks, after=marks, of=FEEDBACK)
        if marks.newest.sequence < state.sequence:  # a writer was cut off between its commit and its mark
            self._mark(watermark, state)
        return state

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not is_full(error):
                # What is on the medium is not known, and asking again may be answered by the cache alone.
                self._fail(error)
            raise

    def _mark(self, watermark: Watermark, state: _State) -> None:
        try:
            watermark.write(state.marks[0])
        except OSError as error:
            raise Unavailable(self._fail(error)) from error

    def _fail(self, error: Exception) -> str:
        self._failure = (
            f"{self.path}: a write failed ({error}); feedback is refused until this process is "
            "started again, searches go on"
        )
        return self._failure

    def _marks(self) -> Marks | None:
        """What the watermark says; None where it was never written, or not to its end."""
        try:
            return read_watermark(self._folder, FEEDBACK)
        except CorruptData:
            return None

    def _require_nothing_lost(self, marks: Marks | None) -> None:
        """Of a file without a state, that no operation was ever acknowledged; raises CorruptData."""
        if marks is not None and marks.newest.sequence > 0:
            raise CorruptData(
                f"{self._folder}: acknowledged {FEEDBACK.written} are missing: {FEEDBACK_FILE} has none, "
                f"but its watermark shows {marks.newest.sequence} writes; {FEEDBACK.remedy}"
            )

    def _connection(self) -> sqlite3.Connection:
        """The writer's, opened when it is first needed."""
        if self._writer is None:
            connection = connect(self._folder, writer=True, create=True, file=FEEDBACK_FILE)
            try:
                connection.execute("BEGIN IMMEDIATE")
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (str(OLDEST_FORMAT),))
                connection.execute("COMMIT")
                sync_folder(self._folder)
            except BaseException:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def state(self, connection: sqlite3.Connection) -> _State | None:
        """The row of table `state`; None in a file of format 1. Raises UnsupportedFormat, CorruptData."""
        row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if row is None or row[0] not in (str(OLDEST_FORMAT), str(FORMAT)):
            found = "unknown" if row is None else row[0]
            raise UnsupportedFormat(
                f"{self.path} has feedback format {found}; this release reads {OLDEST_FORMAT} to {FORMAT}: "
                "use the release that wrote it to export it"
            )
        if row[0] == str(OLDEST_FORMAT):
            return None
        row = connection.execute(
            "SELECT sequence, digest, previous_sequence, previous_digest FROM state"
        ).fetchone()
        if row is None or [type(value) for value in row] != [int, bytes, int, bytes]:
            raise self._damaged("the row of its table `state` is not what was written")
        return _State(*row)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            with readable_errors(self.path, self._damaged):
                yield
        except sqlite3.Error as error:  # no constraint of this file can fail but by damage
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> CorruptData:
        if "decode to UTF-8" in why:
            return damaged()
        return CorruptData(
            f"{self.path} is damaged ({why}); move it and {FEEDBACK.file_name} away (documents are not in "
            "them) and go on without them"
        )


def copy_feedback(source: Path, target: Path) -> None:
    """Copy the feedback of a collection folder into another, of one state, while others write to it.

    What is known to be lost in the one is known to be lost in the other.

    Raises:
        CorruptData: the database cannot be read.
        InsufficientStorage.
    """
    marked = source / FEEDBACK.file_name
    content = marked.read_bytes() if marked.is_file() else None
    file, state = FeedbackFile(source), None
    try:
        with file.reading() as connection:
            if connection is not None:
                with closing(sqlite3.connect(target / FEEDBACK_FILE)) as copy:
                    connection.backup(copy)
                state = file.state(connection)
    except CorruptData:
        if file.path.is_file():
            copy_database(file.path, target / FEEDBACK_FILE)
        if content is not None:
            (target / FEEDBACK.file_name).write_bytes(content)
    else:
        if state is not None:
            create_watermark(target, state.marks[0], FEEDBACK)
    sync_folder(target)


def _write_state(connection: sqlite3.Connection, state: _State) -> None:
    connection.execute(
        "UPDATE state SET sequence = ?, digest = ?, previous_sequence = ?, previous_digest = ?",
        (state.sequence, state.digest, state.previous_sequence, state.previous_digest),
    )
