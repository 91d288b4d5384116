"""Write documents and embeddings: the statements of each kind of operation."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import NotFound
from dsearch.store.documents import passages as passages_table
from dsearch.store.documents.passages import Packed
from dsearch.store.documents.read import is_text
from dsearch.store.documents.validate import DocumentRow, embedding_bytes
from dsearch.store.records import WriteReceipt
from dsearch.store.sqlite.connection import insert_rows
from dsearch.store.sqlite.digest import document_fact, embedding_digest, embedding_fact, tombstone_fact
from dsearch.store.sqlite.journal import Operation

_VERSION = "document (row, id, title, text, metadata, value, digest, written)"
_LOOKED_UP = 256  # ids in one statement


def upsert(
    operation: Operation,
    documents: Sequence[DocumentRow],
    vectors: Mapping[int, bytes],
    passages: Mapping[int, Packed],
    *,
    replaces: bool = False,
) -> WriteReceipt:
    """Write versions of new and changed documents.

    `vectors` has embeddings by position in `documents`, `passages` those of long documents.

    A stored embedding of the same title and text is kept even if another is supplied, so published results
    stay exact: an encoder may round otherwise in another batch. With `replaces` the supplied one counts.
    """
    rows: list[int] = []
    new: list[tuple[int, DocumentRow]] = []
    superseded: list[int] = []
    embedded: list[tuple[int, bytes]] = []
    cut: list[tuple[int, Packed]] = []
    pending: list[tuple[int, int]] = []
    inserted = updated = 0
    last_row = operation.counters["last_row"]
    live = _live_versions(operation.connection, [document.id for document in documents])
    for position, document in enumerate(documents):
        present = live.get(document.id)
        new_vector = vectors.get(position)
        stored, other = None, replaces and new_vector is not None
        if present is not None and present[1] == document.digest:
            stored = None if new_vector is None else _stored_vector(operation.connection, present[0])
            other = other and stored not in (None, new_vector)
        if present is not None and present[1] == document.digest and not other:
            rows.append(present[0])
            if new_vector is not None and stored is None:
                operation.connection.execute("DELETE FROM pending WHERE row = ?", (present[0],))
                embedded.append((present[0], new_vector))
                if position in passages:
                    cut.append((present[0], passages[position]))
            continue
        last_row += 1
        row = last_row
        vector, parts = new_vector, passages.get(position)
        if present is None:
            inserted += 1
        else:
            updated += 1
            superseded.append(present[0])
            if not other and _content(operation.connection, present[0]) == document.content:
                stored = _stored_vector(operation.connection, present[0])
                if stored is not None:
                    vector, parts = stored, passages_table.stored(operation.connection, present[0])
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
    insert_rows(operation.connection, "pending", pending)
    operation.counters["last_row"] = last_row
    operation.counters["documents"] += inserted
    return WriteReceipt(
        sequence=operation.reached,
        inserted=inserted,
        updated=updated,
        unchanged=len(documents) - len(new),
        rows=tuple(rows),
    )


def delete(operation: Operation, ids: Sequence[str]) -> WriteReceipt:
    """Tombstone the live versions of `ids`; unknown ids are counted as missing."""
    unique = list(dict.fromkeys(ids))
    live = _live_versions(operation.connection, unique)
    receipt = delete_rows(operation, [live[id][0] for id in unique if id in live])
    return replace(receipt, missing=len(unique) - receipt.deleted)


def delete_rows(operation: Operation, rows: Sequence[int]) -> WriteReceipt:
    """Tombstone rows, all of which are live."""
    _bury(operation, rows)
    operation.counters["documents"] -= len(rows)
    return WriteReceipt(sequence=operation.reached, deleted=len(rows), rows=tuple(rows))


def set_embeddings(
    operation: Operation,
    rows: Int64[np.ndarray, " rows"],
    embeddings: Float32[np.ndarray, "rows dimension"],
    passages: Mapping[int, Packed],
) -> int:
    """Store embeddings of pending rows, and passages by row.

    Rows that got an embedding or were superseded meanwhile are skipped.
    """
    waiting: list[tuple[int, bytes]] = []
    for row, embedding in zip(rows.tolist(), embedding_bytes(embeddings), strict=True):
        deleted = operation.connection.execute("DELETE FROM pending WHERE row = ?", (row,)).rowcount
        if deleted:
            waiting.append((row, embedding))
        elif not 1 <= row <= (last := operation.counters["last_row"]):
            raise NotFound(f"row {row} was never given out; rows are 1 to {last}")
    _insert_embeddings(operation, waiting)
    passages_table.insert(operation, [(row, passages[row]) for row, _ in waiting if row in passages])
    return operation.reached


def _live_versions(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, tuple[int, bytes]]:
    """Return row and digest of the live documents among `ids`, by id."""
    versions: dict[str, tuple[int, bytes]] = {}
    ids = [id for id in ids if is_text(id)]
    for start in range(0, len(ids), _LOOKED_UP):
        chunk = ids[start : start + _LOOKED_UP]
        marks = ",".join(["(?)"] * len(chunk))  # a list behind IN would be sorted into a table first
        for id, row, digest in connection.execute(
            f"WITH given (id) AS (VALUES {marks}) SELECT document.id, row, digest"
            " FROM given CROSS JOIN document ON document.id = given.id WHERE deleted IS NULL",
            chunk,
        ):
            versions[id] = row, digest
    return versions


def _content(connection: sqlite3.Connection, row: int) -> str:
    title, text = connection.execute("SELECT title, text FROM document WHERE row = ?", (row,)).fetchone()
    return f"{title} {text}".strip()


def _stored_vector(connection: sqlite3.Connection, row: int) -> bytes | None:
    record = connection.execute("SELECT vector FROM embedding WHERE row = ?", (row,)).fetchone()
    return None if record is None else record[0]


def _bury(operation: Operation, rows: Sequence[int]) -> None:
    if not rows:
        return
    operation.connection.executemany(
        "UPDATE document SET deleted = ? WHERE row = ?", [(operation.sequence, row) for row in rows]
    )
    operation.connection.executemany("DELETE FROM pending WHERE row = ?", [(row,) for row in rows])
    operation.counters["tombstones"] += len(rows)
    operation.add_facts([tombstone_fact(row, operation.sequence) for row in rows])


def _insert_documents(operation: Operation, documents: Sequence[tuple[int, DocumentRow]]) -> None:
    written = operation.sequence
    versions = [(row, *document, written) for row, document in documents]
    insert_rows(operation.connection, _VERSION, versions)
    operation.add_facts([document_fact(row, written, document.digest) for row, document in documents])


def _insert_embeddings(operation: Operation, embeddings: Sequence[tuple[int, bytes]]) -> None:
    written = operation.sequence
    values = [(row, written, embedding_digest(vector), vector) for row, vector in embeddings]
    insert_rows(operation.connection, "embedding", values)
    operation.add_facts([embedding_fact(row, written, digest) for row, _, digest, _ in values])
