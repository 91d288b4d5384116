"""`Store`: one collection's documents, embeddings, generations and models, on the medium once acknowledged.

    with Store.create(home / "papers", name="papers", encoder={"name": …}, dimension=384) as store:
        receipt = store.upsert(documents)                  # text first …
        waiting = store.pending()                          # … embeddings batch by batch; interrupted, it
        continues store.set_embeddings(rows, encode(store.contents(rows)))

Reads may come from any thread and never wait for the writer; each reads one state of the collection. Writes
are taken one at a time and return when they are durable (journal.py). One process at a time has a collection
open for writing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from ..errors import (
    CollectionNotFound,
    Conflict,
    CorruptData,
    DocumentNotFound,
    InvalidRequest,
)
from ..types import Document
from . import read, registry, write
from .connect import ReaderPool, readable_errors
from .folders import create_collection
from .journal import Journal
from .read import Rows
from .records import (
    Changes,
    Counts,
    GenerationRecord,
    ModelRecord,
    Pending,
    Snapshot,
    VerifyReport,
    WriteReceipt,
)
from .schema import FILE_NAME, Meta, read_meta, read_state
from .validate import prepare, prepare_embeddings
from .verify import verify
from .watermark import check_database, read_watermark

MAX_PAGE = 10_000


class Store:
    """The source of truth of one collection; made by `Store.create` and `Store.open`."""

    def __init__(self, path: Path, meta: Meta, readers: ReaderPool, journal: Journal | None) -> None:
        self.path = path
        self._meta = meta
        self._readers = readers
        self._journal = journal

    @classmethod
    def create(cls, path: Path, *, name: str, encoder: dict[str, Any], dimension: int) -> Store:
        """Make a new, empty collection in folder `path`, whole or not at all, and open it for writing.

        `encoder` is the identity of what makes the embeddings, `dimension` their length. Raises
        InvalidRequest (name, dimension, an encoder that is not JSON), Conflict when the
        folder has other files.
        """
        create_collection(path, Meta(name, encoder, dimension))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, accept_loss: bool = False) -> Store:
        """Open the collection in folder `path`, for reading alone or (one process at a time) for writing too.

        Raises CollectionNotFound, UnsupportedFormat, HomeLocked when another writer has it, and CorruptData
        when it is damaged or acknowledged writes are missing. `accept_loss` goes on with what is there in
        that last case.
        """
        if not (path / FILE_NAME).is_file():
            raise CollectionNotFound(f"no collection in {path}; create it by indexing something into it")
        readers = ReaderPool(path)
        try:
            with readers.reading() as connection:
                meta = _read_meta(connection, path)
            journal = None
            if not readonly:
                with readable_errors(path):
                    journal = Journal(path, accept_loss=accept_loss)
            elif not accept_loss:
                _check_watermark(readers, path)
        except BaseException:
            readers.close()
            raise
        return cls(path, meta, readers, journal)

    # ---- what the collection is

    @property
    def name(self) -> str:
        """The collection's name."""
        return self._meta.name

    @property
    def encoder(self) -> dict[str, Any]:
        """The identity of the encoder that made the embeddings, as given to `create`."""
        return dict(self._meta.encoder)

    @property
    def dimension(self) -> int:
        """Numbers per embedding."""
        return self._meta.dimension

    @property
    def readonly(self) -> bool:
        """Whether this was opened for reading alone."""
        return self._journal is None

    @property
    def sequence(self) -> int:
        """The number of the last operation; 0 when there was none."""
        with self._readers.reading() as connection:
            return read_state(connection).sequence

    def count(self) -> Counts:
        """How many documents are live, pending and deleted."""
        with self._readers.reading() as connection:
            state = read_state(connection)
            (waiting,) = connection.execute("SELECT count(*) FROM pending").fetchone()
        return Counts(state.documents, waiting, state.tombstones)

    # ---- writing

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: Shaped[np.ndarray, "*given_dimension"] | None = None,
        positions: Sequence[int] | None = None,
    ) -> WriteReceipt:
        """Insert documents, or replace those of the same ids; all or nothing, durable on return.

        `embeddings` is [given, dimension]; `embeddings[i]` belongs to `documents[positions[i]]`, without
        `positions` to `documents[i]` (one each); a document without one is pending. An unchanged document is
        left alone. When only metadata or value change, the embedding stays. Raises InvalidDocument (with
        position and id), DimensionMismatch, InvalidRequest.
        """
        prepared = prepare(documents)
        vectors = self._vectors(len(prepared), embeddings, positions)
        if not prepared:
            return WriteReceipt(self.sequence)
        with self._writer.operation() as operation:
            return write.upsert(operation, prepared, vectors)

    def delete(self, ids: Sequence[str]) -> WriteReceipt:
        """Delete documents by id; ids that are not there are counted as `missing`, which is no error."""
        with self._writer.operation() as operation:
            return write.delete(operation, ids)

    def set_embeddings(self, rows: Rows, embeddings: Shaped[np.ndarray, "*rows_dimension"]) -> int:
        """Store the embeddings [rows, dimension] of pending rows and return the operation's number.

        A row that has one already, or was superseded meanwhile, is passed over. Raises DimensionMismatch,
        InvalidRequest (NaN, infinity, another count), NotFound for a row that never was.
        """
        asked = np.asarray(rows, dtype=np.int64)
        vectors = prepare_embeddings(embeddings, count=len(asked), dimension=self.dimension)
        with self._writer.operation() as operation:
            return write.set_embeddings(operation, asked, vectors)

    # ---- reading

    def needs_encoding(self, documents: Sequence[Document]) -> list[int]:
        """Positions of the documents whose id has no stored embedding of the same title and text."""
        with self._readers.reading() as connection:
            return read.needs_encoding(connection, documents)

    def pending(self) -> Pending:
        """Live rows that wait for their embedding, with the lengths of their contents in characters."""
        with self._readers.reading() as connection:
            return read.pending(connection)

    def contents(self, rows: Rows) -> list[str]:
        """What is encoded and indexed of each row: title and text, one space between."""
        with self._readers.reading() as connection:
            return read.contents(connection, rows)

    def snapshot(self) -> Snapshot:
        """The searchable rows (live, with an embedding), ascending, and the operation that they are as of."""
        with self._readers.reading() as connection:
            return read.snapshot(connection)

    def rows(self) -> Int64[np.ndarray, " rows"]:
        """The searchable rows, ascending; `snapshot` says as of which operation."""
        return self.snapshot().rows

    def changes_since(self, sequence: int) -> Changes:
        """Rows that became searchable or ceased to be after operation `sequence`."""
        with self._readers.reading() as connection:
            return read.changes_since(connection, sequence)

    def embeddings(self, rows: Rows, *, check: bool = True) -> Float32[np.ndarray, "rows dimension"]:
        """Embeddings in the order of `rows`, deleted ones too; raises NotFound for a row without one.

        Each is held against its digest (CorruptData) unless `check` is False.
        """
        with self._readers.reading() as connection:
            return read.embeddings(connection, rows, self.dimension, check=check)

    def documents(self, rows: Rows) -> list[Document]:
        """Document versions in the order of `rows`, deleted ones too; raises NotFound, CorruptData."""
        with self._readers.reading() as connection:
            return read.documents(connection, rows)

    def ids(self, rows: Rows) -> list[str]:
        """Ids in the order of `rows`; raises NotFound."""
        with self._readers.reading() as connection:
            return read.ids(connection, rows)

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The live row of each id that has one."""
        with self._readers.reading() as connection:
            return read.rows_of(connection, ids)

    def get(self, id: str) -> Document:
        """The live document of `id`; raises DocumentNotFound."""
        with self._readers.reading() as connection:
            found = read.get(connection, id)
        if found is None:
            raise DocumentNotFound(
                f"no document {id[:80]!r} in collection {self.name!r}; ids are exact, see the list"
            )
        return found

    def list(self, after: str | None = None, limit: int = 100) -> list[Document]:
        """Live documents by id (code points), those after `after`; pass the last id to get the next page."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidRequest(f"limit={limit}; use 1 to {MAX_PAGE}")
        with self._readers.reading() as connection:
            return read.page(connection, after, limit)

    def verify(self) -> VerifyReport:
        """Read all again and hold it against its digests; damage is reported, not raised. Writes go on."""
        with self._readers.reading() as connection:
            return verify(connection)

    # ---- generations and models

    def next_generation_number(self) -> int:
        """A number that no registered generation and no folder in `generations/` has."""
        with self._readers.reading() as connection:
            return registry.next_number(connection, "generation", self.path)

    def add_generation(
        self,
        number: int,
        *,
        manifest_digest: str,
        rows: int,
        snapshot: int,
        record: dict[str, Any] | None = None,
    ) -> int:
        """Register a generation whose files are synced: `rows` rows as of operation `snapshot`."""
        generation = GenerationRecord(number, manifest_digest, rows, snapshot, record or {})
        with self._writer.operation() as operation:
            return registry.add_generation(operation, generation)

    def publish_generation(self, number: int) -> int:
        """Make a registered generation live by one committed row; returns the operation's number."""
        with self._writer.operation() as operation:
            registry.generation(operation.connection, number)
            return registry.make_live(operation, "generation", number)

    def live_generation(self) -> GenerationRecord | None:
        """The live generation, None before the first."""
        with self._readers.reading() as connection:
            number = registry.live(connection, "generation")
            return None if number is None else registry.generation(connection, number)

    def generations(self) -> list[GenerationRecord]:
        """All registered generations, by number."""
        with self._readers.reading() as connection:
            return registry.generations(connection)

    def next_model_version(self) -> str:
        """A version that no registered model and no folder in `models/` has."""
        with self._readers.reading() as connection:
            return f"v{registry.next_number(connection, 'model', self.path)}"

    def add_model(self, version: str, parent: str, record: dict[str, Any]) -> int:
        """Register a model whose files are synced; not live yet. Raises ModelNotFound (the parent)."""
        with self._writer.operation() as operation:
            return registry.add_model(operation, version, parent, record)

    def promote(self, version: str) -> int:
        """Make a registered model (or v0, the untrained one) live; returns the operation's number."""
        with self._writer.operation() as operation:
            registry.model(operation.connection, version)
            return registry.make_live(operation, "model", registry.version_number(version))

    def live_model(self) -> str:
        """The version of the live model; "v0" when none was ever promoted."""
        with self._readers.reading() as connection:
            return f"v{registry.live(connection, 'model') or 0}"

    def model_history(self) -> list[str]:
        """The versions that were live, newest first; a rollback promotes an earlier one."""
        with self._readers.reading() as connection:
            return [f"v{number}" for number in registry.live_history(connection, "model")]

    def model(self, version: str) -> ModelRecord:
        """One model, v0 too; raises ModelNotFound."""
        with self._readers.reading() as connection:
            return registry.model(connection, version)

    def models(self) -> list[ModelRecord]:
        """All trained models, by version; v0, which needs no record, is not among them."""
        with self._readers.reading() as connection:
            return registry.models(connection)

    # ---- closing

    def close(self) -> None:
        """Close all connections and release the writer's lock; safe to call twice."""
        self._readers.close()
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _writer(self) -> Journal:
        if self._journal is None:
            raise Conflict(f"collection {self.name!r} was opened with readonly=True; open it for writing")
        return self._journal

    def _vectors(
        self,
        count: int,
        embeddings: Shaped[np.ndarray, "*given_dimension"] | None,
        positions: Sequence[int] | None,
    ) -> dict[int, bytes]:
        if embeddings is None:
            return {}
        places = range(count) if positions is None else positions
        array = prepare_embeddings(embeddings, count=len(places), dimension=self.dimension)
        if any(not 0 <= place < count for place in places):
            raise InvalidRequest(f"positions {list(places)[:10]}; use 0 to {count - 1}")
        return {place: vector.tobytes() for place, vector in zip(places, array, strict=True)}


def _read_meta(connection: sqlite3.Connection, path: Path) -> Meta:
    try:
        return read_meta(connection)
    except (KeyError, ValueError) as error:
        raise CorruptData(
            f"{path}: what the collection is cannot be read ({error!r}); restore a backup"
        ) from None


def _check_watermark(readers: ReaderPool, path: Path) -> None:
    before = read_watermark(path)
    with readers.reading() as connection:
        state = read_state(connection)
    check_database(path, state.marks, before=before, after=read_watermark(path))
