"""`Reader`: all reads of a collection, from any thread, concurrent with the writer.

Each read sees one state of the collection and is checked against its digests.

It also evaluates filters: matching rows, counts, and the values of a field.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.declared import suggestion
from dsearch.errors import CorruptData, DocumentNotFound, Gone, InvalidRequest, NotFound
from dsearch.results import FacetValue
from dsearch.store import judged, passages, registry, verdicts
from dsearch.store.filters import (
    LIVE,
    SAMPLE,
    Filter,
    Keys,
    RowMatches,
    Scalar,
    condition_of,
    filter_of,
    json_path,
    meant_among,
    parse_field,
    parse_filter,
    value_at,
)
from dsearch.store.records import (
    DocumentCounts,
    GenerationRecord,
    MemoryRow,
    ModelRecord,
    Passages,
    Pending,
    RowChanges,
    StoredVerdict,
    StoreState,
    VerifyReport,
)
from dsearch.store.sqlite.connection import ReaderPool
from dsearch.store.sqlite.digest import document_digest, embedding_digest
from dsearch.store.sqlite.schema import CollectionMeta, read_state
from dsearch.store.verify import verify
from dsearch.types import Document

MAX_PAGE = 10_000
MAX_FACETS = 1000
_KINDS = "CASE type WHEN 'integer' THEN 'number' WHEN 'real' THEN 'number' ELSE type END"

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


class Reader:
    """A collection open for reading; `Store` adds writing.

    Attributes:
        path: its folder.
        name: its name.
        dimension: length of an embedding.
    """

    def __init__(self, path: Path, meta: CollectionMeta, readers: ReaderPool) -> None:
        self.path = path
        self.name, self.dimension = meta.name, meta.dimension
        self._meta = meta
        self._readers = readers
        self._matches = RowMatches()
        self._predicting: dict[int, bool] = {}

    # ---- properties

    @property
    def encoder(self) -> dict[str, Any]:
        """Identity of the encoder of the embeddings, as given to `create`."""
        return dict(self._meta.encoder)

    @property
    def cutting(self) -> dict[str, Any] | None:
        """Settings that cut long documents into passages, as passed to `create`; None if they are not cut."""
        return None if self._meta.passages is None else dict(self._meta.passages)

    @property
    def sequence(self) -> int:
        """Number of the last operation; 0 before the first."""
        with self._readers.reading() as connection:
            return read_state(connection).sequence

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._readers.closed

    def count(self, filter: object = None) -> DocumentCounts:
        """Number of documents that are live, pending and deleted.

        With a filter (JSON or a parsed tree, here and below), only matching documents count, and deletions
        count as 0. Raises InvalidRequest.
        """
        tree = filter_of(filter)
        with self._readers.reading() as connection:
            if tree is not None:
                condition, parameters = condition_of(tree)
                waiting = "coalesce(sum(row IN (SELECT row FROM pending)), 0)"
                query = f"SELECT count(*), {waiting} {LIVE} AND {condition}"
                return DocumentCounts(*connection.execute(query, parameters).fetchone(), tombstones=0)
            state = read_state(connection)
            (waiting,) = connection.execute("SELECT count(*) FROM pending").fetchone()
        return DocumentCounts(state.documents, waiting, state.tombstones)

    # ---- integrity

    def verify(self) -> VerifyReport:
        """Verify all data by its digests; damage is reported, not raised. Writes continue."""
        with self._readers.reading() as connection:
            return verify(connection)

    # ---- reading

    def needs_encoding(self, documents: Sequence[Document]) -> list[int]:
        """Return the positions of documents without a stored embedding of the same title and text."""
        with self._readers.reading() as connection:
            positions: list[int] = []
            for position, document in enumerate(documents):
                stored = _live(connection, "title, text, row IN (SELECT row FROM embedding)", document.id)
                if stored is None or not stored[2] or f"{stored[0]} {stored[1]}".strip() != document.content:
                    positions.append(position)
            return positions

    def pending(self) -> Pending:
        """Return live rows without an embedding, with the lengths of their contents in characters."""
        with self._readers.reading() as connection:
            records = connection.execute("SELECT row, length FROM pending ORDER BY row").fetchall()
            columns = np.array(records, dtype=np.int64).reshape(-1, 2)
            return Pending(columns[:, 0].copy(), columns[:, 1].copy())

    def contents(self, rows: Rows) -> list[str]:
        """Text to encode and index of each row: title and text, joined by a space."""
        return [document.content for document in self.documents(rows)]

    def snapshot(self) -> StoreState:
        """Return the searchable rows (live, with an embedding), ascending, with their operation."""
        with self._readers.reading() as connection:
            # Both statements read only an index; joining the tables would read every text.
            embedded = _integers(connection, "SELECT row FROM embedding")
            dead = _integers(connection, "SELECT row FROM document WHERE deleted IS NOT NULL")
            rows = np.setdiff1d(embedded, dead, assume_unique=True)
            return StoreState(read_state(connection).sequence, np.sort(rows))

    def rows(self) -> Int64[np.ndarray, " rows"]:
        """Return the searchable rows, ascending; `snapshot` adds the operation."""
        return self.snapshot().rows

    def changes_since(self, sequence: int) -> RowChanges:
        """Return rows that became or ceased to be searchable after operation `sequence`."""
        with self._readers.reading() as connection:
            purged = registry.live(connection, "horizon") or 0
            if sequence < purged:
                raise Gone(
                    f"the changes since operation {sequence} are not known any more: deletions up to "
                    f"operation {purged} were purged; take a new snapshot, or build a generation"
                )
            added = _integers(connection, ADDED, sequence)
            removed = _integers(connection, REMOVED, sequence, sequence)
            return RowChanges(read_state(connection).sequence, added, removed)

    def embeddings(self, rows: Rows, *, check: bool = True) -> Float32[np.ndarray, "rows dimension"]:
        """Embeddings in the order of `rows`, deleted ones too; raises NotFound for a row without one.

        Each is checked against its digest (CorruptData) unless `check` is False.
        """
        with self._readers.reading() as connection:
            return _embeddings(connection, rows, self.dimension, check=check)

    def embeddings_left(
        self, rows: Int64[np.ndarray, " rows"]
    ) -> tuple[Int64[np.ndarray, " left"], Float32[np.ndarray, "left dimension"]]:
        """Those of `rows` that were not purged, and their embeddings; raises CorruptData."""
        with self._readers.reading() as connection:
            left: list[int] = []
            for start in range(0, len(rows), _CHUNK):
                chunk = json.dumps(rows[start : start + _CHUNK].tolist())
                query = f"SELECT row FROM embedding WHERE {_THESE} ORDER BY row"
                left += [row for (row,) in connection.execute(query, (chunk,))]
            present = np.array(left, np.int64)
            return present, _embeddings(connection, present, self.dimension, check=True)

    def passages(self, rows: Rows) -> Mapping[int, Passages]:
        """Return the passages of the long documents among `rows`, by row, ascending; raises CorruptData."""
        with self._readers.reading() as connection:
            return passages.read(connection, [int(row) for row in rows], self.dimension)

    def documents(self, rows: Rows) -> list[Document]:
        """Document versions in the order of `rows`, deleted ones too; raises NotFound, CorruptData."""
        numbers = _numbers(rows)
        with self._readers.reading() as connection:
            by_row = {fields[0]: _document(fields) for fields in _by_row(connection, _FIELDS, numbers)}
            return _in_order(numbers, by_row)

    def ids(self, rows: Rows) -> list[str]:
        """Ids in the order of `rows`; raises NotFound."""
        numbers = _numbers(rows)
        with self._readers.reading() as connection:
            return _in_order(numbers, dict[int, str](_by_row(connection, "row, id", numbers)))

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the live row of each id; ids without one are omitted."""
        with self._readers.reading() as connection:
            found = ((id, _live(connection, "row", id)) for id in ids)
            return {id: row[0] for id, row in found if row is not None}

    def get(self, id: str) -> Document:
        """Return the live document of `id`; raises DocumentNotFound."""
        with self._readers.reading() as connection:
            document = live_document(connection, id)
            near = _near_id(connection, id) if document is None else None
        if document is None:
            meant = "" if near is None else f"; did you mean {near[:200]!r}?"
            raise DocumentNotFound(
                f"no document {id[:80]!r} in collection {self.name!r}; ids are exact{meant}"
            )
        return document

    def list(self, after: str | None = None, limit: int = 100, filter: object = None) -> list[Document]:
        """Return a page of live documents by id (code points); `after` is the last id of the page before."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidRequest(f"limit={limit}; use 1 to {MAX_PAGE}")
        tree = filter_of(filter)
        with self._readers.reading() as connection:
            condition, parameters = condition_of(tree)
            n = len(parameters)
            records = connection.execute(
                f"SELECT {_FIELDS} FROM document WHERE deleted IS NULL AND id > ?{n + 1} AND {condition}"
                f" ORDER BY id LIMIT ?{n + 2}",
                (*parameters, after or "", limit),
            )
            return [_document(fields) for fields in records]

    def export(self, filter: object = None) -> Iterator[Document]:
        """Yield all live documents by id, in the state at the first one.

        An open iterator prevents checkpoints of the write-ahead log; do not hold it for hours.
        """
        return self._export(filter_of(filter))  # which raises here, not at the first document

    # ---- metadata

    def rows_matching_ever(self, filter: object, after: int = 0) -> Int64[np.ndarray, " rows"]:
        """Return all rows above `after` that match a filter, ascending, read-only; raises InvalidRequest.

        They include pending, replaced and deleted rows, and a match never changes. The result can therefore
        be intersected with the rows of any state. It is cached for the last few filters; a repeated call
        evaluates only later rows.
        """
        tree = parse_filter(filter)
        with self._readers.reading() as connection:
            return self._matches.rows(connection, tree, after)

    def facets(self, field: str, filter: object = None, limit: int = 10) -> Sequence[FacetValue]:
        """Return the most frequent values of a metadata field among live documents, with their counts.

        Each element of a list counts once per document; objects, and lists in lists, do not count. Equal
        counts are ordered by type, then by value. Raises InvalidRequest.
        """
        if not 1 <= limit <= MAX_FACETS:
            raise InvalidRequest(f"limit={limit}; use 1 to {MAX_FACETS}")
        keys, tree = parse_field(field), filter_of(filter)
        with self._readers.reading() as connection:
            condition, parameters = condition_of(tree)
            path = f"?{len(parameters) + 1}"
            # json_each also returns the members of an object, which are values of other fields.
            records = connection.execute(
                f"""
                SELECT kind, atom, count(*) AS documents FROM (
                    SELECT DISTINCT row, {_KINDS} AS kind, atom
                    FROM (SELECT row, metadata {LIVE} AND {condition}), json_each(metadata, {path})
                    WHERE json_type(metadata, {path}) != 'object' AND type NOT IN ('object', 'array')
                ) GROUP BY kind, atom ORDER BY documents DESC, kind, atom LIMIT ?{len(parameters) + 2}
                """,
                (*parameters, json_path(keys), limit),
            )
            return [
                FacetValue(kind == "true" if kind in ("true", "false") else atom, documents)
                for kind, atom, documents in records
            ]

    def field_values(self, rows: Rows, field: str) -> Sequence[Scalar]:
        """Return the metadata field of each row (dotted path); None if absent, a list or an object.

        Raises NotFound, CorruptData, InvalidRequest.
        """
        keys = parse_field(field)
        values = (value_at(document.metadata, keys) for document in self.documents(rows))
        return [value if isinstance(value, Scalar) else None for value in values]

    def values(self, rows: Rows) -> Sequence[float | Sequence[float] | None]:
        """Return each row's `Document.value`; raises NotFound, CorruptData."""
        return [document.value for document in self.documents(rows)]

    # ---- generations and models

    def next_generation_number(self) -> int:
        """Return a number that no registered generation and no folder in `generations/` has."""
        with self._readers.reading() as connection:
            return registry.next_number(connection, "generation", self.path)

    def live_generation(self) -> GenerationRecord | None:
        """Return the live generation; None before the first."""
        with self._readers.reading() as connection:
            number = registry.live(connection, "generation")
            return None if number is None else registry.generation(connection, number)

    def generations(self) -> list[GenerationRecord]:
        """All registered generations, by number."""
        with self._readers.reading() as connection:
            return registry.generations(connection)

    def next_model_version(self) -> str:
        """Return a version that no registered model and no folder in `models/` has."""
        with self._readers.reading() as connection:
            return f"v{registry.next_number(connection, 'model', self.path)}"

    def live_model(self) -> str:
        """Return the promoted version; "v0" before any promotion."""
        with self._readers.reading() as connection:
            return f"v{registry.live_model(connection, self._predicting)}"

    def model_history(self) -> list[str]:
        """Return the versions that were live, newest first; a rollback promotes an earlier one."""
        with self._readers.reading() as connection:
            return [f"v{number}" for number in registry.model_history(connection, self._predicting)]

    def predicts_only(self, version: str) -> bool:
        """True for a version of an earlier release that answered predictions and no searches."""
        with self._readers.reading() as connection:
            return registry.predicts_only(connection, registry.version_number(version), self._predicting)

    def model(self, version: str) -> ModelRecord:
        """One model, v0 too; raises ModelNotFound."""
        with self._readers.reading() as connection:
            return registry.model(connection, version)

    def models(self) -> list[ModelRecord]:
        """Return all trained models, by version; without v0, which has no record."""
        with self._readers.reading() as connection:
            return registry.models(connection)

    # ---- query memory

    def judged_state(self) -> tuple[int, int]:
        """Return the last operations that changed the rows of the query memory, and that dropped some."""
        with self._readers.reading() as connection:
            return judged.changed(connection), judged.dropped_by(connection)

    def judged(self, after: int = 0) -> Sequence[MemoryRow]:
        """Return the rows of the query memory that operations after `after` wrote; raises CorruptData."""
        with self._readers.reading() as connection:
            return judged.read(connection, after)

    def count_judged(self, source: str, key: str | None = None) -> tuple[int, int]:
        """Count the rows of the query memory of a source, of a key unless it is None.

        Returns their number and the first operation that wrote one.
        """
        with self._readers.reading() as connection:
            return judged.count_of(connection, source, key)

    # ---- ledger of the gate

    def verdicts(self) -> Sequence[StoredVerdict]:
        """Return the verdicts of the gate, oldest first; raises CorruptData."""
        with self._readers.reading() as connection:
            return verdicts.read(connection)

    # ---- closing

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._readers.close()

    def _export(self, tree: Filter | None) -> Iterator[Document]:
        with self._readers.reading() as connection:
            condition, parameters = condition_of(tree)
            query = f"SELECT {_FIELDS} FROM document WHERE deleted IS NULL AND {condition} ORDER BY id"
            for fields in connection.execute(query, parameters):
                yield _document(fields)


