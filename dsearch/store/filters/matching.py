"""Rows that match a filter, counts and values of fields, in SQLite."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict

import numpy as np
from jaxtyping import Int64

from dsearch.results import FacetValue
from dsearch.store.filters.parse import Filter, Keys, Scalar
from dsearch.store.filters.sql import compile_filter, json_path
from dsearch.store.records import DocumentCounts
from dsearch.store.sqlite.schema import read_state

_RECENT = 8  # filters; 8 MB each in a collection of a million documents

# NOT INDEXED: read in the order of rows, not of ids.
_LIVE = "FROM document NOT INDEXED WHERE deleted IS NULL"
_KINDS = "CASE type WHEN 'integer' THEN 'number' WHEN 'real' THEN 'number' ELSE type END"


class RowMatches:
    """Cache of the rows that the last few filters match, deleted ones included.

    A row is one version of a document and never changes, so cached results stay valid: after a write only the
    new rows are evaluated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows_of: OrderedDict[str, tuple[int, Int64[np.ndarray, " rows"]]] = OrderedDict()

    def rows(
        self, connection: sqlite3.Connection, tree: Filter, after: int = 0
    ) -> Int64[np.ndarray, " rows"]:
        """Return all matching rows above `after`, ascending; the array is shared and read-only."""
        last = read_state(connection).last_row
        key = f"{after} {tree!r}"  # by repr: 1 and True are equal in Python
        with self._lock:
            looked_at, rows = self._rows_of.get(key, (after, np.empty(0, np.int64)))
        if looked_at < last:
            condition, parameters = compile_filter(tree)
            query = (
                f"SELECT row FROM document NOT INDEXED WHERE row > {looked_at} AND {condition} ORDER BY row"
            )
            rows = np.concatenate([rows, _rows(connection, query, parameters)])
            rows.setflags(write=False)
        with self._lock:
            if looked_at <= last:
                self._rows_of[key] = last, rows
            self._rows_of.move_to_end(key)
            while len(self._rows_of) > _RECENT:
                self._rows_of.popitem(last=False)
        return rows[: np.searchsorted(rows, last, "right")]


def _rows(connection: sqlite3.Connection, query: str, parameters: list[str]) -> Int64[np.ndarray, " rows"]:
    return np.fromiter((row for (row,) in connection.execute(query, parameters)), dtype=np.int64)


def live_rows(connection: sqlite3.Connection, tree: Filter) -> list[int]:
    """All live rows that match, ascending."""
    condition, parameters = compile_filter(tree)
    records = connection.execute(f"SELECT row {_LIVE} AND {condition} ORDER BY row", parameters)
    return [row for (row,) in records]


def count(connection: sqlite3.Connection, tree: Filter) -> DocumentCounts:
    """Live documents that match, and those of them without an embedding."""
    condition, parameters = compile_filter(tree)
    query = f"SELECT count(*), coalesce(sum(row IN (SELECT row FROM pending)), 0) {_LIVE} AND {condition}"
    documents, waiting = connection.execute(query, parameters).fetchone()
    return DocumentCounts(documents, waiting, tombstones=0)


def facets(connection: sqlite3.Connection, keys: Keys, tree: Filter | None, limit: int) -> list[FacetValue]:
    """Return the most frequent values under `keys` among live, matching documents."""
    condition, parameters = ("TRUE", []) if tree is None else compile_filter(tree)
    path = f"?{len(parameters) + 1}"
    # json_each also returns the members of an object, which are values of other fields.
    records = connection.execute(
        f"""
        SELECT kind, atom, count(*) AS documents FROM (
            SELECT DISTINCT row, {_KINDS} AS kind, atom
            FROM (SELECT row, metadata {_LIVE} AND {condition}), json_each(metadata, {path})
            WHERE json_type(metadata, {path}) != 'object' AND type NOT IN ('object', 'array')
        ) GROUP BY kind, atom ORDER BY documents DESC, kind, atom LIMIT ?{len(parameters) + 2}
        """,
        (*parameters, json_path(keys), limit),
    )
    return [FacetValue(_python_value(kind, atom), documents) for kind, atom, documents in records]


def _python_value(kind: str, atom: str | int | float | None) -> Scalar:
    return kind == "true" if kind in ("true", "false") else atom
