"""`TaskStore`: long-running tasks in `tasks.db` of the home, which survive a restart.

A task is queued → running → done, failed, cancelled or interrupted. Its request is stored until it ends and
then deleted: queries are not stored longer than they are needed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from dsearch.errors import NotFound
from dsearch.results import Task
from dsearch.service.tasks.rows import (
    TASK_COLUMNS,
    TASKS,
    delete_events,
    delete_task,
    insert_event,
    require_whole,
    require_written,
    seal_task,
    update_task,
)
from dsearch.store.sqlite.connection import ReaderPool
from dsearch.store.sqlite.journal import Journal
from dsearch.types import TaskState

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

    def say(self, task: StoredTask, kind: str, data: dict[str, Any]) -> None:
        """Add an event; kind `progress` also sets the task's progress. The oldest are dropped if too many."""
        with self._journal.operation() as operation:
            last = operation.connection.execute(
                "SELECT max(number) FROM events WHERE task = ?", (task.number,)
            ).fetchone()[0]
            number = (last or 0) + 1
            insert_event(operation, task.number, number, kind, json.dumps(data))
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
