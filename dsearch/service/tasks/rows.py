"""Tables and rows of `tasks.db`, each row with the digest of its columns.

The same journal writes it as documents and feedback (store/sqlite/journal.py), with a counter and a watermark
of its own. A row that changed is named when it is read; a file that was cut, replaced by an older one or
deleted is named on opening. The service then starts without tasks: searches and writes go on, and every route
of tasks answers with the error. Moving both files away begins anew; only what became of tasks is in them.

Format 1 had neither digests nor a watermark. It is upgraded in one transaction when it is opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from dsearch.errors import UnsupportedFormat
from dsearch.store.sqlite.database import DatabaseFile
from dsearch.store.sqlite.digest import canonical_json, content_fact
from dsearch.store.sqlite.journal import Operation

FORMAT = 2
_FIRST = """
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, collection TEXT NOT NULL,
    state TEXT NOT NULL, created TEXT NOT NULL, started TEXT, ended TEXT, attempts INTEGER NOT NULL DEFAULT 0,
    request TEXT, progress TEXT, result TEXT, problem TEXT
) STRICT;
CREATE TABLE events (
    task INTEGER NOT NULL REFERENCES tasks(number) ON DELETE CASCADE, number INTEGER NOT NULL,
    kind TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID
"""
_SECOND = """
ALTER TABLE tasks ADD COLUMN digest BLOB;
ALTER TABLE events ADD COLUMN digest BLOB;
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, digest BLOB NOT NULL,
    previous_sequence INTEGER NOT NULL, previous_digest BLOB NOT NULL
)
"""
TASK_COLUMNS = (
    *("number", "id", "kind", "collection", "state", "created", "started", "ended", "attempts"),
    *("request", "progress", "result", "problem"),
)
EVENT_COLUMNS = ("task", "number", "kind", "data")
_READ_TASK = f"SELECT {', '.join(TASK_COLUMNS)}, digest FROM tasks"
_READ_EVENT = f"SELECT {', '.join(EVENT_COLUMNS)}, digest FROM events"


def insert_event(operation: Operation, *columns: Any) -> None:
    """Add an event: task, number, kind, data."""
    digest = _digest(columns)
    operation.connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (*columns, digest))
    operation.add_fact(content_fact(b"event", digest))


def delete_events(operation: Operation, where: str, *values: Any) -> None:
    """Remove events."""
    digests = operation.connection.execute(f"SELECT digest FROM events WHERE {where}", values).fetchall()
    operation.add_facts([-content_fact(b"event", digest) for (digest,) in digests])
    operation.connection.execute(f"DELETE FROM events WHERE {where}", values)


def delete_task(operation: Operation, number: int) -> None:
    """Remove a task and its events."""
    delete_events(operation, "task = ?", number)
    _take(operation, number)
    operation.connection.execute("DELETE FROM tasks WHERE number = ?", (number,))


def update_task(operation: Operation, number: int, changes: str, *values: Any) -> None:
    """Change columns of a task."""
    _take(operation, number)
    operation.connection.execute(f"UPDATE tasks SET {changes} WHERE number = ?", (*values, number))
    seal_task(operation, number)


def seal_task(operation: Operation, number: int) -> None:
    """Write the digest of a task that was inserted or changed."""
    operation.add_fact(_seal_task(operation.connection, number))


def _take(operation: Operation, number: int) -> None:
    (*columns, digest) = operation.connection.execute(f"{_READ_TASK} WHERE number = ?", (number,)).fetchone()
    require_written(columns, digest)
    operation.take_fact(content_fact(b"task", digest))


def _seal_task(connection: sqlite3.Connection, number: int) -> int:
    (*columns, _) = connection.execute(f"{_READ_TASK} WHERE number = ?", (number,)).fetchone()
    digest = _digest(columns)
    connection.execute("UPDATE tasks SET digest = ? WHERE number = ?", (digest, number))
    return content_fact(b"task", digest)


def require_whole(connection: sqlite3.Connection, home: Path) -> None:
    """Compare every row with its digest and their sum with the state; raises CorruptData."""
    (finding,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if finding != "ok":
        raise TASKS.damaged(home, " ".join(str(finding).split()))
    facts = 0
    for kind, query in ((b"task", _READ_TASK), (b"event", _READ_EVENT)):
        for *columns, digest in connection.execute(query):
            require_written(columns, digest)
            facts += content_fact(kind, digest)
    TASKS.require_facts(home, TASKS.read_state(connection, home), facts)


def prepare(connection: sqlite3.Connection) -> int | None:
    """Create the tables, or give rows of format 1 their digests; see `DatabaseFile.prepare`."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, 1, FORMAT):
        raise UnsupportedFormat(f"{TASKS.file} has format {version}; this release reads 1 to {FORMAT}")
    if version == FORMAT:
        return None
    for statement in [*(_FIRST.split(";\n") if version == 0 else []), *_SECOND.split(";\n")]:
        connection.execute(statement)
    facts = sum(
        _seal_task(connection, number)
        for (number,) in connection.execute("SELECT number FROM tasks").fetchall()
    )
    for *columns, _ in connection.execute(_READ_EVENT).fetchall():
        digest = _digest(columns)
        connection.execute(
            "UPDATE events SET digest = ? WHERE task = ? AND number = ?", (digest, *columns[:2])
        )
        facts += content_fact(b"event", digest)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    return facts


def require_written(columns: Iterable[Any], digest: object) -> None:
    """Compare a row with its digest; raises CorruptData."""
    first, *rest = columns
    if _digest((first, *rest)) != digest:
        raise TASKS.lost(f"{TASKS.file}: the row of task {first} is not what was written")


def _digest(columns: Iterable[Any]) -> bytes:
    return sha256(canonical_json(list(columns)).encode("utf-8", "surrogatepass")).digest()


_REMEDY = (
    "move tasks.db and tasks-watermark away and start the server again; only what became of tasks is in them"
)
TASKS = DatabaseFile(
    "tasks.db",
    "tasks-watermark",
    "changes of tasks",
    remedy=_REMEDY,
    repair=_REMEDY,
    refused="tasks are refused until the server is started again",
    prepare=prepare,
    patience_s=10.0,
)
