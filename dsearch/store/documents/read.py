"""Read documents and embeddings. Everything is checked against its digest first."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import CorruptData, Gone, NotFound
from dsearch.store.documents.registry import live
from dsearch.store.filters.parse import Filter
from dsearch.store.filters.sql import compile_filter
from dsearch.store.records import Pending, RowChanges, StoreState
from dsearch.store.sqlite.digest import document_digest, embedding_digest
from dsearch.store.sqlite.schema import read_state
from dsearch.types import Document

# Rows fetched by one statement: 2,048 embeddings of 384 numbers are 3 MB.
_CHUNK = 2048
_PLACES = 512  # of one statement; before 3.32 SQLite took 999

_FIELDS = "row, id, title, text, metadata, value, digest"
_NEAR = 100_000  # ids that are compared with one that is not there
_THESE = "row IN (SELECT value FROM json_each(?))"

# Deletion comes first: an upsert alone would see an unchanged digest and skip the document.
_REMEDY = "delete that document and upsert it again, or restore a backup"

# SQLite would scan all embeddings to order the rows: .7 s for a million, at each write.
ADDED = (
    "SELECT row FROM embedding INDEXED BY embedding_written CROSS JOIN document USING (row)"
    " WHERE embedding.written > ? AND deleted IS NULL ORDER BY row"
)
REMOVED = (
    "SELECT row FROM document INDEXED BY document_deleted CROSS JOIN embedding USING (row)"
    " WHERE deleted > ? AND embedding.written <= ? ORDER BY row"
)

Rows = Sequence[int] | Int64[np.ndarray, " rows"]
Stored = TypeVar("Stored")


def snapshot(connection: sqlite3.Connection) -> StoreState:
    """Return the searchable rows: with an embedding and without a tombstone."""
    # Both statements read only an index; joining the tables would read every text.
    embedded = _integers(connection, "SELECT row FROM embedding")
    dead = _integers(connection, "SELECT row FROM document WHERE deleted IS NOT NULL")
    rows = np.setdiff1d(embedded, dead, assume_unique=True)
    return StoreState(read_state(connection).sequence, np.sort(rows))


def changes_since(connection: sqlite3.Connection, sequence: int) -> RowChanges:
    """Return rows that became or ceased to be searchable after operation `sequence`."""
    purged = live(connection, "horizon") or 0
    if sequence < purged:
        raise Gone(
            f"the changes since operation {sequence} are not known any more: deletions up to operation "
            f"{purged} were purged; take a new snapshot, or build a generation"
        )
    added = _integers(connection, ADDED, sequence)
    removed = _integers(connection, REMOVED, sequence, sequence)
    return RowChanges(read_state(connection).sequence, added, removed)


def pending(connection: sqlite3.Connection) -> Pending:
    """Return live rows without an embedding, with the lengths of their contents in characters."""
    records = connection.execute("SELECT row, length FROM pending ORDER BY row").fetchall()
    columns = np.array(records, dtype=np.int64).reshape(-1, 2)
    return Pending(columns[:, 0].copy(), columns[:, 1].copy())


def embeddings(
    connection: sqlite3.Connection, rows: Rows, dimension: int, *, check: bool
) -> Float32[np.ndarray, "rows dimension"]:
    """Return the embeddings of `rows`, in their order, repeats allowed; read in ascending order of rows.

    Raises NotFound for a row without one, CorruptData for a damaged one.
    """
    wanted = np.asarray(rows, dtype=np.int64)
    unique, place = np.unique(wanted, return_inverse=True)
    result = np.empty((len(unique), dimension), dtype=np.float32)
    for start in range(0, len(unique), _CHUNK):
        chunk = unique[start : start + _CHUNK].tolist()
        records = connection.execute(
            f"SELECT vector, digest, row FROM embedding WHERE {_THESE} ORDER BY row", (json.dumps(chunk),)
        ).fetchall()
        if len(records) != len(chunk):
            lost = sorted(set(chunk).difference(row for _, _, row in records))
            raise NotFound(f"row {lost[0]} has no stored embedding; ask for rows of a snapshot")
        for vector, digest, row in records:
            fits = isinstance(vector, bytes) and len(vector) == 4 * dimension
            if not fits or (check and embedding_digest(vector) != digest):
                raise CorruptData(_damaged_embedding(row))
        joined = np.frombuffer(b"".join([vector for vector, _, _ in records]), dtype="<f4")
        result[start : start + len(chunk)] = joined.reshape(-1, dimension)
    ascending = len(unique) == len(wanted) and bool((unique == wanted).all())
    return result if ascending else result[place.reshape(-1)]


def with_embedding(
    connection: sqlite3.Connection, rows: Int64[np.ndarray, " rows"]
) -> Int64[np.ndarray, " left"]:
    """Those of `rows` that have an embedding, ascending."""
    left: list[int] = []
    for start in range(0, len(rows), _CHUNK):
        chunk = json.dumps(rows[start : start + _CHUNK].tolist())
        records = connection.execute(f"SELECT row FROM embedding WHERE {_THESE} ORDER BY row", (chunk,))
        left += [row for (row,) in records]
    return np.array(left, np.int64)


def contents(connection: sqlite3.Connection, rows: Rows) -> list[str]:
    """Return title and text of each row, as encoded and indexed; see `Document.content`."""
    return [document.content for document in documents(connection, rows)]


def documents(connection: sqlite3.Connection, rows: Rows) -> list[Document]:
    """Return the document versions of `rows`, in their order; older snapshots show deleted ones too."""
    numbers = _numbers(rows)
    by_row = {fields[0]: _document(fields) for fields in _by_row(connection, _FIELDS, numbers)}
    return _in_order(numbers, by_row)


def ids(connection: sqlite3.Connection, rows: Rows) -> list[str]:
    """The id of each row, in the order given."""
    numbers = _numbers(rows)
    by_row: dict[int, str] = dict(_by_row(connection, "row, id", numbers))
    return _in_order(numbers, by_row)


def rows_of(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the live row of each id; ids without one are omitted."""
    by_id: dict[str, int] = {}
    for id in ids:
        row = _live(connection, "row", id)
        if row is not None:
            by_id[id] = row[0]
    return by_id


