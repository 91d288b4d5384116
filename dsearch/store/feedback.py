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

The names of fields are those of Search UBI (User Behavior Insights, schema 1.3): `query_id, client_id,
action_name, object_id, event_attributes.position.ordinal, timestamp, user_query`.

Format 1 had no state and no watermark. It is read as it is, and its first writer brings it up to date.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from dsearch.errors import Command, Conflict, CorruptData, InsufficientStorage, UnsupportedFormat, amount
from dsearch.store.folders import copy_database
from dsearch.store.sqlite.connection import connect, readable_errors
from dsearch.store.sqlite.database import DatabaseFile
from dsearch.store.sqlite.digest import canonical_json, content_fact
from dsearch.store.sqlite.journal import Journal
from dsearch.store.sqlite.watermark import (
    WatermarkSlots,
    check_reading,
    create_watermark,
    read_watermark,
    require_unwritten,
    sync_folder,
)

SHOWN = 100  # of a page, so many first hits are remembered


@dataclass(frozen=True, slots=True)
class Impression:
    """One page of hits as it was shown.

    Attributes:
        query_id: id of the impression.
        query: text of the query.
        shown_s: time of display, in seconds since 1970.
        generation: generation of the answer, −1 if only the query is known.
        model: model of the answer, "" if only the query is known.
        sequence: sequence of the answer, −1 if only the query is known.
        key: id of the API key that sent the query, else the client's; "" if neither is known.
        ids: ids of the documents shown, best first.
        weights: their attention weights.
        first: position of the first of them, counted from 1.
        pair: two positions that were swapped at random, or not; None without randomisation.
        swapped: True if the pair was swapped.
    """

    query_id: str
    query: str
    shown_s: float
    generation: int = -1
    model: str = ""
    sequence: int = -1
    key: str = ""
    ids: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    first: int = 1
    pair: tuple[int, int] | None = None
    swapped: bool = False

    def position_of(self, id: str) -> int | None:
        """Position of a document on the page, counted from 1; None if it is not recorded."""
        return self.first + self.ids.index(id) if id in self.ids else None

    def content(self) -> str:
        """Everything in it, as canonical JSON."""
        stamp = [self.generation, self.model, self.sequence]
        return canonical_json(
            [
                self.query_id,
                self.query,
                self.shown_s,
                stamp,
                self.key,
                self.ids,
                self.weights,
                self.first,
                self.pair,
                self.swapped,
            ]
        )

    @classmethod
    def from_content(cls, content: str) -> Impression:
        """The inverse of `content`; raises ValueError, TypeError or KeyError for anything else."""
        query_id, query, shown_s, stamp, key, ids, weights, first, pair, swapped = json.loads(content)
        generation, model, sequence = stamp
        return cls(
            query_id=query_id,
            query=query,
            shown_s=shown_s,
            generation=generation,
            model=model,
            sequence=sequence,
            key=key,
            ids=tuple(ids),
            weights=tuple(weights),
            first=first,
            pair=None if pair is None else (pair[0], pair[1]),
            swapped=swapped,
        )

    def to_dict(self) -> dict[str, Any]:
        """As exported."""
        return {
            "query_id": self.query_id,
            "user_query": self.query,
            "timestamp": _iso(self.shown_s),
            "generation": self.generation,
            "model": self.model,
            "sequence": self.sequence,
            "key": self.key,
            "query_response_hit_ids": list(self.ids),
            "weights": list(self.weights),
            "first_position": self.first,
            "randomised": None if self.pair is None else {"pair": list(self.pair), "swapped": self.swapped},
        }


@dataclass(frozen=True, slots=True)
class Event:
    """A user's action on a document that a query returned.

    Attributes:
        event_id: id of the event, unique for its key.
        query_id: id of the impression.
        key: id of the API key that sent the event, else the client's; "" if neither is known.
        client_id: the user's browser or session, as the sender names it; "" if unknown.
        action: name of the action, such as "click".
        object_id: id of the document.
        position: position of the document, counted from 1; None if unknown.
        time_s: time of the action, in seconds since 1970, as reported by the sender.
        received_s: time of receipt by this machine's clock.
    """

    event_id: str
    query_id: str
    key: str
    client_id: str
    action: str
    object_id: str
    position: int | None
    time_s: float
    received_s: float

    def content(self) -> str:
        """Everything but when it was received: an event that is sent again is the same event."""
        return canonical_json(
            [
                self.event_id,
                self.query_id,
                self.key,
                self.client_id,
                self.action,
                self.object_id,
                self.position,
                self.time_s,
            ]
        )

    @classmethod
    def from_content(cls, content: str, received_s: float) -> Event:
        """The inverse of `content`; raises ValueError or TypeError for anything else."""
        event_id, query_id, key, client_id, action, object_id, position, time_s = json.loads(content)
        return cls(event_id, query_id, key, client_id, action, object_id, position, time_s, received_s)

    def to_dict(self) -> dict[str, Any]:
        """As exported."""
        return {
            "event_id": self.event_id,
            "query_id": self.query_id,
            "client_id": self.client_id,
            "key": self.key,
            "action_name": self.action,
            "object_id": self.object_id,
            "event_attributes": {"position": {"ordinal": self.position}},
            "timestamp": _iso(self.time_s),
        }


