"""`TaskStore`: long-running tasks in `tasks.db` of the home, which survive a restart.

A task is queued → running → done, failed, cancelled or interrupted. Its request is stored until it ends and
then deleted: queries are not stored longer than they are needed.

Each row has the digest of its columns. The same journal writes it as documents and feedback
(store/sqlite/journal.py), with a counter and a watermark of its own. A row that changed is named when it is
read; a file that was cut, replaced by an older one or deleted is named on opening. The service then starts
without tasks: searches and writes go on, and every route of tasks answers with the error. Moving both files
away begins anew; only what became of tasks is in them.

Format 1 had neither digests nor a watermark. It is upgraded in one transaction when it is opened.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from dsearch.errors import NotFound, UnsupportedFormat
from dsearch.results import Task
from dsearch.store.sqlite.connection import ReaderPool
from dsearch.store.sqlite.database import DatabaseFile
from dsearch.store.sqlite.digest import canonical_json, content_fact
from dsearch.store.sqlite.journal import Journal, Operation
from dsearch.types import TaskState

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


TaskKind = Literal["files", "train", "tune", "save", "evaluate", "refresh", "compact", "migrate"]
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
KEPT_TASKS = 1000
KEPT_EVENTS = 2000  # of one task
_EVERY = ", ".join((*TASK_COLUMNS, "digest"))


class TaskNotFound(NotFound):
    """No task of that id, or one that ended so long ago that it was forgotten."""

    code = "task_not_found"


@dataclass(frozen=True, slots=True)
class StoredTask(Task):
    """Current state of a task; `number` counts tasks in the order of their requests."""

    number: int = 0

    def to_dict(self) -> dict[str, Any]:
        """`Task`, as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(Task)}


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Report of a running task: its number within the task, its kind, and its content."""

    number: int
    kind: str
    data: dict[str, Any]


class TaskStore:
    """Store of the tasks; for many threads of one process.

    Args:
        home: the folder of collections.

    Raises:
        CorruptData: tasks are missing or damaged; the file can be moved away.
        UnsupportedFormat: written by a release with another format.
    """

    def __init__(self, home: Path):
        self._readers, self._journal = ReaderPool(home, TASKS), Journal(home, TASKS)
        try:
            self._journal.open()
            with self._readers.reading() as connection:
                require_whole(connection, home)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._readers.close()
        self._journal.close()

    # ---- what there is

    def get(self, id: str) -> StoredTask:
        """A task.

        Raises:
            TaskNotFound.
        """
        rows = self._rows(f"SELECT {_EVERY} FROM tasks WHERE id = ?", id)
        if not rows:
            raise TaskNotFound(f"no task {id[:80]!r}; GET /v1/tasks lists those that are kept")
        return _task(rows[0])

    def list(
        self,
        limit: int,
        *,
        before: int | None = None,
        collection: str | None = None,
        state: str | None = None,
    ) -> list[StoredTask]:
        """Tasks, the latest first; `before` is the number of the last one of the page before."""
        conditions, values = ["TRUE"], []
        for condition, value in (
            ("number < ?", before),
            ("collection = ?", collection),
            ("state = ?", state),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        query = f"SELECT {_EVERY} FROM tasks WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        return [_task(row) for row in self._rows(query, *values, limit)]

    def request(self, task: StoredTask) -> dict[str, Any]:
        """Return the task's request; empty once the task has ended."""
        rows = self._rows(f"SELECT {_EVERY} FROM tasks WHERE number = ?", task.number)
        if not rows:
            return {}
        *columns, digest = rows[0]
        require_written(columns, digest)
        text = columns[TASK_COLUMNS.index("request")]
        return json.loads(text) if text else {}

    def events(self, task: StoredTask, after: int, limit: int = 100) -> list[TaskEvent]:
        """Return the task's events after number `after`."""
        query = (
            "SELECT task, number, kind, data, digest FROM events WHERE task = ? AND number > ? "
            "ORDER BY number LIMIT ?"
        )
        events: list[TaskEvent] = []
        for *columns, digest in self._rows(query, task.number, after, limit):
            require_written(columns, digest)
            _, number, kind, data = columns
            events.append(TaskEvent(number, kind, json.loads(data)))
        return events

    def count(self, *states: TaskState) -> int:
        """Count the tasks that are in one of these states."""
        marks = ", ".join("?" * len(states))
        return self._rows(f"SELECT count(*) FROM tasks WHERE state IN ({marks})", *states)[0][0]

    # ---- what becomes of them

    def add(self, kind: TaskKind, collection: str, request: dict[str, Any]) -> StoredTask:
        """Queue a new task; durable on return."""
        id = uuid.uuid4().hex
        with self._journal.operation() as operation:
            number = operation.connection.execute(
                "INSERT INTO tasks (id, kind, collection, state, created, request) "
                "VALUES (?, ?, ?, 'queued', ?, ?)",
                (id, kind, collection, _now(), json.dumps(request)),
            ).lastrowid
            assert number is not None
            seal_task(operation, number)
            old = "SELECT number FROM tasks WHERE ended IS NOT NULL AND number <= ?"
            for (forgotten,) in operation.connection.execute(old, (number - KEPT_TASKS,)).fetchall():
                delete_task(operation, forgotten)
        return self.get(id)

    def next(self, kinds: Sequence[TaskKind] = KINDS) -> StoredTask | None:
        """Mark the task of these kinds that has been queued longest as running and return it; else None."""
        with self._journal.operation() as operation:
            marks = ", ".join("?" * len(kinds))
            first = f"SELECT min(number) FROM tasks WHERE state = 'queued' AND kind IN ({marks})"
            (number,) = operation.connection.execute(first, kinds).fetchone()
            if number is None:
                return None
            changes = "state = 'running', started = coalesce(started, ?), attempts = attempts + 1"
            update_task(operation, number, changes, _now())
        return _task(self._rows(f"SELECT {_EVERY} FROM tasks WHERE number = ?", number)[0])

    def append_event(self, task: StoredTask, kind: str, data: dict[str, Any]) -> None:
        """Add an event; kind `progress` also sets the task's progress. The oldest are dropped if too many."""
        with self._journal.operation() as operation:
            last = operation.connection.execute(
                "SELECT max(number) FROM events WHERE task = ?", (task.number,)
            ).fetchone()[0]
            number = (last or 0) + 1
            columns = task.number, number, kind, json.dumps(data)
            digest = _digest(columns)
            operation.connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (*columns, digest))
            operation.add_fact(content_fact(b"event", digest))
            delete_events(operation, "task = ? AND number <= ?", task.number, number - KEPT_EVENTS)
            if kind == "progress":
                update_task(operation, task.number, "progress = ?", json.dumps(data))

    def end(
        self,
        task: StoredTask,
        state: TaskState,
        *,
        result: dict[str, Any] | None = None,
        problem: dict[str, str] | None = None,
    ) -> None:
        """Record the end of a task."""
        changes = "state = ?, ended = ?, request = NULL, result = ?, problem = ?"
        with self._journal.operation() as operation:
            update_task(operation, task.number, changes, state, _now(), _json(result), _json(problem))

    def requeue(self, task: StoredTask, *, begun: bool) -> None:
        """Queue a stopped task again; `begun`: count the attempt that was stopped."""
        changes = "state = 'queued', progress = NULL, attempts = attempts - ?"
        with self._journal.operation() as operation:
            update_task(operation, task.number, changes, 0 if begun else 1)

    def cancel_queued(self, id: str) -> bool:
        """Cancel a task that has not started; return True if it was cancelled."""
        with self._journal.operation() as operation:
            query = "SELECT number FROM tasks WHERE id = ? AND state = 'queued'"
            row = operation.connection.execute(query, (id,)).fetchone()
            if row is not None:
                changes = "state = 'cancelled', ended = ?, request = NULL"
                update_task(operation, row[0], changes, _now())
        return row is not None

    def _rows(self, query: str, *values: Any) -> Sequence[Any]:
        with self._readers.reading() as connection:
            return connection.execute(query, values).fetchall()


def _task(row: Sequence[Any]) -> StoredTask:
    *columns, digest = row
    require_written(columns, digest)
    number, *plain, _request, progress, result, problem = columns
    parts = (json.loads(text) if text else None for text in (progress, result, problem))
    return StoredTask(*plain, *parts, number=number)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
