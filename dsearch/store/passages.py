"""Further embeddings of long documents: rows of table `passages`, written atomically.

A document longer than the encoder's window has an embedding for each of its passages. The first one is its
row of table `embedding`, as for any document; this table has the passages' places in the text and the
embeddings of those after the first. Collections of format 1 have no such table and no long documents.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dsearch.errors import Conflict, CorruptData, InvalidRequest
from dsearch.store.records import Passages
from dsearch.store.sqlite.connection import insert_rows
from dsearch.store.sqlite.digest import passages_digest, passages_fact
from dsearch.store.sqlite.journal import Operation
from dsearch.store.sqlite.schema import has_table
from dsearch.store.validate import finite_float32

Packed = tuple[bytes, bytes]
"""Spans as little-endian int32 pairs, embeddings as little-endian float32."""

_CHUNK = 256  # documents fetched by one statement


def pack(passages: Passages, dimension: int) -> Packed:
    """Check the passages of a document and serialise them; raises InvalidRequest."""
    spans, embeddings = np.asarray(passages.spans), np.asarray(passages.embeddings)
    if spans.shape != (len(embeddings) + 1, 2) or embeddings.shape != (len(spans) - 1, dimension):
        raise InvalidRequest(
            f"spans of shape {list(spans.shape)} and further embeddings of shape {list(embeddings.shape)}; "
            f"use [passages, 2] and [passages - 1, {dimension}]"
        )
    starts, ends = spans[:, 0], spans[:, 1]
    if len(spans) < 2 or (starts < 0).any() or (ends <= starts).any() or (np.diff(starts) < 0).any():
        raise InvalidRequest(
            "spans are [start, end) in characters, not empty, by their starts, at least two of them"
        )
    return spans.astype("<i4").tobytes(), finite_float32(embeddings).tobytes()


def insert(operation: Operation, passages: Iterable[tuple[int, Packed]]) -> None:
    """Store the passages of rows whose embeddings are stored by the same operation."""
    written = operation.sequence
    values = [(row, written, passages_digest(*packed), *packed) for row, packed in passages]
    if values and not has_table(operation.connection, "passages"):
        raise Conflict(
            "this collection has format 1, which has no passages: index the sources into a new collection"
        )
    insert_rows(operation.connection, "passages", values)
    operation.add_facts([passages_fact(row, written, digest) for row, _, digest, *_ in values])


def stored(connection: sqlite3.Connection, row: int) -> Packed | None:
    """Return the stored passages of a row; None for a document with one embedding."""
    if not has_table(connection, "passages"):
        return None
    return connection.execute("SELECT spans, vectors FROM passages WHERE row = ?", (row,)).fetchone()


def remove(operation: Operation, rows: Sequence[int]) -> None:
    """Remove the passages of rows that are purged."""
    connection = operation.connection
    if not has_table(connection, "passages"):
        return
    for row in rows:
        for written, digest in connection.execute(
            "SELECT written, digest FROM passages WHERE row = ?", (row,)
        ):
            operation.take_fact(passages_fact(row, written, digest))
    connection.executemany("DELETE FROM passages WHERE row = ?", [(row,) for row in rows])


def read(connection: sqlite3.Connection, rows: Sequence[int], dimension: int) -> Mapping[int, Passages]:
    """Read the passages of the long documents among `rows`, ascending, and verify them.

    Raises CorruptData.
    """
    by_row: dict[int, Passages] = {}
    if (
        not has_table(connection, "passages")
        or connection.execute("SELECT 1 FROM passages LIMIT 1").fetchone() is None
    ):
        return by_row
    for start in range(0, len(rows), _CHUNK):
        chunk = json.dumps([int(row) for row in rows[start : start + _CHUNK]])
        for row, digest, spans, vectors in connection.execute(
            "SELECT row, digest, spans, vectors FROM passages"
            " WHERE row IN (SELECT value FROM json_each(?)) ORDER BY row",
            (chunk,),
        ):
            # A flipped bit may turn a blob into a text of the same bytes.
            blobs = isinstance(spans, bytes) and isinstance(vectors, bytes)
            fits = blobs and len(spans) % 8 == 0 and len(vectors) == 4 * dimension * (len(spans) // 8 - 1)
            if not fits or passages_digest(spans, vectors) != digest:
                raise CorruptData(
                    f"row {row}: its passages are not what was written; delete that document and upsert it "
                    "again, or restore a backup"
                )
            by_row[row] = Passages(
                np.frombuffer(spans, "<i4").reshape(-1, 2).astype(np.int64),
                np.frombuffer(vectors, "<f4").reshape(-1, dimension),
            )
    return dict(sorted(by_row.items()))
