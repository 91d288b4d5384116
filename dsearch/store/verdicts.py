"""Verdicts of the gate, in table `verdict`: how often which held-out queries have judged a candidate.

Rows are only added: a version that is deleted leaves its verdict. Of the held-out queries it has digests of
eight bytes, as base64, so the table holds no text of anybody.

The table is made with the first row, which raises the format of the collection to 4.
"""

from __future__ import annotations

import base64
import sqlite3

import numpy as np

from dsearch.errors import CorruptData
from dsearch.store.records import StoredVerdict
from dsearch.store.sqlite.digest import record_fact
from dsearch.store.sqlite.journal import Operation
from dsearch.store.sqlite.schema import FORMAT_WITH_VERDICTS, VERDICTS, has_table, need_table

COLUMNS = "number, kind, queries, alpha, passed, version, judged_at, written"


def insert(operation: Operation, verdict: StoredVerdict) -> int:
    """Write a verdict; returns the operation's number."""
    connection = operation.connection
    operation.add_fact(need_table(connection, "verdict", VERDICTS, FORMAT_WITH_VERDICTS))
    (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM verdict").fetchone()
    queries = base64.b64encode(verdict.queries.astype("<i8").tobytes()).decode()
    of_gate = float(verdict.alpha), int(verdict.passed)
    about = verdict.version, verdict.judged_at, operation.sequence
    fields = last + 1, verdict.kind, queries, *of_gate, *about
    connection.execute(f"INSERT INTO verdict ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", fields)
    operation.add_fact(record_fact(b"verdict", *fields))
    return operation.sequence


def read(connection: sqlite3.Connection) -> list[StoredVerdict]:
    """All verdicts, oldest first; raises CorruptData."""
    if not has_table(connection, "verdict"):
        return []
    verdicts: list[StoredVerdict] = []
    for number, kind, queries, alpha, passed, version, judged_at, _ in connection.execute(
        f"SELECT {COLUMNS} FROM verdict ORDER BY number"
    ):
        try:
            digests = np.frombuffer(base64.b64decode(queries, validate=True), "<i8").astype(np.int64)
        except (TypeError, ValueError) as error:
            raise CorruptData(
                f"verdict {number} of the gate is not what was written ({error}); restore a backup"
            ) from None
        verdicts.append(StoredVerdict(kind, digests, alpha, bool(passed), version, judged_at))
    return verdicts
