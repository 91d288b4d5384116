"""`FeedbackFile`: `feedback.db` as a file: its format, its transactions, its watermark.

A transaction is: lock the watermark → compare the database with the marks → the change, committed and marked
by `Transactions` → unlock. Unlike the documents' writer this one holds the lock for one transaction only, so
that a command can clear feedback beside a running server.

Format 1 had no sequence and no watermark. Such a file is read as it is, and its first writer upgrades it to
format 2. Marks of operation 0 are written before the upgrade is committed, so they reveal an interrupted
upgrade or creation. Operation 0 acknowledges nothing.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsearch.errors import CorruptData, Unavailable
from dsearch.store.backup import copy_database
from dsearch.store.feedback.rows import (
    FEEDBACK,
    FEEDBACK_FILE,
    OLDEST_FORMAT,
    TABLES,
    all_facts,
    damaged_file,
    insert_state,
    read_state,
)
from dsearch.store.sqlite.connection import Transactions, connect, readable_errors, roll_back
from dsearch.store.sqlite.digest import DIGEST_BYTES, add_facts
from dsearch.store.sqlite.watermark import (
    MarkedState,
    Watermark,
    WatermarkSlots,
    check_database,
    create_watermark,
    later,
    read_watermark,
    sync_folder,
    unwritable,
    write_state,
)

_PATIENCE_S = 10.0
_NOTHING = bytes(DIGEST_BYTES)
_REFUSED = "feedback is refused until this process is started again, searches go on"


@dataclass(slots=True)
class FeedbackTransaction:
    """A transaction at work: rows are written through `connection`, and their facts added here."""

    connection: sqlite3.Connection
    facts: int = 0


class FeedbackFile:
    """The feedback of one collection folder, to be read and written in transactions; safe in many threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._transactions = Transactions(self.path, _REFUSED)

    @property
    def path(self) -> Path:
        """Path of the database."""
        return self._folder / FEEDBACK_FILE

    @property
    def exists(self) -> bool:
        """True if there is feedback, or was."""
        return self.path.is_file() or (self._folder / FEEDBACK.file_name).is_file()

    @contextmanager
    def writing(self, *, accept_loss: bool = False) -> Generator[FeedbackTransaction]:
        """A transaction, durable when the block has ended; nothing of it stays when the block raises.

        Args:
            accept_loss: go on with the rows that are there in the end, though acknowledged ones are missing.

        Raises:
            CorruptData: acknowledged rows are missing, or the file is damaged.
            InsufficientStorage, Unavailable, UnsupportedFormat.
        """
        with self._lock, self._errors(), self._transactions.distrusting():
            self._transactions.require_writable()
            with closing(self._watermark()) as watermark:
                yield from self._change(watermark, accept_loss)

    def vacuum(self) -> None:
        """Write the file anew, without what was deleted, and empty its log."""
        with self._lock, self._errors(), self._transactions.distrusting():
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
            state = read_state(connection, self.path)
            if state is None:
                self._require_nothing_lost(before)
            else:
                after = read_watermark(self._folder, FEEDBACK)
                # Without marks before, this is the first transaction: it was committed after we had looked.
                marks = WatermarkSlots(state.marks[0], 0, other_is_whole=True) if before is None else before
                check_database(self._folder, state.marks, before=marks, after=after, of=FEEDBACK)
            yield connection

    def require_rows(self, connection: sqlite3.Connection) -> None:
        """Hold all rows that a read transaction sees against the set digest; raises CorruptData."""
        state = read_state(connection, self.path)
        if state is not None and add_facts(_NOTHING, all_facts(connection)) != state.digest:
            raise FEEDBACK.lost(f"{self.path} does not hold the rows that were acknowledged")

    @contextmanager
    def replacement(self) -> Generator[None]:
        """Refuse every write (Unavailable) from here on; if the block raises, take them as before."""
        with self._lock:
            before = self._transactions.refusal
            self._transactions.refusal = f"{self.path}: its collection was replaced by another; open that one"
        try:
            yield
        except BaseException:
            with self._lock:
                self._transactions.refusal = before
            raise

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    # ---- inside

    def _watermark(self) -> Watermark:
        """Open and locked; its name is durable."""
        created = not (self._folder / FEEDBACK.file_name).exists()
        try:
            watermark = Watermark(self._folder, FEEDBACK, replace_unreadable=True, patience_s=_PATIENCE_S)
        except OSError as error:  # nothing was begun: a full disk, no permission
            raise unwritable(self.path, error) from error
        if created:
            try:
                self._sync_folder()
            except BaseException:
                watermark.close()
                raise
        return watermark

    def _sync_folder(self) -> None:
        try:
            sync_folder(self._folder)
        except OSError as error:
            raise Unavailable(self._transactions.fail(str(error))) from error

    def _change(self, watermark: Watermark, accept_loss: bool) -> Generator[FeedbackTransaction]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            state = self._checked(connection, watermark, accept_loss)
            change, before = FeedbackTransaction(connection), connection.total_changes
            yield change
            if accept_loss or connection.total_changes != before:
                # When a loss is accepted, the rows that are there count, whatever was before.
                facts = all_facts(connection) if accept_loss else change.facts
                state = later(state, watermark, add_facts(_NOTHING if accept_loss else state.digest, facts))
                write_state(connection, state)
                self._transactions.finish(connection, watermark, state, marks=2 if accept_loss else 1)
            else:
                self._transactions.commit(connection)
        finally:
            roll_back(connection)

    def _checked(
        self, connection: sqlite3.Connection, watermark: Watermark, accept_loss: bool
    ) -> MarkedState:
        """The state that a transaction starts from, after bringing an older file up to the present format."""
        state = read_state(connection, self.path)
        if state is None:
            if not accept_loss:
                self._require_nothing_lost(watermark.marks)
            state = MarkedState(0, digest := add_facts(_NOTHING, all_facts(connection)), 0, digest)
            if watermark.marks.newest.sequence == 0:
                for _ in range(2):
                    self._transactions.acknowledge(watermark, state)
            insert_state(connection, state)
            return state
        if accept_loss:
            return state
        if watermark.unreadable is not None:
            raise watermark.unreadable
        marks = watermark.marks
        check_database(self._folder, state.marks, before=marks, after=marks, of=FEEDBACK)
        self._transactions.catch_up(watermark, state)
        return state

    def _marks(self) -> WatermarkSlots | None:
        """Marks of the watermark; None if it was never written, or not completely."""
        try:
            return read_watermark(self._folder, FEEDBACK)
        except CorruptData:
            return None

    def _require_nothing_lost(self, marks: WatermarkSlots | None) -> None:
        """Check that no operation on a file without a state was ever acknowledged; raises CorruptData."""
        if marks is not None and marks.newest.sequence > 0:
            raise FEEDBACK.lost(
                f"{self._folder}: acknowledged {FEEDBACK.written} are missing: {FEEDBACK_FILE} has none, "
                f"but its watermark shows {marks.newest.sequence} writes"
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
                self._sync_folder()
            except BaseException:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            with readable_errors(self.path, self._damaged):
                yield
        except sqlite3.Error as error:  # no constraint of this file can fail but by damage
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> CorruptData:
        return damaged_file(self.path, why)


def copy_feedback(source: Path, target: Path) -> None:
    """Copy the feedback of a collection folder into another, of one state, while others write to it.

    What is known to be lost in the one is known to be lost in the other. A copy that an interrupted call left
    in `target` is replaced.

    Raises:
        CorruptData: the database cannot be read.
        InsufficientStorage.
    """
    for name in (FEEDBACK_FILE, f"{FEEDBACK_FILE}-wal", f"{FEEDBACK_FILE}-shm", FEEDBACK.file_name):
        (target / name).unlink(missing_ok=True)
    marked = source / FEEDBACK.file_name
    content = marked.read_bytes() if marked.is_file() else None
    file, state = FeedbackFile(source), None
    try:
        with file.reading() as connection:
            if connection is not None:
                with closing(sqlite3.connect(target / FEEDBACK_FILE)) as copy:
                    connection.backup(copy)
                state = read_state(connection, file.path)
    except CorruptData:
        if file.path.is_file():
            copy_database(file.path, target / FEEDBACK_FILE)
        if content is not None:
            (target / FEEDBACK.file_name).write_bytes(content)
    else:
        if state is not None:
            create_watermark(target, state.marks[0], FEEDBACK)
    sync_folder(target)
