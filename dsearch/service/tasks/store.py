"""`TaskStore`: long-running tasks in `tasks.db` of the home, which survive a restart.

A task is queued → running → done, failed, cancelled or interrupted. Its request is stored until it ends and
then deleted: queries are not stored longer than they are needed.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from dsearch.errors import CorruptData, DsearchError, InsufficientStorage, NotFound, UnsupportedFormat
from dsearch.results import Task
from dsearch.types import TaskState

TaskKind = Literal["train", "tune", "save", "evaluate", "refresh", "compact", "migrate"]
ENDED: tuple[TaskState, ...] = ("done", "failed", "cancelled", "interrupted")
FILE_NAME = "tasks.db"
KEPT_TASKS = 1000
KEPT_EVENTS = 2000  # of one task
_FORMAT = 1
_SCHEMA = """
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, collection TEXT NOT NULL,
    state TEXT NOT NULL, created TEXT NOT NULL, started TEXT, ended TEXT, attempts INTEGER NOT NULL DEFAULT 0,
    request TEXT, progress TEXT, result TEXT, problem TEXT
) STRICT;
CREATE TABLE events (
    task INTEGER NOT NULL REFERENCES tasks(number) ON DELETE CASCADE, number INTEGER NOT NULL,
    kind TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;
"""
_COLUMNS = "number, id, kind, collection, state, created, started, ended, attempts, progress, result, problem"


class TaskNotFound(NotFound):
    """No task of that id, or one that ended so long ago that it was forgotten."""

    code = "task_not_found"


@dataclass(frozen=True, slots=True)
class StoredTask(Task):
    """One task, as it stands; `number` counts in the order in which tasks were requested."""

    number: int = 0

    def to_dict(self) -> dict[str, Any]:
        """`Task`, as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(Task)}


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that a task said: its number within the task, its kind, and what."""

    number: int
    kind: str
    data: dict[str, Any]


class TaskStore:
    """For many threads of one process.

    Args:
        home: the folder of collections.

    Raises:
        CorruptData: the file is no database; it can be moved away, only tasks are in it.
        UnsupportedFormat: written by a release with another format.
    """

    def __init__(self, home: Path):
        self.path = home / FILE_NAME
        self._lock = threading.Lock()
        with _explained(self.path):
            self._connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _FORMAT):
                raise UnsupportedFormat(f"{self.path} has format {version}; this release reads {_FORMAT}")
            if version == 0:
                script = f"BEGIN; {_SCHEMA} PRAGMA user_version = {_FORMAT}; COMMIT;"
                self._connection.executescript(script)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # ---- what there is

    def get(self, id: str) -> StoredTask:
        """A task.

        Raises:
            TaskNotFound.
        """
        found = self._rows(f"SELECT {_COLUMNS} FROM tasks WHERE id = ?", id)
        if not found:
            raise TaskNotFound(f"no task {id[:80]!r}; GET /v1/tasks lists those that are kept")
        return _task(found[0])

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
        query = f"SELECT {_COLUMNS} FROM tasks WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        return [_task(row) for row in self._rows(query, *values, limit)]

    def request(self, task: StoredTask) -> dict[str, Any]:
        """Return the task's request; empty once the task has ended."""
        found = self._rows("SELECT request FROM tasks WHERE number = ?", task.number)
        return json.loads(found[0][0]) if found and found[0][0] else {}

    def events(self, task: StoredTask, after: int, limit: int = 100) -> list[TaskEvent]:
        """Return the task's events after number `after`."""
        query = "SELECT number, kind, data FROM events WHERE task = ? AND number > ? ORDER BY number LIMIT ?"
        return [
            TaskEvent(n, kind, json.loads(data))
            for n, kind, data in self._rows(query, task.number, after, limit)
        ]

    def count(self, *states: TaskState) -> int:
        """Count the tasks that are in one of these states."""
        marks = ", ".join("?" * len(states))
        return self._rows(f"SELECT count(*) FROM tasks WHERE state IN ({marks})", *states)[0][0]

    # ---- what becomes of them

    def add(self, kind: TaskKind, collection: str, request: dict[str, Any]) -> StoredTask:
        """A new task, queued; durable on return."""
        id = uuid.uuid4().hex
        columns = "id, kind, collection, state, created, request"
        self._rows(
            f"INSERT INTO tasks ({columns}) VALUES (?, ?, ?, 'queued', ?, ?)",
            *(id, kind, collection, _now(), json.dumps(request)),
        )
        self._rows(
            "DELETE FROM tasks WHERE ended IS NOT NULL AND number <= (SELECT max(number) FROM tasks) - ?",
            KEPT_TASKS,
        )
        return self.get(id)

    def next(self) -> StoredTask | None:
        """The task that has been queued longest, now running; None when there is none."""
        with self._lock, _explained(self.path):
            row = self._connection.execute(
                "UPDATE tasks SET state = 'running', started = coalesce(started, ?), attempts = attempts + 1 "
                "WHERE number = (SELECT min(number) FROM tasks WHERE state = 'queued') "
                f"RETURNING {_COLUMNS}",
                (_now(),),
            ).fetchone()
        return _task(row) if row else None

    def say(self, task: StoredTask, kind: str, data: dict[str, Any]) -> None:
        """Add an event; a `progress` is also where the task stands. The oldest go when there are too many."""
        with self._lock, _explained(self.path):
            execute = self._connection.execute
            execute("BEGIN IMMEDIATE")
            try:
                last = execute("SELECT max(number) FROM events WHERE task = ?", (task.number,)).fetchone()[0]
                number = (last or 0) + 1
                execute(
                    "INSERT INTO events VALUES (?, ?, ?, ?)", (task.number, number, kind, json.dumps(data))
                )
                execute(
                    "DELETE FROM events WHERE task = ? AND number <= ?", (task.number, number - KEPT_EVENTS)
                )
                if kind == "progress":
                    execute("UPDATE tasks SET progress = ? WHERE number = ?", (json.dumps(data), task.number))
                execute("COMMIT")
            except BaseException:
                execute("ROLLBACK")
                raise

    def end(
        self,
        task: StoredTask,
        state: TaskState,
        *,
        result: dict[str, Any] | None = None,
        problem: dict[str, str] | None = None,
    ) -> None:
        """A task has ended."""
        self._rows(
            "UPDATE tasks SET state = ?, ended = ?, request = NULL, result = ?, problem = ? WHERE number = ?",
            *(state, _now(), _json(result), _json(problem), task.number),
        )

    def requeue(self, task: StoredTask, *, begun: bool) -> None:
        """A task that was stopped before its end is begun again later; `begun`: that attempt counts."""
        self._rows(
            "UPDATE tasks SET state = 'queued', progress = NULL, attempts = attempts - ? WHERE number = ?",
            0 if begun else 1,
            task.number,
        )

    def cancel_queued(self, id: str) -> bool:
        """Cancel a task that was not begun; whether it was."""
        found = self._rows(
            "UPDATE tasks SET state = 'cancelled', ended = ?, request = NULL "
            "WHERE id = ? AND state = 'queued' RETURNING id",
            *(_now(), id),
        )
        return bool(found)

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._lock, _explained(self.path):
            return self._connection.execute(query, values).fetchall()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise InsufficientStorage(f"{path}: {error}; free some space") from error
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if isinstance(error, DsearchError):
            raise
        raise CorruptData(
            f"{path} cannot be read ({error}); move it away: only what became of past tasks is in it"
        ) from error


def _task(row: tuple[Any, ...]) -> StoredTask:
    number, *plain, progress, result, problem = row
    parts = (json.loads(text) if text else None for text in (progress, result, problem))
    return StoredTask(*plain, *parts, number=number)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