def get(connection: sqlite3.Connection, id: str) -> Document | None:
    """The live document of `id`."""
    fields = _live(connection, _FIELDS, id)
    if fields is None:
        return None
    document = _document(fields)
    if document.id != id:  # a damaged page of the index led to another row
        raise CorruptData(
            f"row {fields[0]} (id {document.id[:80]!r}) was found as {id[:80]!r}: documents.db is damaged; "
            "restore a backup, or index again"
        )
    return document


def near_id(connection: sqlite3.Connection, id: str) -> str | None:
    """The shortest live id with the last part of `id` in it, among the first `_NEAR`; None without one."""
    part = id.rstrip("/").rsplit("/", 1)[-1]
    if not 3 <= len(part) <= 200:
        return None
    pattern = "%" + re.sub(r"([%_!])", r"!\1", part) + "%"
    row = connection.execute(
        f"SELECT id FROM (SELECT id FROM document WHERE deleted IS NULL ORDER BY id LIMIT {_NEAR})"
        " WHERE id LIKE ? ESCAPE '!' ORDER BY length(id), id LIMIT 1",
        (pattern,),
    ).fetchone()
    return None if row is None else row[0]


def page(
    connection: sqlite3.Connection, after: str | None, limit: int, tree: Filter | None
) -> list[Document]:
    """Return the first `limit` live, matching documents with an id after `after`, by code point."""
    condition, parameters = _where(tree)
    n = len(parameters)
    records = connection.execute(
        f"SELECT {_FIELDS} FROM document WHERE deleted IS NULL AND id > ?{n + 1} AND {condition}"
        f" ORDER BY id LIMIT ?{n + 2}",
        (*parameters, after or "", limit),
    )
    return [_document(fields) for fields in records]


def export(connection: sqlite3.Connection, tree: Filter | None) -> Iterator[Document]:
    """Every live document that matches, by id."""
    condition, parameters = _where(tree)
    records = connection.execute(
        f"SELECT {_FIELDS} FROM document WHERE deleted IS NULL AND {condition} ORDER BY id", parameters
    )
    return (_document(fields) for fields in records)


def needs_encoding(connection: sqlite3.Connection, documents: Sequence[Document]) -> list[int]:
    """Return the positions of documents without a stored embedding of the same title and text."""
    positions: list[int] = []
    for position, document in enumerate(documents):
        stored = _live(connection, "title, text, row IN (SELECT row FROM embedding)", document.id)
        if stored is None or not stored[2] or f"{stored[0]} {stored[1]}".strip() != document.content:
            positions.append(position)
    return positions


def _where(tree: Filter | None) -> tuple[str, list[str]]:
    return ("TRUE", []) if tree is None else compile_filter(tree)


def _live(connection: sqlite3.Connection, fields: str, id: str) -> tuple[Any, ...] | None:
    if not is_text(id):
        return None  # such an id cannot be stored
    return connection.execute(
        f"SELECT {fields} FROM document WHERE id = ? AND deleted IS NULL", (id,)
    ).fetchone()


def is_text(id: str) -> bool:
    """False for bytes of a command line that are not UTF-8, which no stored id has."""
    try:
        id.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _numbers(rows: Rows) -> list[int]:
    return rows.tolist() if isinstance(rows, np.ndarray) else [int(row) for row in rows]


def _by_row(connection: sqlite3.Connection, fields: str, rows: list[int]) -> list[tuple[Any, ...]]:
    """Read at once: a cursor that damage leaves open would complain when its connection is closed."""
    unique, records = sorted({*rows}), list[tuple[Any, ...]]()
    for start in range(0, len(unique), _PLACES):
        chunk = unique[start : start + _PLACES]
        places = ",".join("?" * len(chunk))  # for the few of an answer cheaper than an array of JSON
        records += connection.execute(f"SELECT {fields} FROM document WHERE row IN ({places})", chunk)
    return records


def _in_order(rows: list[int], by_row: dict[int, Stored]) -> list[Stored]:
    try:
        return [by_row[row] for row in rows]
    except KeyError as missing:
        raise NotFound(
            f"row {missing.args[0]} is not in this collection; ask for rows of a snapshot"
        ) from None


def _document(fields: tuple[Any, ...]) -> Document:
    row, id, title, text, metadata, value, digest = fields
    try:
        parts = id.encode(), title.encode(), text.encode(), metadata.encode()
        whole = document_digest(*parts, b"" if value is None else value.encode()) == digest
    except AttributeError:  # a flipped bit may turn text into a blob of the same bytes, which has no encode
        whole = False
    if not whole:
        raise CorruptData(
            f"row {row} (id {str(id)[:80]!r}): its text or metadata are not what was written; {_REMEDY}"
        )
    return Document(id, text, title, json.loads(metadata), None if value is None else json.loads(value))


def _damaged_embedding(row: int) -> str:
    return f"row {row}: its embedding is not what was written; {_REMEDY}"


def _integers(connection: sqlite3.Connection, query: str, *parameters: int) -> Int64[np.ndarray, " rows"]:
    cursor = connection.execute(query, parameters)
    return np.fromiter((row for (row,) in cursor), dtype=np.int64)