def live_document(connection: sqlite3.Connection, id: str) -> Document | None:
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


def _near_id(connection: sqlite3.Connection, id: str) -> str | None:
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


def _embeddings(
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
                raise CorruptData(f"row {row}: its embedding is not what was written; {_REMEDY}")
        joined = np.frombuffer(b"".join([vector for vector, _, _ in records]), dtype="<f4")
        result[start : start + len(chunk)] = joined.reshape(-1, dimension)
    ascending = len(unique) == len(wanted) and bool((unique == wanted).all())
    return result if ascending else result[place.reshape(-1)]


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


def _integers(connection: sqlite3.Connection, query: str, *parameters: int) -> Int64[np.ndarray, " rows"]:
    cursor = connection.execute(query, parameters)
    return np.fromiter((row for (row,) in cursor), dtype=np.int64)


def refuse_misspelt(store: Reader, fields: Iterable[Keys], where: str, *, also: Sequence[str] = ()) -> None:
    """Refuse fields that no document has if one of a similar name is there, or among the names of `also`.

    For requests that would have an empty answer.

    Raises:
        InvalidRequest: with the field that may have been meant.
    """
    sample: list[Document] | None = None
    for keys in fields:
        field = ".".join(keys)
        sample = store.list(limit=SAMPLE) if sample is None else sample
        meant = meant_among(field, sample) or suggestion(field, also)
        if not meant or store.count({_escaped(keys): {"exists": True}}).documents:
            continue
        raise InvalidRequest(
            f"{where}: no document has the field {field[:80]!r}{meant}; use a field of the metadata"
        )


def _escaped(keys: Keys) -> str:
    path = ".".join(key.replace(".", r"\.") for key in keys)
    return f"\\{path}" if path in ("and", "or", "not") else path
