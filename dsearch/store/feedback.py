"""`FeedbackStore`: a collection's `feedback.db`, what was clicked and the pages that it was clicked on.

Apart from documents.db: it can be cleared, copied or left out of a backup by itself, and losing it loses no
document. SQLite in WAL mode, synced at every commit: what `record` returned from is on the medium.

- **Only what somebody reacted to is written down.** A page of hits gets here with the first event about it.
- **Idempotent.** An event has an id among those of its key; sent again it is counted as repeated.
- **Bounded** in events of one key and in bytes; then writes are refused until something is cleared.
- **Damage is noticed** when it is read: every row stands beside the SHA-256 of its content, and the number of
  each key's events is kept apart. What SQLite itself cannot read is reported as such. Rows that vanished
  together with their count (an old copy put in place of the file) are not noticed: there is no watermark.
- **Cleared is gone**: rows are overwritten (`secure_delete`), the file is rebuilt, its log emptied.

Any process may write; SQLite's lock takes them one by one. So `dsearch feedback clear` works while a server
runs.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CorruptData, InsufficientStorage, Unavailable, UnsupportedFormat
from .connect import connect, readable_errors
from .feedback_records import Event, Impression
from .feedback_rows import (
    TABLES,
    count_again,
    damaged,
    delete_damaged,
    events_of,
    every_impression,
    find_impression,
    insert_event,
    insert_impression,
    require_complete,
    used_bytes,
)
from .watermark import sync_folder

FEEDBACK_FILE = "feedback.db"
FORMAT = 1
MAX_EVENTS_OF_KEY = 200_000
MAX_BYTES = 1 << 30


class FeedbackFull(InsufficientStorage):
    """The feedback of a collection, or of one key, has reached its limit."""

    code = "feedback_full"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Acknowledged events: how many are new, and how many had been sent before."""

    events: int
    repeated: int


@dataclass(frozen=True, slots=True)
class Page:
    """An impression and the events about it, in the order of their arrival."""

    impression: Impression
    events: tuple[Event, ...]


