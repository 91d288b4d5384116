"""`Store`: one collection's documents, embeddings, generations and models, durable once acknowledged.

    with Store.create(home / "papers", name="papers", encoder={"name": …}, dimension=384) as store:
        receipt = store.upsert(documents)                  # text first …
        waiting = store.pending()                          # … then embeddings, batch by batch
        store.set_embeddings(rows, encode(store.contents(rows)))

Reads may come from any thread and never wait for the writer; each reads one state of the collection. Writes
run one at a time and return when they are durable (journal.py). One process at a time can open a collection
for writing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
from jaxtyping import Shaped

from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    CorruptData,
    DocumentNotFound,
    Gone,
    InvalidDocument,
    InvalidRequest,
    NotFound,
)
from dsearch.store import judged, registry, verdicts
from dsearch.store import passages as passages_table
from dsearch.store.filters import live_rows, parse_filter
from dsearch.store.folders import AddFiles, back_up_collection, create_collection, require_local_disk
from dsearch.store.passages import Packed
from dsearch.store.reader import Reader, Rows, is_text, live_document
from dsearch.store.records import (
    BackupReport,
    GenerationRecord,
    MemoryRow,
    Passages,
    PurgeReport,
    StoredVerdict,
    WriteReceipt,
)
from dsearch.store.sqlite.connection import ReaderPool, insert_rows
from dsearch.store.sqlite.digest import document_fact, embedding_digest, embedding_fact, tombstone_fact
from dsearch.store.sqlite.journal import Journal, Operation
from dsearch.store.sqlite.schema import DOCUMENTS, FILE_NAME, CollectionMeta, read_meta
from dsearch.store.sqlite.watermark import check_reading, read_watermark
from dsearch.store.validate import (
    MAX_METADATA_DEPTH,
    NO_TEXT,
    DocumentRow,
    embedding_bytes,
    has_text,
    prepare,
    prepare_embeddings,
)
from dsearch.types import Document

_VERSION = "document (row, id, title, text, metadata, value, digest, written)"
_LOOKED_UP = 256  # ids in one statement


class Store(Reader):
    """Source of truth of one collection: reads (`Reader`) and writes.

    Create one with `Store.create` or `Store.open`.
    """

    def __init__(
        self, path: Path, meta: CollectionMeta, readers: ReaderPool, journal: Journal | None
    ) -> None:
        super().__init__(path, meta, readers)
        self._journal = journal
        self._live = (-1, registry.UNTRAINED)  # number of the last acknowledged operation, live model then

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        name: str,
        encoder: dict[str, Any],
        dimension: int,
        passages: dict[str, Any] | None = None,
    ) -> Store:
        """Create an empty collection in folder `path`, atomically, and open it for writing.

        `encoder` is the identity of the encoder, `dimension` the length of embeddings, `passages` the
        settings that cut long documents (None: they are not cut). Raises InvalidRequest (name, dimension, an
        encoder that is not JSON), Conflict if the folder has other files.
        """
        require_local_disk(path)
        create_collection(path, CollectionMeta(name, encoder, dimension, passages))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, accept_loss: bool = False) -> Store:
        """Open the collection in folder `path`, readonly or (one process at a time) for writing.

        Raises CollectionNotFound, UnsupportedFormat, HomeLocked if another writer has it, and CorruptData if
        it is damaged or acknowledged writes are missing. With `accept_loss`, missing writes are accepted.
        """
        if not (path / FILE_NAME).is_file():
            if (path / DOCUMENTS.watermark).is_file():
                raise CorruptData(
                    f"{path}: documents.db is missing, and its watermark is there: all documents are lost; "
                    "put the file back, or move this folder away and restore a backup or index again"
                )
            raise CollectionNotFound(f"no collection in {path}; create it by indexing something into it")
        readers = ReaderPool(path)
        try:
            with readers.reading() as connection:
                try:
                    meta = read_meta(connection)
                except (KeyError, ValueError) as error:
                    raise CorruptData(
                        f"{path}: the collection's identity cannot be read ({error!r}); restore a backup"
                    ) from None
            journal = None
            if not readonly:
                require_local_disk(path)
                journal = Journal(path)
                journal.open(accept_loss=accept_loss)
            elif not accept_loss:
                marks = read_watermark(path)
                with readers.reading() as connection:
                    check_reading(connection, path, before=marks)
        except BaseException:
            readers.close()
            raise
        return cls(path, meta, readers, journal)

    @property
    def readonly(self) -> bool:
        """True if it was opened readonly."""
        return self._journal is None

    @property
    def failed(self) -> bool:
        """True if the disk failed a write; further writes are rejected."""
        return self._journal is not None and self._journal.failed

    def live_model(self) -> str:
        """Return the promoted version, as `Reader`; the writer caches it for searches."""
        if self._journal is None or self.closed:
            return super().live_model()
        acknowledged = self._journal.acknowledged
        if self._live[0] != acknowledged:
            self._live = acknowledged, super().live_model()
        return self._live[1]

    def require_writable(self) -> None:
        """Raise Conflict if the collection was opened readonly."""
        _ = self._writer

    # ---- writing

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: Shaped[np.ndarray, "*given_dimension"] | None = None,
        positions: Sequence[int] | None = None,
        passages: Mapping[int, Passages] | None = None,
        *,
        replaces: bool = False,
    ) -> WriteReceipt:
        """Insert documents, or replace those of the same ids; atomic, and durable on return.

        `embeddings[i]` belongs to `documents[positions[i]]`, or without `positions` to `documents[i]` (one
        each); a document without one is pending. An unchanged document is skipped. If only metadata or value
        change, the embedding stays; with `replaces` a different one that is supplied makes a new version.
        `passages` has the passages of long documents with an embedding, by position in `documents`.

        Raises InvalidDocument (with position and id), DimensionMismatch, InvalidRequest.
        """
        prepared = prepare(documents)
        vectors = self._vectors(len(prepared), embeddings, positions)
        cut = self._packed(passages, vectors.keys())
        if not prepared:
            return WriteReceipt(self.sequence)
        with self._operation() as operation:
            return _upsert(operation, prepared, vectors, cut, replaces=replaces)

    def delete(self, ids: Sequence[str]) -> WriteReceipt:
        """Delete documents by id; unknown ids are counted as `missing` and are not an error."""
        with self._operation() as operation:
            unique = list(dict.fromkeys(ids))
            live = _live_versions(operation.connection, unique)
            receipt = _delete_rows(operation, [live[id][0] for id in unique if id in live])
        return replace(receipt, missing=len(unique) - receipt.deleted)

    def delete_matching(self, filter: object) -> WriteReceipt:
        """Delete the live documents that match a filter, encoded or not; raises InvalidRequest."""
        tree = parse_filter(filter, roots=True)
        with self._operation() as operation:
            return _delete_rows(operation, live_rows(operation.connection, tree))

    def update_metadata(self, id: str, changes: object) -> WriteReceipt:
        """Change part of a document's metadata, as JSON Merge Patch (RFC 7396) does; the embedding stays.

        Objects are merged key by key, null removes a key, any other value replaces the present one. Raises
        DocumentNotFound, InvalidDocument if the result cannot be stored, CorruptData.
        """
        with self._operation() as operation:
            if not isinstance(changes, dict):
                raise InvalidRequest(
                    f"changes of type {type(changes).__name__}; give an object of new values, "
                    '{"key": null} removes'
                )
            document = live_document(operation.connection, id)
            if document is None:
                raise DocumentNotFound(f"no document {id[:80]!r} to change; upsert it whole first")
            metadata = merge_patch(document.metadata, cast("dict[str, Any]", changes))
            return _upsert(operation, prepare([replace(document, metadata=metadata)]), {}, {})

    def set_embeddings(
        self,
        rows: Rows,
        embeddings: Shaped[np.ndarray, "*rows_dimension"],
        passages: Mapping[int, Passages] | None = None,
    ) -> int:
        """Store the embeddings [rows, dimension] of pending rows and return the operation's number.

        `passages` has the passages of long documents among them, by row. Rows with an embedding, and rows
        superseded meanwhile, are skipped. Raises DimensionMismatch, InvalidRequest (NaN, infinity, another
        count), NotFound for an unknown row.
        """
        row_numbers = np.asarray(rows, dtype=np.int64)
        vectors = prepare_embeddings(embeddings, count=len(row_numbers), dimension=self.dimension)
        cut = self._packed(passages, set(row_numbers.tolist()))
        with self._operation() as operation:
            waiting: list[tuple[int, bytes]] = []
            for row, embedding in zip(row_numbers.tolist(), embedding_bytes(vectors), strict=True):
                deleted = operation.connection.execute("DELETE FROM pending WHERE row = ?", (row,)).rowcount
                if deleted:
                    waiting.append((row, embedding))
                elif not 1 <= row <= (last := operation.counters["last_row"]):
                    raise NotFound(f"row {row} was never given out; rows are 1 to {last}")
            _insert_embeddings(operation, waiting)
            passages_table.insert(operation, [(row, cut[row]) for row, _ in waiting if row in cut])
            return operation.reached

    # ---- generations and models

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
        with self._operation() as operation:
            return registry.add_generation(operation, generation)

    def publish_generation(self, number: int) -> int:
        """Make a registered generation live by one committed row; returns the operation's number."""
        with self._operation() as operation:
            registry.generation(operation.connection, number)
            return registry.make_live(operation, "generation", number)

    def add_model(self, version: str, parent: str, record: dict[str, Any]) -> int:
        """Register a model whose files are synced; not live yet. Raises ModelNotFound (the parent)."""
        with self._operation() as operation:
            return registry.add_model(operation, version, parent, record)

    def add_to_record(self, version: str, fields: dict[str, Any]) -> int:
        """Put members into a trained model's record; returns the operation's number. Raises ModelNotFound."""
        with self._operation() as operation:
            model = registry.model(operation.connection, version)
            record = {**model.record, **fields}
            return registry.rewrite_model(operation, model, model.parent or registry.UNTRAINED, record)

    def promote(self, version: str) -> int:
        """Make a registered model (or v0, the untrained one) live.

        Returns the operation's number. Raises ModelNotFound, Gone for one that answered predictions and no
        searches.
        """
        with self._operation() as operation:
            registry.model(operation.connection, version)
            number = registry.version_number(version)
            if registry.predicts_only(operation.connection, number):
                raise Gone(
                    f"model {version} answered predictions and no searches, so it never becomes live; "
                    "promote another one"
                )
            return registry.make_live(operation, "model", number)

    def delete_model(self, version: str) -> int:
        """Unregister a model; afterwards its files may be deleted.

        Returns the operation's number. Raises ModelNotFound, InvalidRequest (v0), Conflict (it is live).
        """
        with self._operation() as operation:
            return registry.delete_model(operation, version)

    def retirable_generations(self, keep: int = 3) -> Sequence[int]:
        """Return registered generations, ascending, except the live one and the `keep` newest."""
        with self._readers.reading() as connection:
            return registry.retirable(connection, keep)

    def retire_generation(self, number: int) -> int:
        """Unregister a generation; afterwards its files may be deleted.

        Returns the operation's number. Raises NotFound, Conflict for the live one.
        """
        with self._operation() as operation:
            return registry.retire_generation(operation, number)

    # ---- query memory

    def add_judged(self, queries: Sequence[MemoryRow]) -> int:
        """Write rows of the query memory; returns the operation's number.

        Raises InvalidRequest (a query without a grade above 0), DimensionMismatch.
        """
        with self._operation() as operation:
            return judged.insert(operation, queries, self.dimension)

    def drop_judged(self, sequence: int) -> tuple[int, int]:
        """Drop the rows of the query memory that operations after `sequence` wrote.

        Returns the operation's number and that of the rows.
        """
        with self._operation() as operation:
            dropped = judged.drop_after(operation, sequence)
            return operation.reached, dropped

    # ---- ledger of the gate

    def add_verdict(self, verdict: StoredVerdict) -> int:
        """Write a verdict of the gate; returns the operation's number."""
        with self._operation() as operation:
            return verdicts.insert(operation, verdict)

    # ---- the collection as a whole

    def purge(self) -> PurgeReport:
        """Remove deleted and replaced data from the database's files, unless a generation needs it.

        Rewrites the database, which temporarily needs twice its space; writes wait, reads continue. Requests
        with an older snapshot may get NotFound for removed rows. Raises InsufficientStorage.
        """
        with self._operation() as operation:
            rows = registry.purge(operation)
            sequence, tombstones = operation.reached, operation.counters["tombstones"]
        return PurgeReport(sequence, rows, tombstones, self._writer.vacuum())

    def backup(self, path: Path, add_files: AddFiles | None = None) -> BackupReport:
        """Copy the present state into the new folder `path`, atomically; writes and reads continue.

        The copy has documents, embeddings and the register of generations and models. `add_files` is called
        with the unfinished folder and adds their files. Raises Conflict if `path` exists,
        InsufficientStorage.
        """
        return back_up_collection(self._readers, path, add_files)

    # ---- closing

    def stop_writing(self) -> None:
        """Refuse further writes (Unavailable) and release the writer's lock; reads continue."""
        if self._journal is not None:
            self._journal.close()

    def close(self) -> None:
        """Close all connections and release the writer's lock; safe to call twice."""
        super().close()
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

    def _operation(self) -> AbstractContextManager[Operation]:
        """One write: all of it is durable and acknowledged when the block ends, none of it if it raises."""
        return self._writer.operation()

    def _vectors(
        self,
        count: int,
        embeddings: Shaped[np.ndarray, "*given_dimension"] | None,
        positions: Sequence[int] | None,
    ) -> dict[int, bytes]:
        """Checked embeddings as bytes, by position of their document among `count`."""
        if embeddings is None:
            return {}
        places = range(count) if positions is None else positions
        array = prepare_embeddings(embeddings, count=len(places), dimension=self.dimension)
        if positions is not None and any(not 0 <= place < count for place in places):
            raise InvalidRequest(f"positions {list(places)[:10]}; use 0 to {count - 1}")
        return dict(zip(places, embedding_bytes(array), strict=True))

    def _packed(
        self, by_place: Mapping[int, Passages] | None, embedded: Collection[int]
    ) -> dict[int, Packed]:
        """Passages as they are stored, by position or row of their document, which needs an embedding."""
        if unknown := [place for place in by_place or {} if place not in embedded]:
            raise InvalidRequest(f"passages of {unknown[:10]}, which have no embedding; give the first one's")
        given = (by_place or {}).items()
        return {place: passages_table.pack(parts, self.dimension) for place, parts in given}


def _upsert(
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
            if not has_text(document):
                raise InvalidDocument(f"document {position} (id {document.id[:80]!r}) {NO_TEXT}")
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


def _delete_rows(operation: Operation, rows: Sequence[int]) -> WriteReceipt:
    """Tombstone rows, all of which are live."""
    _bury(operation, rows)
    operation.counters["documents"] -= len(rows)
    return WriteReceipt(sequence=operation.reached, deleted=len(rows), rows=tuple(rows))


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


def merge_patch(target: Any, patch: Any, depth: int = MAX_METADATA_DEPTH + 1) -> Any:
    """The function MergePatch of RFC 7396, section 2; neither argument is changed.

    Values nested deeper than `depth` are copied unchanged; `validate` rejects them.
    """
    if not isinstance(patch, dict) or depth == 0:
        return cast("Any", patch)
    merged: dict[str, Any] = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else {}
    for key, value in cast("dict[str, Any]", patch).items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value, depth - 1)
    return merged