def digest_of(content: str, received_s: float | None = None) -> bytes:
    """SHA-256 of a row's content and, for an event, its time of receipt; stored beside it."""
    return sha256(f"{content}{'' if received_s is None else float(received_s)!r}".encode()).digest()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS impression (
    query_id TEXT PRIMARY KEY,
    content  TEXT NOT NULL,
    digest   BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS event (
    key         TEXT NOT NULL,
    event_id    TEXT NOT NULL,
    query_id    TEXT NOT NULL,
    client_id   TEXT NOT NULL,
    received_s  REAL NOT NULL,
    content     TEXT NOT NULL,
    digest      BLOB NOT NULL,
    PRIMARY KEY (key, event_id)
);
CREATE INDEX IF NOT EXISTS event_query ON event (query_id);
CREATE TABLE IF NOT EXISTS contributor (key TEXT PRIMARY KEY, events INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    sequence          INTEGER NOT NULL,
    digest            BLOB    NOT NULL,
    previous_sequence INTEGER NOT NULL,
    previous_digest   BLOB    NOT NULL
)
"""
_EVENT = "SELECT key, event_id, query_id, client_id, received_s, content, digest FROM event"


def find_impression(connection: sqlite3.Connection, query_id: str) -> Impression | None:
    """The impression of this id; raises CorruptData."""
    row = connection.execute(
        "SELECT query_id, content, digest FROM impression WHERE query_id = ?", (query_id,)
    ).fetchone()
    return None if row is None else _impression(*row)


def every_impression(connection: sqlite3.Connection) -> Iterator[Impression]:
    """All of them, in the order of their ids; raises CorruptData."""
    for row in connection.execute("SELECT query_id, content, digest FROM impression ORDER BY query_id"):
        yield _impression(*row)


def events_of(connection: sqlite3.Connection, query_id: str) -> tuple[Event, ...]:
    """The events of an impression, in the order of their arrival; raises CorruptData."""
    rows = connection.execute(f"{_EVENT} WHERE query_id = ? ORDER BY rowid", (query_id,))
    return tuple(_event(*row) for row in rows)


def insert_impression(connection: sqlite3.Connection, impression: Impression) -> int:
    """Write an impression unless it is there; its fact, 0 when it was.

    Raises Conflict when its id names another query.
    """
    earlier = find_impression(connection, impression.query_id)
    if earlier is None:
        content = impression.content()
        digest = digest_of(content)
        connection.execute("INSERT INTO impression VALUES (?, ?, ?)", (impression.query_id, content, digest))
        return content_fact(b"impression", digest)
    if earlier.query != impression.query:
        raise Conflict(
            f"query_id={impression.query_id!r} names another query already; give each search an id of its own"
        )
    return 0


def insert_event(connection: sqlite3.Connection, event: Event) -> int:
    """Write an event unless it is there; its fact, 0 when it was.

    Raises Conflict when its id names another event.
    """
    content = event.content()
    earlier = connection.execute(
        "SELECT content FROM event WHERE key = ? AND event_id = ?", (event.key, event.event_id)
    ).fetchone()
    if earlier is None:
        digest = digest_of(content, event.received_s)
        row = (event.key, event.event_id, event.query_id, event.client_id, event.received_s, content, digest)
        connection.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return content_fact(b"event", digest)
    if earlier[0] != content:
        raise Conflict(f"event_id={event.event_id!r} names another event already; give each an id of its own")
    return 0


def delete_events(
    connection: sqlite3.Connection,
    *,
    key: str | None = None,
    client_id: str | None = None,
    before_s: float | None = None,
) -> tuple[int, int]:
    """Delete those that meet every condition given: (how many, the sum of their facts)."""
    conditions = {"key = ?": key, "client_id = ?": client_id, "received_s < ?": before_s}
    present = {text: value for text, value in conditions.items() if value is not None}
    where = " AND ".join(present) or "1"
    digests = connection.execute(
        f"DELETE FROM event WHERE {where} RETURNING digest", tuple(present.values())
    ).fetchall()
    return len(digests), _facts(b"event", digests)


def all_facts(connection: sqlite3.Connection) -> int:
    """The sum of the facts of all rows."""
    return sum(
        _facts(kind.encode(), connection.execute(f"SELECT digest FROM {kind}"))
        for kind in ("impression", "event")
    )


def used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of the file in use, without free pages."""

    def pragma(name: str) -> int:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    return (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")


def require_complete(connection: sqlite3.Connection) -> None:
    """Hold the events against the counts that were kept; raises CorruptData."""
    counted = dict(connection.execute("SELECT key, count(*) FROM event GROUP BY key"))
    # A damaged page can read as NULL or text where a number was written.
    counts = dict(connection.execute("SELECT key, coalesce(CAST(events AS INTEGER), 0) FROM contributor"))
    (lone,) = connection.execute(
        "SELECT count(*) FROM event WHERE query_id NOT IN (SELECT query_id FROM impression)"
    ).fetchone()
    if counted != counts or lone:
        raise CorruptData(
            f"feedback.db holds {amount(sum(counted.values()), 'event')} where {sum(counts.values())} were "
            "written, "
            f"{lone} of them without their page; clear away what is damaged",
            hint=CLEAR_DAMAGED,
        )


def delete_damaged(connection: sqlite3.Connection) -> int:
    """Delete rows that are not what was written, and events without their page; how many."""
    deleted = 0
    blob = "CAST({} AS BLOB)".format
    columns = ", ".join(blob(name) for name in ("query_id", "content"))
    rows = connection.execute(f"SELECT rowid, {columns}, digest FROM impression").fetchall()
    bad = [(row,) for row, *fields in rows if not _reads(_impression, fields)]
    connection.executemany("DELETE FROM impression WHERE rowid = ?", bad)
    deleted += len(bad)
    names = ", ".join(blob(name) for name in ("key", "event_id", "query_id", "client_id"))
    rows = connection.execute(
        f"SELECT rowid, {names}, received_s, {blob('content')}, digest FROM event"
    ).fetchall()
    bad = [(row,) for row, *fields in rows if not _reads(_event, fields)]
    connection.executemany("DELETE FROM event WHERE rowid = ?", bad)
    lone = "DELETE FROM event WHERE query_id NOT IN (SELECT query_id FROM impression)"
    return deleted + len(bad) + connection.execute(lone).rowcount


def count_again(connection: sqlite3.Connection) -> int:
    """Delete impressions that no event refers to, and set the counts by what is there; their facts' sum."""
    lone = "DELETE FROM impression WHERE query_id NOT IN (SELECT query_id FROM event) RETURNING digest"
    facts = _facts(b"impression", connection.execute(lone).fetchall())
    connection.execute("DELETE FROM contributor")
    connection.execute("INSERT INTO contributor SELECT key, count(*) FROM event GROUP BY key")
    return facts


def _facts(kind: bytes, digests: Iterable[tuple[object]]) -> int:
    """Their sum; a digest that damage left no bytes is none, so that the sum misses it."""
    return sum(content_fact(kind, digest) for (digest,) in digests if isinstance(digest, bytes))


def _reads(read: Callable[..., object], fields: list[Any]) -> bool:
    try:
        # The digest, which comes last, stays bytes.
        read(*(field.decode() if isinstance(field, bytes) else field for field in fields[:-1]), fields[-1])
    except (CorruptData, UnicodeDecodeError):
        return False
    return True


def _impression(query_id: str, content: str, digest: bytes) -> Impression:
    if digest_of(content) != digest:
        raise damaged()
    impression = Impression.from_content(content)
    if impression.query_id != query_id:
        raise damaged()
    return impression


def _event(
    key: str, event_id: str, query_id: str, client_id: str, received_s: float, content: str, digest: bytes
) -> Event:
    # A flipped bit may turn the number into a text, or into nothing.
    if not isinstance(received_s, float) or digest_of(content, received_s) != digest:
        raise damaged()
    event = Event.from_content(content, received_s)
    if (event.key, event.event_id, event.query_id, event.client_id) != (key, event_id, query_id, client_id):
        raise damaged()
    return event


def damaged() -> CorruptData:
    """Error for a row that differs from its digest."""
    return CorruptData("a row of feedback.db is not what was written; clear it away", hint=CLEAR_DAMAGED)


FORMAT = 2
OLDEST_FORMAT = 1


def format_of(connection: sqlite3.Connection) -> int | None:
    """Return the format of the file; None before it has one. Raises UnsupportedFormat."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    if row is not None and row[0] not in (str(OLDEST_FORMAT), str(FORMAT)):
        raise UnsupportedFormat(
            f"{FEEDBACK.file} has feedback format {row[0]}; this release reads {OLDEST_FORMAT} to {FORMAT}: "
            "use the release that wrote it to export it"
        )
    return None if row is None else int(row[0])


def prepare(connection: sqlite3.Connection) -> int | None:
    """Create the tables, or bring format 1, which had no state, up to date; see `DatabaseFile.prepare`."""
    for statement in TABLES.split(";\n"):
        connection.execute(statement)
    if format_of(connection) == FORMAT:
        return None
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('format', ?)", (str(FORMAT),))
    return all_facts(connection)


CLEAR_DAMAGED = Command("feedback clear", ("--damaged",))
FEEDBACK = DatabaseFile(
    "feedback.db",
    "feedback.watermark",
    "clicks and judgements",
    remedy="documents and searches are whole; clear away what is damaged",
    repair=(
        "documents are not in it: move it and feedback.watermark away and go on without them, or clear away "
        "what is damaged"
    ),
    refused="feedback is refused until this process is started again, searches go on",
    hint=CLEAR_DAMAGED,
    repair_hint=CLEAR_DAMAGED,
    prepare=prepare,
    shared=True,
    patience_s=10.0,
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

        `problem` reads every row.
        """
        try:
            with self.reading():
                return None
        except (CorruptData, UnsupportedFormat) as error:
            return str(error)

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