class FeedbackStore:
    """The feedback of one collection; safe in many threads.

    Args:
        folder: of the collection. The file is made by the first write.
        max_events_of_key: more of one key are refused.
        max_bytes: of the file; then every write is.
    """

    def __init__(
        self, folder: Path, *, max_events_of_key: int = MAX_EVENTS_OF_KEY, max_bytes: int = MAX_BYTES
    ):
        self._folder = folder
        self._max_events_of_key, self._max_bytes = max_events_of_key, max_bytes
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._failure: str | None = None

    # ---- write

    def record(self, impressions: Sequence[Impression], events: Sequence[Event]) -> Recorded:
        """Write events and the impressions that they belong to, all or none; durable on return.

        Args:
            impressions: those that are there already are left as they are.
            events: those that are there already are counted.

        Raises:
            Conflict: an id of an event or a query is in use for another one.
            FeedbackFull, InsufficientStorage, Unavailable, CorruptData.
        """
        with self._writing() as connection:
            for one in impressions:
                insert_impression(connection, one)
            new = [one for one in events if insert_event(connection, one)]
            counts: dict[str, int] = {}
            for one in new:
                counts[one.key] = counts.get(one.key, 0) + 1
            for key, count in counts.items():
                self._count(connection, key, count)
            if new and used_bytes(connection) > self._max_bytes:
                raise FeedbackFull(
                    f"the feedback of {self._folder.name!r} has reached {self._max_bytes} bytes; make room "
                    f"with: dsearch feedback clear -c {self._folder.name} --older-than DAYS"
                )
        return Recorded(len(new), len(events) - len(new))

    def clear(
        self,
        *,
        key: str | None = None,
        client_id: str | None = None,
        before_s: float | None = None,
        damaged: bool = False,
    ) -> int:
        """Delete events, then impressions that none refers to any more; all of them when nothing is named.

        Args:
            key: only those of this key.
            client_id: only those of this client.
            before_s: only those received before this time (seconds since 1970).
            damaged: only rows that are not what was written.

        Returns:
            How many events (of damaged rows: how many rows) were deleted.
        """
        if not self._path.is_file():
            return 0
        with self._writing() as connection:
            if damaged:
                deleted = delete_damaged(connection)
            else:
                conditions = {"key = ?": key, "client_id = ?": client_id, "received_s < ?": before_s}
                given = {text: value for text, value in conditions.items() if value is not None}
                where = " AND ".join(given) or "1"
                deleted = connection.execute(
                    f"DELETE FROM event WHERE {where}", tuple(given.values())
                ).rowcount
            count_again(connection)
        with self._lock, self._errors():
            connection = self._connection()
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return deleted

    def stop_writing(self) -> None:
        """Refuse every further write (Unavailable): the file is about to be replaced by a copy."""
        with self._lock:
            self._failure = f"{self._path}: its collection was replaced by another; open that one"

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    # ---- read

    def impression(self, query_id: str) -> Impression | None:
        """The impression of this id, or None.

        Raises:
            CorruptData: it is not what was written.
        """
        with self._reading() as connection:
            return None if connection is None else find_impression(connection, query_id)

    def pages(self) -> Iterator[Page]:
        """Every impression with its events, in the order of their ids; one state of the file.

        Raises:
            CorruptData: a row is not what was written, or rows are missing.
        """
        with self._reading() as connection:
            if connection is None:
                return
            require_complete(connection)
            for impression in every_impression(connection):
                yield Page(impression, events_of(connection, impression.query_id))

    def stats(self) -> dict[str, Any]:
        """Counts, as JSON: impressions, randomised ones, events by action, keys, bytes, first and last."""
        impressions = randomised = 0
        actions: dict[str, int] = {}
        keys: dict[str, int] = {}
        received: list[float] = []
        for page in self.pages():
            impressions += 1
            randomised += page.impression.pair is not None
            for event in page.events:
                actions[event.action] = actions.get(event.action, 0) + 1
                keys[event.key] = keys.get(event.key, 0) + 1
                received.append(event.received_s)
        return {
            "impressions": impressions,
            "randomised": randomised,
            "events": sum(actions.values()),
            "actions": dict(sorted(actions.items())),
            "keys": len(keys),
            "largest_key": max(keys.values(), default=0),
            "first_s": min(received, default=None),
            "last_s": max(received, default=None),
            "bytes": self._path.stat().st_size if self._path.is_file() else 0,
        }

    # ---- inside

    @property
    def _path(self) -> Path:
        return self._folder / FEEDBACK_FILE

    def _count(self, connection: sqlite3.Connection, key: str, more: int) -> None:
        connection.execute(
            "INSERT INTO contributor VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET events = events + ?",
            (key, more, more),
        )
        (events,) = connection.execute("SELECT events FROM contributor WHERE key = ?", (key,)).fetchone()
        if not isinstance(events, int):
            raise damaged()
        if events > self._max_events_of_key:
            raise FeedbackFull(
                f"key {key!r} has {events - more} events in {self._folder.name!r} and may have "
                f"{self._max_events_of_key}; make room with: "
                f"dsearch feedback clear -c {self._folder.name} --key {key}"
            )

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """A transaction; nothing of it stays when the block raises."""
        with self._lock, self._errors():
            if self._failure is not None:
                raise Unavailable(self._failure)
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                if connection.in_transaction:  # a full disk may have ended it
                    connection.execute("ROLLBACK")
                raise
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                # What is on the medium now is not known, and asking again may be answered by the cache alone.
                self._failure = (
                    f"{self._path}: a write failed ({error}); feedback is refused until this process is "
                    "started again, searches go on"
                )
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection | None]:
        """A read transaction of its own; None when there is no file."""
        if not self._path.is_file():
            yield None
            return
        with self._errors():
            connection = connect(self._folder, writer=False, file=FEEDBACK_FILE)
            try:
                self._require_format(connection)
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()

    def _connection(self) -> sqlite3.Connection:
        """The writer's, opened when it is first needed."""
        if self._writer is None:
            connection = connect(self._folder, writer=True, create=True, file=FEEDBACK_FILE)
            try:
                connection.execute("BEGIN IMMEDIATE")
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (str(FORMAT),))
                connection.execute("COMMIT")
                self._require_format(connection)
                sync_folder(self._folder)
            except BaseException:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def _require_format(self, connection: sqlite3.Connection) -> None:
        row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if row is None or row[0] != str(FORMAT):
            found = "unknown" if row is None else row[0]
            raise UnsupportedFormat(
                f"{self._path} has feedback format {found}; this release reads {FORMAT}: use the release "
                "that wrote it to export it"
            )

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            with readable_errors(self._path, self._damaged):
                yield
        except sqlite3.Error as error:  # no constraint of this file can fail but by damage
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> CorruptData:
        if "decode to UTF-8" in why:
            return damaged()
        return CorruptData(
            f"{self._path} is damaged ({why}); move it away (documents are not in it) and go on without it"
        )
