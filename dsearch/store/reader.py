"""`Reader`: all reads of a collection, from any thread, concurrent with the writer.

Each read sees one state of the collection and is checked against its digests.

It also evaluates filters: matching rows, counts, and the values of a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import DocumentNotFound, InvalidRequest
from dsearch.results import FacetValue
from dsearch.store.documents import judged, passages, read, registry
from dsearch.store.documents.read import Rows
from dsearch.store.filters import matching
from dsearch.store.filters.parse import Filter, Keys, Scalar, filter_of, parse_field, parse_filter, value_at
from dsearch.store.records import (
    DocumentCounts,
    GenerationRecord,
    MemoryRow,
    ModelRecord,
    Passages,
    Pending,
    RowChanges,
    StoreState,
    VerifyReport,
)
from dsearch.store.sqlite.connection import ReaderPool
from dsearch.store.sqlite.schema import CollectionMeta, read_state
from dsearch.store.verify import verify
from dsearch.types import Document

MAX_PAGE = 10_000
MAX_FACETS = 1000


class Reader:
    """A collection open for reading; `Store` adds writing."""

    def __init__(self, path: Path, meta: CollectionMeta, readers: ReaderPool) -> None:
        self.path = path
        self._meta = meta
        self._readers = readers
        self._matches = matching.RowMatches()
        self._predicting: dict[int, bool] = {}

    # ---- properties

    @property
    def name(self) -> str:
        """The collection's name."""
        return self._meta.name

    @property
    def encoder(self) -> dict[str, Any]:
        """Identity of the encoder of the embeddings, as given to `create`."""
        return dict(self._meta.encoder)

    @property
    def dimension(self) -> int:
        """Length of an embedding."""
        return self._meta.dimension

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
                return matching.count(connection, tree)
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
            return read.needs_encoding(connection, documents)

    def pending(self) -> Pending:
        """Return live rows without an embedding, with the lengths of their contents in characters."""
        with self._readers.reading() as connection:
            return read.pending(connection)

    def contents(self, rows: Rows) -> list[str]:
        """Text to encode and index of each row: title and text, joined by a space."""
        with self._readers.reading() as connection:
            return read.contents(connection, rows)

    def snapshot(self) -> StoreState:
        """Return the searchable rows (live, with an embedding), ascending, with their operation."""
        with self._readers.reading() as connection:
            return read.snapshot(connection)

    def rows(self) -> Int64[np.ndarray, " rows"]:
        """Return the searchable rows, ascending; `snapshot` adds the operation."""
        return self.snapshot().rows

    def changes_since(self, sequence: int) -> RowChanges:
        """Return rows that became or ceased to be searchable after operation `sequence`."""
        with self._readers.reading() as connection:
            return read.changes_since(connection, sequence)

    def embeddings(self, rows: Rows, *, check: bool = True) -> Float32[np.ndarray, "rows dimension"]:
        """Embeddings in the order of `rows`, deleted ones too; raises NotFound for a row without one.

        Each is checked against its digest (CorruptData) unless `check` is False.
        """
        with self._readers.reading() as connection:
            return read.embeddings(connection, rows, self.dimension, check=check)

    def embeddings_left(
        self, rows: Int64[np.ndarray, " rows"]
    ) -> tuple[Int64[np.ndarray, " left"], Float32[np.ndarray, "left dimension"]]:
        """Those of `rows` that were not purged, and their embeddings; raises CorruptData."""
        with self._readers.reading() as connection:
            left = read.with_embedding(connection, rows)
            return left, read.embeddings(connection, left, self.dimension, check=True)

    def passages(self, rows: Rows) -> Mapping[int, Passages]:
        """Return the passages of the long documents among `rows`, by row, ascending; raises CorruptData."""
        with self._readers.reading() as connection:
            return passages.read(connection, [int(row) for row in rows], self.dimension)

    def documents(self, rows: Rows) -> list[Document]:
        """Document versions in the order of `rows`, deleted ones too; raises NotFound, CorruptData."""
        with self._readers.reading() as connection:
            return read.documents(connection, rows)

    def ids(self, rows: Rows) -> list[str]:
        """Ids in the order of `rows`; raises NotFound."""
        with self._readers.reading() as connection:
            return read.ids(connection, rows)

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the live row of each id; ids without one are omitted."""
        with self._readers.reading() as connection:
            return read.rows_of(connection, ids)

    def get(self, id: str) -> Document:
        """Return the live document of `id`; raises DocumentNotFound."""
        with self._readers.reading() as connection:
            document = read.get(connection, id)
            near = read.near_id(connection, id) if document is None else None
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
            return read.page(connection, after, limit, tree)

    def export(self, filter: object = None) -> Iterator[Document]:
        """Yield all live documents by id, in the state at the first one.

        An open iterator prevents checkpoints of the write-ahead log; do not hold it for hours.
        """
        tree = filter_of(filter)
        return self._export(tree)

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
            return matching.facets(connection, keys, tree, limit)

    def field_values(self, rows: Rows, field: str) -> Sequence[Scalar]:
        """Return the metadata field of each row (dotted path); None if absent, a list or an object.

        Raises NotFound, CorruptData, InvalidRequest.
        """
        keys = parse_field(field)
        return [_scalar_at(document.metadata, keys) for document in self.documents(rows)]

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

    # ---- closing

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self._readers.close()

    def _export(self, tree: Filter | None) -> Iterator[Document]:
        with self._readers.reading() as connection:
            yield from read.export(connection, tree)


def _scalar_at(metadata: dict[str, Any], keys: Keys) -> Scalar:
    value = value_at(metadata, keys)
    return value if isinstance(value, Scalar) else None
