"""Rows into a table, many with one statement.

A statement costs as much in Python and in the locks that it takes and gives as its row does in SQLite, and
whoever waits for Python gets it between two statements. So rows go in by blocks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain

_BLOCK_ROWS = 16


def insert_rows(connection: sqlite3.Connection, into: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows, each with as many values as there are columns; `into` is a table, or table and columns."""
    if not rows:
        return
    whole = len(rows) - len(rows) % _BLOCK_ROWS
    for start in range(0, whole, _BLOCK_ROWS):
        values = chain.from_iterable(rows[start : start + _BLOCK_ROWS])
        connection.execute(_statement(into, len(rows[0]), _BLOCK_ROWS), tuple(values))
    if whole < len(rows):
        connection.executemany(_statement(into, len(rows[0]), 1), rows[whole:])


@cache
def _statement(into: str, columns: int, rows: int) -> str:
    row = f"({','.join('?' * columns)})"
    return f"INSERT INTO {into} VALUES {','.join([row] * rows)}"
