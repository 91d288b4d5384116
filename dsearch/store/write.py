"""Documents and embeddings on their way in: the statements of each kind of operation."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float32, Int64

from ..errors import NotFound
from . import passages as passages_table
from .digest import document_fact, embedding_digest, embedding_fact, tombstone_fact
from .operation import Operation
from .passages import Packed
from .records import WriteReceipt
from .validate import Prepared

_INSERT_DOCUMENT = """
INSERT INTO document (row, id, title, text, metadata, value, digest, written) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


def upsert(
    operation: Operation,
    documents: Sequence[Prepared],
    vectors: Mapping[int, bytes],
    passages: Mapping[int, Packed],
) -> WriteReceipt:
    """Write new versions of what is new or changed; `vectors` has the given embeddings by position in
    `documents`, `passages` those of long documents among them.

    A stored embedding of the same title and text is kept, whatever is given: what was published with it stays
    exact.
    """
    rows: list[int] = []
    new: list[tuple[int, Prepared]] = []
    superseded: list[int] = []
    embedded: list[tuple[int, bytes]] = []
    cut: list[tuple[int, Packed]] = []
    pending: list[tuple[int, int]] = []
    inserted = updated = 0
    for position, document in enumerate(documents):
        found = _live_version(operation.connection, document.id)
        given = vectors.get(position)
        if found is not None and found[1] == document.digest:
            rows.append(found[0])
            if given is not None and _stored_vector(operation.connection, found[0]) is None:
                operation.connection.execute("DELETE FROM pending WHERE row = ?", (found[0],))
                embedded.append((found[0], given))
                if position in passages:
                    cut.append((found[0], passages[position]))
            continue
        operation.last_row += 1
        row = operation.last_row
        vector, parts = given, passages.get(position)
        if found is None:
            inserted += 1
        else:
            updated += 1
            superseded.append(found[0])
            if _content(operation.connection, found[0]) == document.content:
                stored = _stored_vector(operation.connection, found[0])
                if stored is not None:
                    vector, parts = stored, passages_table.stored(operation.connection, found[0])
        rows.append(row)
        new.append((row, document))
        if vector is None:
            pending.append((row, len(document.content)))
        else:
            embedded.append((row, vector))
            if parts is not None:
                cut.append((row, parts))
    _bury(operation, superseded)
    _insert_documents(operation, new)
    _insert_embeddings(operation, embedded)
    passages_table.insert(operation, cut)
    operation.connection.executemany("INSERT INTO pending VALUES (?, ?)", pending)
    operation.documents += inserted
    return WriteReceipt(
        sequence=operation.outcome().sequence,
        inserted=inserted,
        updated=updated,
        unchanged=len(documents) - len(new),
        rows=tuple(rows),
    )


def delete(operation: Operation, ids: Sequence[str]) -> WriteReceipt:
    """Tombstone the live versions of `ids`; an id that is not there is counted as missing."""
    unique = list(dict.fromkeys(ids))
    found = [_live_version(operation.connection, id) for id in unique]
    receipt = delete_rows(operation, [version[0] for version in found if version is not None])
    return replace(receipt, missing=len(unique) - receipt.deleted)


def delete_rows(operation: Operation, rows: Sequence[int]) -> WriteReceipt:
    """Tombstone rows, all of which are live."""
    _bury(operation, rows)
    operation.documents -= len(rows)
    return WriteReceipt(sequence=operation.outcome().sequence, deleted=len(rows), rows=tuple(rows))


def set_embeddings(
    operation: Operation,
    rows: Int64[np.ndarray, " rows"],
    embeddings: Float32[np.ndarray, "rows dimension"],
    passages: Mapping[int, Packed],
) -> int:
    """Store embeddings of pending rows, and passages by row.

    Rows that got an embedding or were superseded meanwhile are passed over.
    """
    waiting: list[tuple[int, bytes]] = []
    for row, embedding in zip(rows.tolist(), embeddings, strict=True):
        deleted = operation.connection.execute("DELETE FROM pending WHERE row = ?", (row,)).rowcount
        if deleted:
            waiting.append((row, embedding.tobytes()))
        elif not 1 <= row <= operation.last_row:
            raise NotFound(f"row {row} was never given out; rows are 1 to {operation.last_row}")
    _insert_embeddings(operation, waiting)
    passages_table.insert(operation, [(row, passages[row]) for row, _ in waiting if row in passages])
    return operation.outcome().sequence


def _live_version(connection: sqlite3.Connection, id: str) -> tuple[int, bytes] | None:
    return connection.execute(
        "SELECT row, digest FROM document WHERE id = ? AND deleted IS NULL", (id,)
    ).fetchone()


def _content(connection: sqlite3.Connection, row: int) -> str:
    title, text = connection.execute("SELECT title, text FROM document WHERE row = ?", (row,)).fetchone()
    return f"{title} {text}".strip()


def _stored_vector(connection: sqlite3.Connection, row: int) -> bytes | None:
    found = connection.execute("SELECT vector FROM embedding WHERE row = ?", (row,)).fetchone()
    return None if found is None else found[0]


def _bury(operation: Operation, rows: Sequence[int]) -> None:
    operation.connection.executemany(
        "UPDATE document SET deleted = ? WHERE row = ?", [(operation.sequence, row) for row in rows]
    )
    operation.connection.executemany("DELETE FROM pending WHERE row = ?", [(row,) for row in rows])
    operation.tombstones += len(rows)
    for row in rows:
        operation.add_fact(tombstone_fact(row, operation.sequence))


def _insert_documents(operation: Operation, documents: Sequence[tuple[int, Prepared]]) -> None:
    written = operation.sequence
    operation.connection.executemany(
        _INSERT_DOCUMENT,
        [(row, d.id, d.title, d.text, d.metadata, d.value, d.digest, written) for row, d in documents],
    )
    for row, document in documents:
        operation.add_fact(document_fact(row, written, document.digest))


def _insert_embeddings(operation: Operation, embeddings: Sequence[tuple[int, bytes]]) -> None:
    written = operation.sequence
    values = [(row, written, embedding_digest(vector), vector) for row, vector in embeddings]
    operation.connection.executemany("INSERT INTO embedding VALUES (?, ?, ?, ?)", values)
    for row, _, digest, _ in values:
        operation.add_fact(embedding_fact(row, written, digest))
