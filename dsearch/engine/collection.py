"""`Collection`: a named set of documents that can be searched, written and, by its models, improved.

It adds writes, calls and versions to `State`, which holds what is in memory: each search method calls one
function of `search/`. A write is durable on return, and every later search sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Unpack, runtime_checkable

import numpy as np
from jaxtyping import Float

from dsearch.attention.arrays import Array
from dsearch.encoder import QueryCache, TextEncoder
from dsearch.engine.home import is_given
from dsearch.engine.indexing.ingest import Ingestion, OnProgress, encode_pending, store_documents
from dsearch.engine.indexing.leases import retire_one, strike_missing
from dsearch.engine.indexing.own_vectors import (
    Vectors,
    carried_embeddings,
    checked_embeddings,
    embedding_problems,
)
from dsearch.engine.indexing.tuning import TunedKeys, keep_tuned
from dsearch.engine.models.documents import EncodedDocuments
from dsearch.engine.models.files import (
    UNTRAINED,
    before_live,
    delete_version,
    require_served,
    save_model,
    unfinished_folder,
    with_values,
)
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.engine.options import EVIDENCE, KeyOptions, LayerOptions, SearchArguments
from dsearch.engine.rebuild import MINIMUM, Rebuilder, disk_errors, measured_live, tuning_queries
from dsearch.engine.search.search import search
from dsearch.engine.snapshot import Snapshot
from dsearch.engine.state.caches import fields_of
from dsearch.engine.state.state import State
from dsearch.errors import Conflict, DsearchError, Gone, InvalidDocument
from dsearch.index.durable import whole_or_gone
from dsearch.results import CollectionInfo, Predictions
from dsearch.search_options import SearchOptions
from dsearch.store import FeedbackStore, Store, WriteReceipt
from dsearch.types import Document, Progress, SearchResult

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head
    from dsearch.encoder import EncoderChange
    from dsearch.engine.search.attend import AttendResult


_GIVEN_AT_A_TIME = 1024  # documents with embeddings of their own, a transaction


class Collection(State):
    """One collection of a home; created by `SearchEngine`.

    Args:
        store: source of truth of the collection.
        encoder: loads the encoder; called at its first use, so that a keyword search loads none.
        query_cache: embeddings of earlier queries; None caches none.
        rebuild_share: see `SearchEngine`.
        rebuild_minimum: see `SearchEngine`.
    """

    def __init__(
        self,
        store: Store,
        encoder: Callable[[], TextEncoder],
        query_cache: QueryCache | None = None,
        *,
        rebuild_share: float | None = None,
        rebuild_minimum: int = MINIMUM,
    ):
        super().__init__(store, encoder, query_cache)
        self.rebuilder = Rebuilder(
            store, self._snapshots, self._writing, share=rebuild_share, minimum=rebuild_minimum
        )

    # ---- search

    def search(
        self,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        **options: Unpack[SearchArguments],
    ) -> SearchResult:
        """Search for the documents that a query attends to most.

        Args:
            query: text. "Quoted phrases" and +terms must occur in a document, -terms must not; the rest ranks
                by embedding and keywords.
            vector: takes the place of the text's embedding; without a text the search is dense.
            options: described by `dsearch.search_options.SearchOptions`.

        Raises:
            InvalidRequest: an empty query, a limit, offset, mode or hops out of range, not a filter, a vector
                of numbers that are not finite.
            DimensionMismatch: a vector of another length than the embeddings.
            InvalidCursor: not a cursor, or one of another search.
            Gone: the state or the model of the cursor's first page was removed.
            Conflict: the cursor names a state that this collection never had.
            ModelNotFound: no such version.
        """
        vectors = None if vector is None else [vector]
        return self.answer([query or ""], SearchOptions(**options), vectors)[0]

    def search_batch(self, queries: Sequence[str], **options: Unpack[SearchArguments]) -> list[SearchResult]:
        """Run `search` for many queries in one state; without covered mass by default."""
        options.setdefault("coverage", False)
        return self.answer(queries, SearchOptions(**options))

    def answer(
        self, queries: Sequence[str], options: SearchOptions, vectors: Vectors | None = None
    ) -> list[SearchResult]:
        """Answer queries that have the same options, in one state; see `search`."""
        return search(self, queries, options, vectors)

    def similar(
        self,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        vector: Sequence[float] | None = None,
        **options: Unpack[SearchArguments],
    ) -> SearchResult:
        """Search by example: documents like some and unlike others; see `search/similar.py`.

        Args:
            like: ids of wanted examples, 1 to 100; they are not among the hits.
            unlike: ids of unwanted examples, at most 100.
            query: text to combine with the examples, the only source of keywords in hybrid search.
            vector: combined with the examples in place of the text's embedding.
            options: as for `search`, except mode "keyword".

        Raises:
            DocumentNotFound: no such document, or it has no embedding yet.
            InvalidRequest: no examples, a document in both lists, and as for `search`.
            InvalidCursor, Gone, Conflict, ModelNotFound.
        """
        chosen = SearchOptions(**options)
        from dsearch.engine.search.similar import similar

        return similar(self, like, unlike=unlike, query=query, vector=vector, chosen=chosen)

    def attend(
        self,
        queries: Sequence[str] | Float[Array, "batch encoder_dim"],
        *,
        model: str | None = None,
        filter: object | None = None,
        **options: Unpack[LayerOptions],
    ) -> AttendResult:
        """Compute attention for texts or query states: context, weights and ids, without gradients.

        Args:
            queries: texts (with quotes and signs as ordinary characters), or query states.
            model: version; the live one when None.
            options: as for `predict`.

        Raises:
            InvalidRequest, DimensionMismatch, ModelNotFound.
        """
        from dsearch.engine.search.attend import attend

        return attend(
            self,
            queries,
            model=model,
            filter=filter,
            options=options,
        )

    def predict(
        self,
        queries: Sequence[str] | Float[Array, "batch encoder_dim"],
        *,
        field: str,
        evidence: int = EVIDENCE,
        model: str | None = None,
        filter: object | None = None,
        **options: Unpack[LayerOptions],
    ) -> Predictions:
        """Predict a field of the documents, pooled by the attention of each query; see `search/predict.py`.

        With a kernel score this is Nadaraya–Watson regression: `score="gaussian", width=0.2, mode="dense"`.

        Args:
            field: dotted path of a number, string or boolean of the metadata; or "value", the documents' own
                number or vector.
            evidence: number of documents of largest weight to return with each prediction.
            model: version; the live one when None.
            filter: condition on metadata.
            options: mode, candidates, hops, score, pooling, …; see `LayerOptions`.

        Raises:
            InvalidRequest: not a field, or one of different kinds among the candidates of a query; options
                out of range.
            DimensionMismatch, ModelNotFound.
        """
        from dsearch.engine.search.predict import predict

        return predict(
            self,
            queries,
            field=field,
            evidence=evidence,
            model=model,
            filter=filter,
            options=options,
        )

    def field_values(self, snapshot: Snapshot, field: str) -> list[Any]:
        """Return a field of every document, in the order of the snapshot's positions; None if absent.

        They can become `values` of a `SearchLayer`. `field` is as for `predict`.
        """
        return list(fields_of(self.store, snapshot.rows(np.arange(snapshot.positions)), field))

    # ---- index

    def ingest(
        self,
        documents: Iterable[Document],
        on_progress: OnProgress | None = None,
        obsolete: Callable[[], Sequence[str]] | None = None,
        *,
        second_stage: bool = False,
    ) -> Ingestion:
        """Index many documents: store them, encode the new ones, build a generation and make it live.

        A repeated call with the same documents continues an interrupted one. `obsolete` is called when all
        documents are stored; it returns ids to delete. `second_stage` keeps the documents' tokens from now
        on, and computes those of documents that have none.
        """
        if is_given(self.store):
            return self._ingest_given(documents, on_progress, obsolete)
        started, deleted = time.monotonic(), 0
        encoder, tokens = self.encoder, self.tokens
        with self._writing:
            inserted, updated, unchanged = store_documents(self.store, documents, on_progress, tokens)
            if obsolete is not None and (ids := obsolete()):
                deleted = self.store.delete(ids).deleted
            if second_stage:
                tokens.begin(encoder)
            encoded = encode_pending(self.store, encoder, on_progress, tokens)
            filled = tokens.fill(encoder, on_progress)
        if inserted or updated or deleted or encoded or filled or self._snapshots.stale:
            self.refresh(on_progress)
        else:
            self.restore_derived(on_progress)
        return Ingestion(inserted, updated, unchanged, encoded, time.monotonic() - started, deleted)

    def _ingest_given(
        self,
        documents: Iterable[Document],
        on_progress: OnProgress | None,
        obsolete: Callable[[], Sequence[str]] | None,
    ) -> Ingestion:
        """`ingest` of documents that carry their embeddings."""
        started, counts, deleted = time.monotonic(), np.zeros(3, np.int64), 0
        remaining = iter(documents)
        while batch := list(islice(remaining, _GIVEN_AT_A_TIME)):
            receipt = self.upsert(batch)
            counts += (receipt.inserted, receipt.updated, receipt.unchanged)
            if on_progress is not None:
                on_progress(Progress("read", int(counts.sum()), 0, time.monotonic() - started))
        if obsolete is not None and (ids := obsolete()):
            deleted = self.delete(ids).deleted
        inserted, updated, unchanged = counts.tolist()
        if inserted or updated or deleted or self._snapshots.stale:
            self.refresh(on_progress)
        else:
            self.restore_derived(on_progress)
        return Ingestion(inserted, updated, unchanged, 0, time.monotonic() - started, deleted)

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: Float[np.ndarray, "documents encoder_dim"] | None = None,
    ) -> WriteReceipt:
        """Insert or replace documents; durable, and visible to every later search, on return.

        Args:
            documents: all or none of them is written.
            embeddings: supplied embeddings, scaled to length 1, one a document; when None those that the
                documents carry (`EmbeddedDocument`), or the encoder's. In a collection of supplied embeddings
                another one replaces what is stored, though the text stays; an encoder's stays with its text.

        Raises:
            InvalidDocument: one cannot be stored; nothing of the batch was stored.
            InvalidRequest: an embedding of length 0, or another one for a text that was encoded.
            DimensionMismatch: not one embedding a document, or not of the collection's dimension.
            EncoderMismatch: no embeddings, and not the collection's encoder.
            Conflict: opened readonly.
        """
        self.store.require_writable()  # before an encoder is loaded
        supplied = is_given(self.store)
        encoder = self.encoder if embeddings is None and not supplied else None
        if encoder is not None:
            for place, problem in embedding_problems(self.store, documents).items():
                raise InvalidDocument(f"document {place} (id {documents[place].id[:80]!r}) {problem}")
        with self._writing:
            if encoder is None:
                if embeddings is None:
                    own = carried_embeddings(self.store, documents)
                else:
                    own = checked_embeddings(self.store, documents, embeddings)
                receipt = self.store.upsert(documents, own.vectors, own.positions, replaces=supplied)
            else:
                new = self.store.needs_encoding(documents)
                (encoded, cut), tokens = self.tokens.encode(encoder, [documents[i] for i in new])
                further = {new[place]: passages for place, passages in cut.items()}
                write = partial(self.store.upsert, documents, encoded, new, further)
                receipt = self.tokens.carry_over([document.id for document in documents], write)
                self.tokens.keep([receipt.rows[i] for i in new], tokens)
            self._snapshots.catch_up()
        self._consider_rebuild()
        return receipt

    def delete(self, ids: Sequence[str]) -> WriteReceipt:
        """Delete documents by id; durable, and absent from every later search, on return."""
        with self._writing:
            receipt = self.store.delete(ids)
            self._snapshots.catch_up()
        self._consider_rebuild()
        return receipt

    def delete_matching(self, filter: object) -> WriteReceipt:
        """Delete the documents that match a filter, those without an embedding too; as `delete`.

        Raises:
            InvalidRequest: not a filter.
        """
        with self._writing:
            receipt = self.store.delete_matching(filter)
            self._snapshots.catch_up()
        self._consider_rebuild()
        return receipt

    def update_metadata(self, id: str, changes: object) -> WriteReceipt:
        """Change part of a document's metadata by JSON Merge Patch (RFC 7396); its embedding stays.

        Raises:
            DocumentNotFound.
            InvalidDocument: the result cannot be stored.
        """
        with self._writing:
            receipt = self.tokens.carry_over([id], partial(self.store.update_metadata, id, changes))
            self._snapshots.catch_up()
        self._consider_rebuild()
        return receipt

    def refresh(
        self,
        on_progress: OnProgress | None = None,
        *,
        kind: str | None = None,
        recall_target: float | None = None,
        memory_bytes: int | None = None,
        queries: Sequence[str] | None = None,
        spawned: bool | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> int:
        """Build a generation of the present documents, keys projected by the live head; return its number.

        A damaged live generation is deleted then.

        Args:
            on_progress: receives each stage.
            kind: kind of its keys, and of later generations: a name in `DENSE_KINDS`, or "auto"; as before
                when None.
            recall_target: target recall@10 of an approximate kind; as before when None.
            memory_bytes: memory limit of the keys for "auto"; as before when None.
            queries: texts to tune an approximate kind; sentences of the documents when None.
            spawned: True to build in another process while writes continue; when None, if builds start
                automatically (`rebuild_share`).
            cancelled: polled for a build in another process; True stops it.

        Raises:
            InvalidRequest: unknown kind, target outside 0 to 1, or limit below 1.
            Cancelled, ProcessDied, InsufficientStorage, Unavailable: nothing changed.
        """
        with disk_errors(self.store, "refresh"):
            damaged = self._damaged_generation()
            number = self.rebuilder.build(
                partial(tuning_queries, self, texts=queries),
                keys=KeyOptions.of(self.store).changed(kind, recall_target, memory_bytes),
                spawned=self.rebuilder.by_itself if spawned is None else spawned,
                on_progress=on_progress,
                cancelled=cancelled,
            )
            if self._documents.has(self.live_model):
                with self._writing:
                    self._documents.renew(self.live_model)
            if damaged in self.store.generations():
                retire_one(self.store, damaged.number)
        return number

    def rebuild_status(self) -> dict[str, Any]:
        """State of automatic rebuilds, as JSON: progress, and why the last one failed."""
        return self.rebuilder.status()

    def restore_derived(self, on_progress: OnProgress | None = None) -> bool:
        """Rebuild the live generation if it is missing or damaged; return True if it was.

        It is derived from documents and embeddings, so a backup may omit it and damage is repaired.
        """
        strike_missing(self.store)
        if self._damaged_generation() is None:
            return False
        self.refresh(on_progress)
        return True

    # ---- versions

    def add_model(
        self,
        head: Head,
        record: dict[str, Any],
        *,
        parent: str = UNTRAINED,
        encoder: EncoderChange | None = None,
        documents: EncodedDocuments | None = None,
        learned_from: LearnedQueries | None = None,
    ) -> str:
        """Store a trained model as a version that is not live yet.

        It takes over the learned values of its parent; see `with_values_of`.

        Args:
            head: trained head.
            record: training metadata, stored as JSON.
            parent: version that training started from.
            encoder: change of the query encoder.
            documents: re-encoded documents; required if the document encoder was trained.
            learned_from: queries that it learned from.

        Raises:
            ModelNotFound, CorruptData: of the parent.
            Gone: the parent answered predictions and no searches, and so would what is made from it.
            InsufficientStorage, Unavailable: the disk; nothing of it was kept.
        """
        if self.store.predicts_only(parent):
            require_served(self.store, parent)
        if documents is None:
            head, record = self.with_values_of(parent, head, record)
        with self._writing:
            unfinished = unfinished_folder(self.store, self.store.next_model_version())
            with whole_or_gone(unfinished, problem=f"{self.store.path}: the version could not be kept"):
                return save_model(
                    self.store,
                    head,
                    record,
                    parent=parent,
                    encoder=encoder,
                    documents=documents,
                    learned_from=learned_from,
                )

    def with_values_of(
        self, version: str, head: Head, record: Mapping[str, Any]
    ) -> tuple[Head, dict[str, Any]]:
        """Return a head and its record with the learned values of a version; see models/files.py.

        Values of a version with documents of its own are of other embeddings and are not taken over, nor are
        those of a version that this release does not serve.

        Raises:
            ModelNotFound, CorruptData.
        """
        given = self.store.model(version).record
        if version != UNTRAINED and "documents" not in given:
            with suppress(Gone):
                return with_values(head, record, self.stored_head(version), given)
        return head, dict(record)

    def encoded_documents_of(self, version: str) -> EncodedDocuments | None:
        """Return every document as a version embeds it; None where these are the collection's embeddings."""
        return self._documents.encoded(version)

    def add_to_record(self, version: str, fields: dict[str, Any]) -> None:
        """Put members into the record of a version: what is known of it since it was added, as JSON.

        The file that was written with its model stays as it is.

        Raises:
            ModelNotFound.
        """
        with self._writing:
            self.store.add_to_record(version, fields)

    def promote(self, version: str, *, after: str | None = None) -> None:
        """Make a version live by one committed row, with `after` only in place of that one; no rebuild.

        Args:
            version: the version.
            after: version that it was made from, or compared with.

        Raises:
            ModelNotFound, CorruptData: it cannot be loaded; the live one stays.
            Gone: it has a part that this release does not serve.
            Conflict: another one than `after` is live.
        """
        self.head(version)
        self._encoders.check(version)
        own_documents = self._documents.has(version)
        if own_documents:
            self._documents.snapshot(version)  # loaded before it goes live
        if self._compared is not None or self.rebuilder.by_itself:  # texts are encoded here
            self._encoders.prepare(version)
        with self._writing:
            self._require_live(after, version)
            self.store.promote(version)
            self._snapshots.catch_up()
        if own_documents:
            return  # it uses an index of its own
        if self.rebuilder.by_itself:
            self.rebuilder.in_background(self.retune, wait=True)
        else:
            # The model is live already. Without its encoder here, the previous index parameters stay.
            with suppress(DsearchError):
                self.retune()

    def _require_live(self, after: str | None, version: str) -> None:
        """Raise Conflict unless `after` is live; None requires nothing."""
        if after is not None and (live := self.live_model) != after:
            raise Conflict(f"{live} is live and not {after}, which {version} was made from; begin anew")

    def rollback(self) -> str:
        """Make the version live again that answered before, and return the one that answers.

        Raises:
            Conflict: there is no previous version.
            CorruptData: it cannot be loaded; the live one stays.
        """
        self.promote(before_live(self.store))
        return self.live_model

    def delete_model(self, version: str) -> None:
        """Delete a version and its files; what was trained from it goes on with its parent.

        Raises:
            ModelNotFound, InvalidRequest (v0), Conflict (it is live).
        """
        with self._writing:
            delete_version(self.store, version)
        self._forget_model(version)

    def encoder_change_of(self, version: str) -> EncoderChange | None:
        """Return the change of the query encoder of a version; None for the collection's own.

        Raises:
            ModelNotFound, CorruptData.
        """
        return self._encoders.change_of(version)

    def retune(self) -> TunedKeys | None:
        """Measure the recall of an approximate index for the live head, and tune it below its target.

        Runs after each promotion. Returns None for a kind that compares every key.
        """
        tuned = measured_live(self, spawned=self.rebuilder.by_itself)
        if tuned is not None:
            keep_tuned(self.store, tuned)
            with self._writing:
                self._snapshots.use_parameters(tuned.generation, tuned.parameters)
        return tuned

    # ---- the end

    def close(self) -> None:
        """Cancel a running build and close the store; searches in other threads must have ended."""
        self.rebuilder.close()
        super().close()

    def _consider_rebuild(self) -> None:
        self.rebuilder.consider(partial(tuning_queries, self))


@runtime_checkable
class Searchable(Protocol):
    """Operations that need no index in this process; each is described in `Collection`.

    `Collection` has them and all others. A collection in shards has only these: a release answers its
    searches, and the home supplies documents by id, models and feedback.
    """

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def feedback(self) -> FeedbackStore: ...
    @property
    def live_model(self) -> str: ...

    def describe(self) -> CollectionInfo: ...
    def encoder_in_use(self) -> dict[str, Any] | None: ...
    def rebuild_status(self) -> dict[str, Any]: ...
    def head(self, version: str) -> Head: ...
    def search(
        self,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        **options: Unpack[SearchArguments],
    ) -> SearchResult: ...
    def search_batch(
        self, queries: Sequence[str], **options: Unpack[SearchArguments]
    ) -> list[SearchResult]: ...
    def answer(
        self, queries: Sequence[str], options: SearchOptions, vectors: Sequence[Sequence[float]] | None = None
    ) -> list[SearchResult]: ...
