"""`Collection`: a named set of documents that can be searched, written and, by its models, improved.

It is the facade over `CollectionState`, which holds the data: each search method calls one function of
`search/`. A write returns when it is durable; every later search sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, QueryCache, TextEncoder
from dsearch.engine.indexing.chunking import Cutting, encode
from dsearch.engine.indexing.clean_close import CleanClose
from dsearch.engine.indexing.ingest import (
    Ingested,
    OnProgress,
    checked_embeddings,
    encode_pending,
    store_documents,
)
from dsearch.engine.indexing.retention import retire_one, strike_missing
from dsearch.engine.indexing.tuning import TunedKeys, keep_tuned
from dsearch.engine.models.documents import EncodedDocuments
from dsearch.engine.models.files import UNTRAINED, before_live, delete_version, save_model
from dsearch.engine.models.training_record import Lessons
from dsearch.engine.options import KeyOptions, LayerOptions, SearchArguments
from dsearch.engine.rebuild import MINIMUM, Rebuilder, measured_live, tuning_queries
from dsearch.engine.search.attend import AttendResult, attend
from dsearch.engine.search.predict import EVIDENCE, fields_of, predict
from dsearch.engine.search.search import search
from dsearch.engine.search.similar import similar
from dsearch.engine.snapshot.snapshot import Snapshot
from dsearch.engine.state.state import CollectionState
from dsearch.errors import DsearchError
from dsearch.results import Predictions
from dsearch.search_options import SearchOptions
from dsearch.store import Store, WriteReceipt
from dsearch.types import Document, SearchResult


class Collection(CollectionState):
    """One collection of a home; made by `SearchEngine`.

    Args:
        store: its source of truth.
        encoder: gives the encoder; called when one is needed, so that a keyword search loads none.
        query_cache: keeps the embeddings of queries; none are kept when None.
        closed: what the last writer left (clean_close.py).
        rebuild_share: see `SearchEngine`.
        rebuild_minimum: see `SearchEngine`.
    """

    def __init__(
        self,
        store: Store,
        encoder: Callable[[], TextEncoder],
        query_cache: QueryCache | None = None,
        *,
        closed: CleanClose | None = None,
        rebuild_share: float | None = None,
        rebuild_minimum: int = MINIMUM,
    ):
        super().__init__(store, encoder, query_cache, closed=closed)
        self.rebuilder = Rebuilder(
            store, self._live, self._writing, share=rebuild_share, minimum=rebuild_minimum
        )

    # ---- search

    def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """Search for the documents that a query attends to most.

        Args:
            query: the words. "Quoted phrases" and +terms must be in a document, -terms must not; the rest is
                looked for by meaning and words.
            options: described by `dsearch.search_options.SearchOptions`.

        Raises:
            InvalidRequest: an empty query, a limit, offset, mode or hops out of range, not a filter.
            InvalidCursor: not a cursor, or one of another search.
            Gone: the state or the model of the cursor's first page is not there any more.
            Conflict: the cursor is of a state that this collection never was in.
            ModelNotFound: no such version.
        """
        return self.answer([query], SearchOptions(**options))[0]

    def search_batch(self, queries: Sequence[str], **options: Unpack[SearchArguments]) -> list[SearchResult]:
        """Run `search` for many queries in one state; covered mass only on request."""
        options.setdefault("coverage", False)
        return self.answer(queries, SearchOptions(**options))

    def answer(self, queries: Sequence[str], options: SearchOptions) -> list[SearchResult]:
        """Answer queries that have the same options, in one state; see `search`."""
        results = search(self, queries, options)
        self._live.require_sound()  # damage that was found meanwhile is damage of this answer
        return results

    def similar(
        self,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        **options: Unpack[SearchArguments],
    ) -> SearchResult:
        """Search by example: documents like some and unlike others, without these; see `search/similar.py`.

        Args:
            like: ids, 1 to 100.
            unlike: ids, at most 100.
            query: words that count as well, and the only ones that do in hybrid search.
            options: as for `search`; mode "keyword" has no likeness.

        Raises:
            DocumentNotFound: no such document, or it has no embedding yet.
            InvalidRequest: nothing to like, a document in both lists, and as for `search`.
            InvalidCursor, Gone, Conflict, ModelNotFound.
        """
        return similar(self, like, unlike=unlike, query=query, chosen=SearchOptions(**options))

    def attend(
        self,
        queries: Sequence[str] | Float[Tensor, "batch encoder_dim"],
        *,
        model: str | None = None,
        certify: int | None = None,
        filter: object | None = None,
        **options: Unpack[LayerOptions],
    ) -> AttendResult:
        """Compute attention for texts or query states: context, weights and ids, without gradients.

        Args:
            queries: texts (in which quotes and signs mean nothing), or what takes the place of embeddings.
            model: a version; the live one when None.
            certify: how many of the first places to certify: whether they are provably those that scoring
                every document would give; None leaves that out.
            filter: a condition on metadata that documents must meet; see `dsearch.store.filters`.
            options: mode, candidates, hops, score, pooling, …; see `LayerOptions`.

        Raises:
            InvalidRequest, DimensionMismatch, ModelNotFound.
        """
        found = attend(self, queries, model=model, certify=certify, filter=filter, options=options)
        self._live.require_sound()
        return found

    def predict(
        self,
        queries: Sequence[str] | Float[Tensor, "batch encoder_dim"],
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
            queries: texts, or query states that replace their embeddings.
            field: a number, string or boolean of the metadata, by its dotted path; or "value", the
                documents' own number or vector.
            evidence: number of documents of largest weight to return with each prediction.
            model: a version; the live one when None.
            filter: a condition on metadata that documents must meet.
            options: mode, candidates, hops, score, pooling, …; see `LayerOptions`.

        Raises:
            InvalidRequest: not a field, or one whose kind differs among the candidates of a query; options
                out of range.
            DimensionMismatch, ModelNotFound.
        """
        return predict(
            self, queries, field=field, evidence=evidence, model=model, filter=filter, options=options
        )

    def field_values(self, snapshot: Snapshot, field: str) -> list[Any]:
        """Return a field of every document, in the order of the snapshot's positions; None if absent.

        What to make `SearchLayer`'s `values` of. `field` is as for `predict`.
        """
        return list(fields_of(self.store, snapshot.rows(np.arange(snapshot.positions)), field))

    # ---- index

    def ingest(self, documents: Iterable[Document], on_progress: OnProgress | None = None) -> Ingested:
        """Index many documents: store them, encode the new ones, build a generation and make it live.

        Interrupted and called again with the same documents it goes on where it stopped.
        """
        started = time.monotonic()
        encoder = self.encoder
        with self._writing:
            inserted, updated, unchanged = store_documents(self.store, documents, on_progress)
            encoded = encode_pending(self.store, encoder, on_progress)
        if inserted or updated or encoded or self._live.stale:
            self.refresh(on_progress)
        else:
            self.restore_derived(on_progress)
        return Ingested(inserted, updated, unchanged, encoded, time.monotonic() - started)

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: Float[np.ndarray, "documents encoder_dim"] | None = None,
    ) -> WriteReceipt:
        """Insert or replace documents; durable, and visible to every later search, on return.

        Args:
            documents: all or none of them is written.
            embeddings: of length 1, one a document, where the caller has them; encoded when None. An
                unchanged text keeps its embedding.

        Raises:
            InvalidDocument: one cannot be stored; nothing of the batch was.
            InvalidRequest: embeddings of another length than 1, or another for a text that is stored.
            DimensionMismatch: not one embedding a document, or of another dimension than the collection's.
            EncoderMismatch: no embeddings, and the encoder at hand is not the collection's, or it has none.
        """
        encoder = self.encoder if embeddings is None else None
        with self._writing:
            if encoder is None:
                assert embeddings is not None
                receipt = self.store.upsert(documents, checked_embeddings(self.store, documents, embeddings))
            else:
                new = self.store.needs_encoding(documents)
                encoded, cut = encode(encoder, [documents[i] for i in new], Cutting.of(self.store))
                further = {new[place]: passages for place, passages in cut.items()}
                receipt = self.store.upsert(documents, encoded, new, further)
            self._live.catch_up()
        self._consider_rebuild()
        return receipt

    def delete(self, ids: Sequence[str]) -> WriteReceipt:
        """Delete documents by id; durable, and gone from every later search, on return."""
        with self._writing:
            receipt = self.store.delete(ids)
            self._live.catch_up()
        self._consider_rebuild()
        return receipt

    def delete_matching(self, filter: object) -> WriteReceipt:
        """Delete the documents that match a filter, those without an embedding too; as `delete`.

        Raises:
            InvalidRequest: not a filter.
        """
        with self._writing:
            receipt = self.store.delete_matching(filter)
            self._live.catch_up()
        self._consider_rebuild()
        return receipt

    def update_metadata(self, id: str, changes: object) -> WriteReceipt:
        """Change part of a document's metadata by JSON Merge Patch (RFC 7396); its embedding stays.

        Raises:
            DocumentNotFound.
            InvalidDocument: the outcome cannot be stored.
        """
        with self._writing:
            receipt = self.store.update_metadata(id, changes)
            self._live.catch_up()
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

        One that was live and is damaged goes then: all is whole again.

        Args:
            on_progress: told of each stage.
            kind: how its keys, and those of later generations, are kept: a name in `DENSE_KINDS`, or "auto";
                as before when None.
            recall_target: the recall@10 that an approximate kind is tuned for; as before when None.
            memory_bytes: what the keys may take when "auto" chooses; as before when None.
            queries: texts to tune an approximate kind by; sentences of the documents when None.
            spawned: whether it is built in another process, and writes go on; when None, where builds start
                by themselves (`rebuild_share`).
            cancelled: asked now and then, where it is built in another process.

        Raises:
            InvalidRequest: an unknown kind, a target outside 0 to 1, a bound below 1.
            Cancelled, ProcessDied, InsufficientStorage: nothing changed.
        """
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

    def retune(self) -> TunedKeys | None:
        """Measure what an approximate index finds of the live head's queries, and tune it where that is less
        than its target; None for a kind that compares every key. Done after each promotion.
        """
        found = measured_live(self, spawned=self.rebuilder.by_itself)
        if found is not None:
            keep_tuned(self.store, found)
            with self._writing:
                self._live.use_parameters(found.generation, found.parameters)
        return found

    def restore_derived(self, on_progress: OnProgress | None = None) -> bool:
        """Rebuild the live generation if it is missing or damaged; return True if it was.

        It can be computed from documents and embeddings: a backup may come without, and damage to it does no
        harm.
        """
        strike_missing(self.store)
        if self._damaged_generation() is None:
            return False
        self.refresh(on_progress)
        return True

    # ---- models

    def add_model(
        self,
        head: Head,
        record: dict[str, Any],
        *,
        parent: str = UNTRAINED,
        encoder: EncoderChange | None = None,
        documents: EncodedDocuments | None = None,
        lessons: Lessons | None = None,
    ) -> str:
        """Store trained parts as a version that is not live yet.

        Args:
            head: the head.
            record: what should be known of it.
            parent: the version that it was trained from.
            encoder: what was changed of the query encoder.
            documents: encoded anew, where that encoder is theirs too.
            lessons: what it was taught, for `explain`.
        """
        with self._writing:
            return save_model(
                self.store,
                head,
                record,
                parent=parent,
                encoder=encoder,
                documents=documents,
                lessons=lessons,
            )

    def promote(self, version: str) -> None:
        """Make a version live: one committed row, nothing is rebuilt.

        Raises:
            ModelNotFound, CorruptData: it cannot be loaded, and the live one stays.
        """
        self.head(version)
        self._encoders.check(version)
        own_documents = self._documents.has(version)
        if own_documents:
            self._documents.snapshot(version)  # all that it answers by is there before it does
        with self._writing:
            self.store.promote(version)
            self._live.catch_up()
        if own_documents:
            return  # the index that is tuned is not the one that it asks
        if self.rebuilder.by_itself:
            self.rebuilder.in_background(self.retune, wait=True)
        else:
            # It answers now, with an encoder that is not at hand, too: then as the index was tuned before.
            with suppress(DsearchError):
                self.retune()

    def rollback(self) -> str:
        """Make the previously live version live again, and return it.

        Raises:
            Conflict: nothing answered before.
            CorruptData: that one cannot be loaded, and the live one stays.
        """
        version = before_live(self.store)
        self.promote(version)
        return version

    def delete_model(self, version: str) -> None:
        """Delete a version and its files.

        Raises:
            ModelNotFound, InvalidRequest (v0), Conflict (it answers, or is another's parent).
        """
        with self._writing:
            delete_version(self.store, version)
        self._forget_model(version)

    def close(self) -> None:
        """Cancel a running build and close the store; searches in other threads must have ended."""
        self.rebuilder.close()
        super().close()

    def _consider_rebuild(self) -> None:
        self.rebuilder.consider(partial(tuning_queries, self))
