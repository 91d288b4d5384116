"""`TaskFile`: `tasks.db` as a file: its format, its transactions, its digests and its watermark.

Each row has the digest of its columns. The row of table `state` has the sum of all of them and the number of
the last change, and so has the synced file `tasks-watermark` (store/sqlite/watermark.py). A row that changed
is named when it is read; a file that was cut, replaced by an older one or deleted is named on opening. The
service then starts without tasks: searches and writes go on, and every route of tasks answers with the error.
Moving both files away begins anew; only what became of tasks is in them.

Format 1 had neither digests nor a watermark. It is upgraded in one transaction when it is opened.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dsearch.errors import CorruptData, UnsupportedFormat
from dsearch.store.sqlite.connection import Transactions, connect, readable_errors, roll_back
from dsearch.store.sqlite.digest import DIGEST_BYTES, add_facts, canonical_json, content_fact
from dsearch.store.sqlite.watermark import (
    MarkedState,
    Watermark,
    WatermarkedFile,
    WatermarkEntry,
    check_database,
    create_watermark,
    later,
    read_row,
    read_watermark,
    sync_folder,
    write_state,
)

FILE_NAME = "tasks.db"
FORMAT = 2
_REMEDY = (
    "move tasks.db and tasks-watermark away and start the server again; only what became of tasks is in them"
)
TASKS = WatermarkedFile("tasks-watermark", "tasks.db", "changes of tasks", _REMEDY)
_PATIENCE_S = 10.0
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


@dataclass(slots=True)
class TaskChange:
    """An open transaction; `facts` is the sum of the digests that it adds."""

    connection: sqlite3.Connection
    facts: int = 0

    def insert_event(self, *columns: Any) -> None:
        """Add an event: task, number, kind, data."""
        digest = _digest(columns)
        self.connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (*columns, digest))
        self.facts += content_fact(b"event", digest)

    def delete_events(self, where: str, *values: Any) -> None:
        """Remove events."""
        for (digest,) in self.connection.execute(
            f"SELECT digest FROM events WHERE {where}", values
        ).fetchall():
            self.facts -= content_fact(b"event", digest)
        self.connection.execute(f"DELETE FROM events WHERE {where}", values)

    def delete_task(self, number: int) -> None:
        """Remove a task and its events."""
        self.delete_events("task = ?", number)
        self._take(number)
        self.connection.execute("DELETE FROM tasks WHERE number = ?", (number,))

    def update_task(self, number: int, changes: str, *values: Any) -> None:
        """Change columns of a task."""
        self._take(number)
        self.connection.execute(f"UPDATE tasks SET {changes} WHERE number = ?", (*values, number))
        self.seal(number)

    def seal(self, number: int) -> None:
        """Write the digest of a task that was inserted or changed."""
        (*columns, _) = self.connection.execute(f"{_READ_TASK} WHERE number = ?", (number,)).fetchone()
        digest = _digest(columns)
        self.connection.execute("UPDATE tasks SET digest = ? WHERE number = ?", (digest, number))
        self.facts += content_fact(b"task", digest)

    def _take(self, number: int) -> None:
        (*columns, digest) = self.connection.execute(f"{_READ_TASK} WHERE number = ?", (number,)).fetchone()
        require_written(columns, digest)
        self.facts -= content_fact(b"task", digest)


class TaskFile:
    """The file, open for reading and writing; for many threads of one process.

    Args:
        home: the folder of collections.

    Raises:
        CorruptData: rows are missing or damaged.
        UnsupportedFormat: written by a release with another format.
    """

    def __init__(self, home: Path):
        self.path = home / FILE_NAME
        self._home = home
        self._lock = threading.Lock()
        self._transactions = Transactions(self.path, "tasks are refused until the server is started again")
        with self._errors():
            self._connection = connect(home, writer=True, create=True, file=FILE_NAME)
        try:
            with self._errors():
                self._connection.execute("PRAGMA foreign_keys = ON")
                self._upgrade()
                self._watermark = Watermark(home, TASKS, patience_s=_PATIENCE_S)
        except BaseException:
            self._connection.close()
            raise
        try:
            with self._errors():
                self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._watermark.close()

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return what a query finds."""
        with self._lock, self._errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def changing(self) -> Generator[TaskChange]:
        """Open a transaction, durable when the block has ended and rolled back when it raises."""
        with self._lock, self._errors(), self._transactions.distrusting():
            self._transactions.require_writable()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                state, change = self._state(), TaskChange(self._connection)
                self._transactions.catch_up(self._watermark, state)
                yield change
                if change.facts:
                    state = later(state, self._watermark, add_facts(state.digest, change.facts))
                    write_state(self._connection, state)
                    self._transactions.finish(self._connection, self._watermark, state)
            finally:
                roll_back(self._connection)

    # ---- opening

    def _upgrade(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, 1, FORMAT):
            raise UnsupportedFormat(f"{self.path} has format {version}; this release reads 1 to {FORMAT}")
        if version == FORMAT:
            return
        marked = (self._home / TASKS.file_name).is_file()
        if marked and (writes := read_watermark(self._home, TASKS).newest.sequence):
            raise TASKS.lost(f"{self.path} has no tasks, but its watermark shows {writes} writes")
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            for statement in [*(_FIRST.split(";\n") if version == 0 else []), *_SECOND.split(";\n")]:
                execute(statement)
            facts = self._sealed()
            digest = add_facts(bytes(DIGEST_BYTES), facts)
            execute("INSERT INTO state VALUES (1, 0, ?, 0, ?)", (digest, digest))
            execute(f"PRAGMA user_version = {FORMAT}")
            # Before the commit: after a crash, marks of operation 0 beside an older file acknowledge nothing.
            (self._home / TASKS.file_name).unlink(missing_ok=True)
            create_watermark(self._home, WatermarkEntry(0, digest), TASKS)
            sync_folder(self._home)
            execute("COMMIT")
        finally:
            roll_back(self._connection)

    def _sealed(self) -> int:
        """Write the digests of the rows of format 1; their facts."""
        change = TaskChange(self._connection)
        for (number,) in self._connection.execute("SELECT number FROM tasks").fetchall():
            change.seal(number)
        for *columns, _ in self._connection.execute(_READ_EVENT).fetchall():
            digest = _digest(columns)
            self._connection.execute(
                "UPDATE events SET digest = ? WHERE task = ? AND number = ?", (digest, *columns[:2])
            )
            change.facts += content_fact(b"event", digest)
        return change.facts

    def _check(self) -> None:
        (finding,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if finding != "ok":
            raise self._damaged(" ".join(str(finding).split()))
        state, facts = self._state(), 0
        marks = self._watermark.marks
        check_database(self._home, state.marks, before=marks, after=marks, of=TASKS)
        for kind, query in ((b"task", _READ_TASK), (b"event", _READ_EVENT)):
            for *columns, digest in self._connection.execute(query):
                require_written(columns, digest)
                facts += content_fact(kind, digest)
        if add_facts(bytes(DIGEST_BYTES), facts) != state.digest:
            raise TASKS.lost(f"{self.path} does not hold the rows that were acknowledged")

    def _state(self) -> MarkedState:
        state = read_row(self._connection, MarkedState)
        if state is None:
            raise self._damaged("the row of its table `state` is not what was written")
        return state

    # ---- errors

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            with readable_errors(self.path, self._damaged):
                yield
        except sqlite3.Error as error:  # a constraint that only damage can break
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> CorruptData:
        return TASKS.lost(f"{self.path} is damaged ({why})")


def require_written(columns: Iterable[Any], digest: object) -> None:
    """Compare a row with its digest; raises CorruptData."""
    first, *rest = columns
    if _digest((first, *rest)) != digest:
        raise TASKS.lost(f"{FILE_NAME}: the row of task {first} is not what was written")


def _digest(columns: Iterable[Any]) -> bytes:
    return sha256(canonical_json(list(columns)).encode("utf-8", "surrogatepass")).digest()
