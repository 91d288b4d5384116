"""Rows of feedback.db: writing, reading, and checking against their digests; and its format.

Format 1 had no state and no watermark. It is read as it is, and its first writer brings it up to date.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dsearch.errors import Command, Conflict, CorruptData, UnsupportedFormat, amount
from dsearch.store.feedback.records import Event, Impression, digest_of
from dsearch.store.sqlite.database import DatabaseFile
from dsearch.store.sqlite.digest import content_fact

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
