"""Rows of the query memory: judged queries, written one operation at a time, in table `judged`.

A row has the query's text, its embedding, grades by rows of documents, and where it came from. Rows of
outcomes and clicks have no text. Rows are never changed. A rollback deletes the later ones, and an entry of
kind `judged` in the log `live` says so; `purge` removes what is left of them in the files.

The table is made with the first row, which raises the format of the collection to 3.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence

import numpy as np

from dsearch.errors import CorruptData, DimensionMismatch, InvalidRequest
from dsearch.store.records import MemoryRow
from dsearch.store.sqlite.connection import insert_rows
from dsearch.store.sqlite.digest import canonical_json, judged_digest, judged_fact, record_fact
from dsearch.store.sqlite.journal import Operation
from dsearch.store.sqlite.schema import FORMAT_WITH_JUDGED, JUDGED, has_table, need_table

_COLUMNS = "number, text, state, grades, source, key, digest, written"


def insert(operation: Operation, queries: Sequence[MemoryRow], dimension: int) -> int:
    """Write judged queries; returns the operation's number.

    Raises InvalidRequest for a query without a grade above 0, DimensionMismatch.
    """
    if not queries:
        return operation.reached
    connection = operation.connection
    operation.add_fact(need_table(connection, "judged", JUDGED, FORMAT_WITH_JUDGED))
    (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM judged").fetchone()
    rows: list[tuple[object, ...]] = []
    for number, query in enumerate(queries, last + 1):
        if query.state.shape != (dimension,):
            raise DimensionMismatch(f"a query state of shape {list(query.state.shape)}; use [{dimension}]")
        values = query.grades.values()
        if not all(map(math.isfinite, values)) or max(values, default=0.0) <= 0:
            raise InvalidRequest("a judged query needs finite grades, one above 0")
        grades = canonical_json({str(row): float(grade) for row, grade in query.grades.items()})
        state = query.state.astype("<f4").tobytes()
        fields = query.text, state, grades, query.source, query.key
        digest = _digest(*fields)
        rows.append((number, *fields, digest, operation.sequence))
        operation.add_fact(judged_fact(number, operation.sequence, digest))
    insert_rows(connection, f"judged ({_COLUMNS})", rows)
    return operation.sequence


def drop_after(operation: Operation, sequence: int) -> int:
    """Delete the rows that later operations than `sequence` wrote; returns their number."""
    connection = operation.connection
    if not has_table(connection, "judged"):
        return 0
    query = "SELECT number, written, digest FROM judged WHERE written > ?"
    dropped = connection.execute(query, (sequence,)).fetchall()
    for number, written, digest in dropped:
        operation.take_fact(judged_fact(number, written, digest))
    if dropped:
        connection.execute("DELETE FROM judged WHERE written > ?", (sequence,))
        entry = operation.sequence, "judged", sequence
        connection.execute("INSERT INTO live VALUES (?, ?, ?)", entry)
        operation.add_fact(record_fact(b"live", *entry))
    return len(dropped)


def count_of(connection: sqlite3.Connection, source: str, key: str | None) -> tuple[int, int]:
    """Number of the rows of a source, only those of a key unless it is None; and the first operation."""
    if not has_table(connection, "judged"):
        return 0, 0
    query = (
        "SELECT count(*), coalesce(min(written), 0) FROM judged WHERE source = ? AND (? IS NULL OR key = ?)"
    )
    return connection.execute(query, (source, key, key)).fetchone()


def changed(connection: sqlite3.Connection) -> int:
    """Number of the last operation that wrote or dropped rows; 0 before the first."""
    if not has_table(connection, "judged"):
        return 0
    (written,) = connection.execute("SELECT coalesce(max(written), 0) FROM judged").fetchone()
    return max(written, dropped_by(connection))


def dropped_by(connection: sqlite3.Connection) -> int:
    """Number of the last operation that dropped rows; 0 if none did."""
    query = "SELECT coalesce(max(written), 0) FROM live WHERE kind = 'judged'"
    return connection.execute(query).fetchone()[0]


def read(connection: sqlite3.Connection, after: int = 0) -> list[MemoryRow]:
    """Rows that operations after `after` wrote, in their order; raises CorruptData."""
    if not has_table(connection, "judged"):
        return []
    records = connection.execute(
        f"SELECT {_COLUMNS} FROM judged WHERE written > ? ORDER BY written, number", (after,)
    )
    queries: list[MemoryRow] = []
    for number, text, state, grades, source, key, digest, written in records:
        try:
            whole = _digest(text, state, grades, source, key) == digest
        except (AttributeError, TypeError):  # a flipped bit may turn text into a blob, or a blob into text
            whole = False
        if not whole:
            raise CorruptData(
                f"row {number} of the query memory is not what was written; roll back to before operation "
                f"{written}, or restore a backup"
            )
        by_row = {int(row): grade for row, grade in json.loads(grades).items()}
        numbers = np.frombuffer(state, "<f4")
        queries.append(MemoryRow(text, numbers, by_row, source, key, written))
    return queries


def _digest(text: str, state: bytes, grades: str, source: str, key: str) -> bytes:
    return judged_digest([text.encode(), state, grades.encode(), source.encode(), key.encode()])
