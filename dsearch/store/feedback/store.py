"""`FeedbackStore`: a collection's `feedback.db` with clicks and the pages they refer to.

It is written by the same journal as documents.db (sqlite/journal.py), with a counter of its own. It is a file
of its own, so that it can be cleared by any process while a server runs, and losing it loses no document.
When `record` returns, the events are durable.

- **Only pages with a reaction are stored.** A page of hits is recorded with the first event about it.
- **Idempotent.** An event has an id among those of its key; sent again it is counted as repeated.
- **Bounded** in events of one key and in bytes; above a bound writes are rejected until feedback is cleared.
- **Damage is detected** on reading: every row is stored with the SHA-256 of its content, and the number of
  each key's events is stored separately. Errors of SQLite itself are reported as such. The watermark detects
  acknowledged rows that vanished without a trace: dropped by a flipped bit in the log, or by an old copy put
  in place of the file.
- **Cleared is gone**: rows are overwritten (`secure_delete`), the file is rebuilt, its log emptied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsearch.errors import Command, CorruptData, InsufficientStorage, UnsupportedFormat, amount
from dsearch.store.backup import copy_database
from dsearch.store.feedback.records import Event, Impression
from dsearch.store.feedback.rows import (
    FEEDBACK,
    FORMAT,
    all_facts,
    count_again,
    damaged,
    delete_damaged,
    delete_events,
    events_of,
    every_impression,
    find_impression,
    format_of,
    insert_event,
    insert_impression,
    require_complete,
    used_bytes,
)
from dsearch.store.sqlite.connection import connect, readable_errors
from dsearch.store.sqlite.journal import Journal
from dsearch.store.sqlite.watermark import (
    WatermarkSlots,
    check_reading,
    create_watermark,
    read_watermark,
    require_unwritten,
    sync_folder,
)

MAX_EVENTS_OF_KEY = 200_000
MAX_BYTES = 1 << 30


class FeedbackFull(InsufficientStorage):
    """The feedback of a collection, or of one key, has reached its limit."""

    code = "feedback_full"


@dataclass(frozen=True, slots=True)
class StoredEvents:
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
        folder: folder of the collection. The first write creates the file.
        max_events_of_key: largest number of events of one key; further ones are rejected.
        max_bytes: largest size of the file; above it every write is rejected.
    """

    def __init__(
        self, folder: Path, *, max_events_of_key: int = MAX_EVENTS_OF_KEY, max_bytes: int = MAX_BYTES
    ):
        self._folder = folder
        self._max_events_of_key, self._max_bytes = max_events_of_key, max_bytes
        self._journal = Journal(folder, FEEDBACK)

    # ---- write

    def record(self, impressions: Sequence[Impression], events: Sequence[Event]) -> StoredEvents:
        """Write events and the impressions that they belong to, all or none; durable on return.

        Args:
            impressions: those that are there already are left as they are.
            events: those that are there already are counted.

        Raises:
            Conflict: an id of an event or a query is in use for another one.
            FeedbackFull, InsufficientStorage, Unavailable, CorruptData.
        """
        with self._journal.operation() as operation:
            connection = operation.connection
            operation.add_facts([fact for one in impressions if (fact := insert_impression(connection, one))])
            new: list[Event] = []
            counts: dict[str, int] = {}
            for event in events:
                if fact := insert_event(connection, event):
                    operation.add_fact(fact)
                    new.append(event)
                    counts[event.key] = counts.get(event.key, 0) + 1
            for key, count in counts.items():
                self._count(connection, key, count)
            if new and used_bytes(connection) > self._max_bytes:
                raise FeedbackFull(
                    f"the feedback of {self._folder.name!r} has reached {self._max_bytes} bytes; make room",
                    hint=Command("feedback clear", ("-c", self._folder.name, "--older-than", "DAYS")),
                )
        return StoredEvents(len(new), len(events) - len(new))

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
            damaged: only rows that are not what was written; that acknowledged ones are missing is accepted,
                as it is when all are deleted.

        Returns:
            How many events (of damaged rows: how many rows) were deleted.
        """
        if not any((self._folder / name).is_file() for name in (FEEDBACK.file, FEEDBACK.watermark)):
            return 0
        everything = key is None and client_id is None and before_s is None
        accept_loss = damaged or everything
        with self._journal.operation(accept_loss=accept_loss) as operation:
            connection = operation.connection
            if damaged:
                deleted, facts = delete_damaged(connection), 0
            else:
                deleted, facts = delete_events(connection, key=key, client_id=client_id, before_s=before_s)
            facts += count_again(connection)
            if accept_loss:  # the rows that are there count, whatever was before
                operation.recount(all_facts(connection))
            elif facts:
                operation.take_fact(facts)
        self._journal.vacuum()
        return deleted

    def replacement(self) -> AbstractContextManager[None]:
        """Refuse every write (Unavailable) from here on, since the block copies the file for its successor.

        If the block raises, there is no successor, and writes are taken as before.
        """
        place = self._folder / FEEDBACK.file
        return self._journal.refusing(f"{place}: its collection was replaced by another; open that one")

    def close(self) -> None:
        """Close the file; later writes are refused."""
        self._journal.close()

    # ---- read

    def impression(self, query_id: str) -> Impression | None:
        """The impression of this id, or None.

        Raises:
            CorruptData: it is not what was written.
        """
        with self.reading() as connection:
            return None if connection is None else find_impression(connection, query_id)

    def pages(self) -> Iterator[Page]:
        """Every impression with its events, in the order of their ids; one state of the file.

        Raises:
            CorruptData: a row is not what was written, or rows are missing.
        """
        with self.reading() as connection:
            if connection is None:
                return
            require_complete(connection)
            if format_of(connection) == FORMAT:
                state = FEEDBACK.read_state(connection, self._folder)
                FEEDBACK.require_facts(self._folder, state, all_facts(connection))
            for impression in every_impression(connection):
                yield Page(impression, events_of(connection, impression.query_id))

    def loss(self) -> str | None:
        """Damage that opening the file reveals, in words; None if there is none.

        `damage` reads every row.
        """
        try:
            with self.reading():
                return None
        except (CorruptData, UnsupportedFormat) as error:
            return str(error)

    def damage(self) -> tuple[str, ...]:
        """The problem in words; empty when there is none."""
        problem = self.problem()
        return () if problem is None else (str(problem),)

    def problem(self) -> CorruptData | UnsupportedFormat | None:
        """First damage that a full read reveals."""
        try:
            for _ in self.pages():
                pass
        except (CorruptData, UnsupportedFormat) as error:
            return error
        return None

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
            "bytes": path.stat().st_size if (path := self._folder / FEEDBACK.file).is_file() else 0,
        }

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection | None]:
        """Open a read transaction; None when nothing was ever written.

        Raises:
            CorruptData: acknowledged rows are missing, or the file is damaged.
            UnsupportedFormat, Unavailable.
        """
        before = _marks(self._folder)
        if not (self._folder / FEEDBACK.file).is_file():
            require_unwritten(self._folder, before, FEEDBACK)
            yield None
            return
        with (
            readable_errors(self._folder, FEEDBACK),
            closing(connect(self._folder, writer=False, file=FEEDBACK.file)) as connection,
        ):
            connection.execute("BEGIN")
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and format_of(connection) == FORMAT:
                check_reading(connection, self._folder, FEEDBACK, before=before)
            else:
                require_unwritten(self._folder, before, FEEDBACK)
            yield connection if tables else None  # a first write was cut off

    # ---- inside

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
                f"key {key!r} has {amount(events - more, 'event')} in {self._folder.name!r} and may have "
                f"{self._max_events_of_key}; make room",
                hint=Command("feedback clear", ("-c", self._folder.name, "--key", key)),
            )


def copy_feedback(source: Path, target: Path) -> None:
    """Copy the feedback of a collection folder into another, of one state, while others write to it.

    What is known to be lost in the one is known to be lost in the other. A copy that an interrupted call left
    in `target` is replaced.

    Raises:
        CorruptData: the database cannot be read.
        InsufficientStorage.
    """
    database, watermark = FEEDBACK.file, FEEDBACK.watermark
    for name in (database, f"{database}-wal", f"{database}-shm", watermark):
        (target / name).unlink(missing_ok=True)
    marked = (source / watermark).read_bytes() if (source / watermark).is_file() else None
    try:
        with FeedbackStore(source).reading() as connection:
            if connection is not None:
                with closing(sqlite3.connect(target / database)) as copy:
                    connection.backup(copy)
                if format_of(connection) == FORMAT:
                    create_watermark(target, FEEDBACK.read_state(connection, source).marks[0], FEEDBACK)
    except CorruptData:
        if (source / database).is_file():
            copy_database(source / database, target / database)
        if marked is not None:
            (target / watermark).write_bytes(marked)
    sync_folder(target)


def _marks(folder: Path) -> WatermarkSlots | None:
    """Marks of the watermark; None if it was never written, or not completely."""
    try:
        return read_watermark(folder, FEEDBACK)
    except CorruptData:
        return None
