"""`Collection`: a named set of documents that can be written, searched and, by its models, improved.

A write returns when it is durable, and what it wrote can be found from then on. Readers hold one snapshot and
one head for a whole request; a write or a promotion replaces them by one assignment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.head import Head
from dsearch.encoder import EncoderChange, EncoderIdentity, QueryCache, TextEncoder
from dsearch.engine.attending import Attended, attend
from dsearch.engine.cutting import Cutting, encode
from dsearch.engine.given import checked_embeddings, is_given, require_encoder
from dsearch.engine.indexing import (
    Ingested,
    OnProgress,
    encode_pending,
    store_documents,
)
from dsearch.engine.keys import KeyOptions
from dsearch.engine.language import language_of
from dsearch.engine.layer import SearchLayer
from dsearch.engine.model_documents import EncodedDocuments, ModelDocuments
from dsearch.engine.model_encoders import ModelEncoders
from dsearch.engine.models import UNTRAINED, load_head, save_model
from dsearch.engine.narrowing import NarrowedStates
from dsearch.engine.options import LayerOptions, SearchOptions
from dsearch.engine.predicting import EVIDENCE, Predicted, fields_of, predict
from dsearch.engine.rebuild import MINIMUM, Rebuilder
from dsearch.engine.retirement import strike_missing
from dsearch.engine.retuning import Tuned, keep_tuned
from dsearch.engine.searching import search
from dsearch.engine.similar import similar
from dsearch.engine.snapshot import Snapshot
from dsearch.engine.state import LiveState
from dsearch.engine.statistics import keys_report
from dsearch.engine.tuning_queries import measured_live, tuning_queries
from dsearch.engine.versions import before_live, delete_version
from dsearch.errors import Conflict, CorruptData, DsearchError, Gone, UnsupportedFormat
from dsearch.store import FeedbackStore, Store, WriteReceipt
from dsearch.types import Document, Mode, SearchResult, Stamp


class Collection:
    """One collection of a home; made by `SearchEngine`.

    Args:
        store: its source of truth.
        encoder: gives the encoder; called when one is needed, so that a keyword search loads none.
        query_cache: keeps the embeddings of queries; none are kept when None.
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
        self.store = store
        self._give_encoder = encoder
        self.query_cache = QueryCache(0) if query_cache is None else query_cache
        self._writing = threading.Lock()
        self._state = LiveState(store)
        self.rebuilder = Rebuilder(
            store, self._state, self._writing, share=rebuild_share, minimum=rebuild_minimum
        )
        self._heads: dict[str, Head] = {}
        self._narrowed = NarrowedStates(store)
        self._feedback = FeedbackStore(store.path)
        self._encoders = ModelEncoders(store, lambda: self.encoder)
        self._documents = ModelDocuments(store, self._encoders, lambda: self.snapshot)

    # ---- what it is

    @property
    def name(self) -> str:
        """The collection's name."""
        return self.store.name

    @property
    def encoder(self) -> TextEncoder:
        """The encoder of this collection.

        Raises:
            EncoderMismatch: the one at hand is another, or the collection's embeddings were given.
        """
        require_encoder(self.store)
        encoder = self._give_encoder()
        EncoderIdentity.from_dict(self.store.encoder).require_same(encoder.identity, self.name)
        return encoder

    @property
    def has_encoder(self) -> bool:
        """Whether texts can be encoded for it, or its embeddings are given."""
        return not is_given(self.store)

    @property
    def snapshot(self) -> Snapshot:
        """The present state; hold it for as long as answers should belong together.

        Raises:
            CorruptData: the live generation is damaged; the message names the way out.
        """
        return self._state.snapshot

    def snapshot_for(self, version: str) -> Snapshot:
        """The present state as a model sees it: for most `snapshot`, for one of scope full its own documents.

        Raises:
            CorruptData: its files are damaged.
        """
        return self._documents.snapshot(version) if self._documents.has(version) else self.snapshot

    @property
    def live_model(self) -> str:
        """The version that answers when none is asked for."""
        return self.store.live_model()

    @property
    def feedback(self) -> FeedbackStore:
        """What people did with what was found: a file of its own, beside the documents."""
        return self._feedback

    @property
    def stale(self) -> bool:
        """Whether a build would hold other documents than the live generation does."""
        return self._state.stale

    def describe(self) -> dict[str, Any]:
        """What it is and holds, as JSON; `statistics` in engine/statistics.py says what it costs."""
        counts, generation = self.store.count(), self.store.live_generation()
        return {
            "name": self.name,
            "documents": counts.documents,
            "pending": counts.pending,
            "generation": generation.number if generation else 0,
            "model": self.live_model,
            "sequence": self.store.sequence,
            "encoder": self.store.encoder,
            "language": language_of(self.store),
            "passages": self.store.cutting,
            "keys": keys_report(self.store),
        }

    # ---- index

    def ingest(self, documents: Iterable[Document], on_progress: OnProgress | None = None) -> Ingested:
        """Index many documents: store, encode what is new, build a generation and make it live.

        Interrupted and called again with the same documents it goes on where it stopped.
        """
        started = time.monotonic()
        encoder = self.encoder
        with self._writing:
            inserted, updated, unchanged = store_documents(self.store, documents, on_progress)
            encoded = encode_pending(self.store, encoder, on_progress)
        if inserted or updated or encoded or self._state.stale:
            self.refresh(on_progress)
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
            self._state.catch_up()
        self._consider_rebuild()
        return receipt

    def delete(self, ids: Sequence[str]) -> WriteReceipt:
        """Delete documents by id; durable, and gone from every later search, on return."""
        with self._writing:
            receipt = self.store.delete(ids)
            self._state.catch_up()
        self._consider_rebuild()
        return receipt

    def delete_matching(self, filter: object) -> WriteReceipt:
        """Delete the documents that a filter finds, those without an embedding too; as `delete`.

        Raises:
            InvalidRequest: not a filter.
        """
        with self._writing:
            receipt = self.store.delete_matching(filter)
            self._state.catch_up()
        self._consider_rebuild()
        return receipt

    def update_metadata(self, id: str, changes: object) -> WriteReceipt:
        """Change part of a document's metadata, as JSON Merge Patch (RFC 7396) does; its embedding stays.

        Raises:
            DocumentNotFound.
            InvalidDocument: the outcome cannot be stored.
        """
        with self._writing:
            receipt = self.store.update_metadata(id, changes)
            self._state.catch_up()
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
        cancelled: Callable[[], bool] | None = None,
    ) -> int:
        """Build a generation of the present documents, its keys projected by the live head; its number.

        Where builds start by themselves (`rebuild_share`) it is built in another process, and writes go on.

        Args:
            on_progress: told of each stage.
            kind: how its keys, and those of later generations, are kept: a name in `DENSE_KINDS`, or "auto";
                as before when None.
            recall_target: the recall@10 that an approximate kind is tuned for; as before when None.
            memory_bytes: what the keys may take when "auto" chooses; as before when None.
            queries: texts to tune an approximate kind by; sentences of the documents when None.
            cancelled: asked now and then, where it is built in another process.

        Raises:
            InvalidRequest: an unknown kind, a target outside 0 to 1, a bound below 1.
            Cancelled, ProcessDied, InsufficientStorage: nothing changed.
        """
        number = self.rebuilder.build(
            partial(tuning_queries, self, texts=queries),
            keys=KeyOptions.of(self.store).changed(kind, recall_target, memory_bytes),
            spawned=self.rebuilder.by_itself,
            on_progress=on_progress,
            cancelled=cancelled,
        )
        if self._documents.has(self.live_model):
            with self._writing:
                self._documents.renew(self.live_model)
        return number

    def retune(self) -> Tuned | None:
        """Measure what an approximate index finds of the live head's queries, and tune it where that is less
        than its target; None for a kind that compares every key. Done after each promotion.
        """
        found = measured_live(self)
        if found is not None:
            keep_tuned(self.store, found)
            with self._writing:
                self._state.use_parameters(found.generation, found.parameters)
        return found

    def forget_states(self) -> None:
        """Let go of every state but the present one, so that the generations they are of can go."""
        self._narrowed.forget()
        self._state.forget_recent()

    @contextmanager
    def writing_stopped(self) -> Generator[None]:
        """While the block runs, writers of this process wait."""
        with self._writing:
            yield

    def restore_derived(self, on_progress: OnProgress | None = None) -> bool:
        """Build what a restored backup lacks; whether there was something.

        A generation can be computed from documents and embeddings, so it may be left out of a backup, and one
        that is damaged does no harm.
        """
        strike_missing(self.store)
        try:
            _ = self.snapshot
        except (CorruptData, UnsupportedFormat):
            self.refresh(on_progress)
            strike_missing(self.store)
            return True
        return False

    def catch_up(self) -> None:
        """See what another process has written since; only a collection that is open readonly needs it."""
        with self._writing:
            self._state.catch_up()

    # ---- search

    def search(self, query: str, **options: Unpack[SearchOptions]) -> SearchResult:
        """The documents that a query attends to most.

        Args:
            query: the words. "Quoted phrases" and +terms must be in a document, -terms must not; the rest is
                looked for by meaning and words.
            options:
                limit: hits wanted, 1 to 1000 (10); fewer come when there are fewer documents.
                offset: hits left out before the first.
                cursor: `next_cursor` of the page before, in place of an offset: the same ranking goes on.
                mode: "hybrid", "dense" or "keyword".
                model: a version; the live one when None.
                hops: rounds of search; by the model when None, see `SearchLayer`.
                hop_strength: g of the later rounds; the head's own when None.
                filter: a condition on metadata that documents must meet; see `dsearch/store/filters.py`.
                operators: False takes quotes and signs in the query as ordinary characters.
                score_threshold: hits of lower score are left out.
                weight_threshold: hits of lower weight are left out.
                explain: whether hits carry the parts of their scores.
                highlight: whether hits carry the pieces that show the query's words.
                coverage: whether to compute covered mass; on small collections when None.

        Raises:
            InvalidRequest: an empty query, a limit, offset, mode or hops out of range, not a filter.
            InvalidCursor: not a cursor, or one of another search.
            Gone: the state or the model of the cursor's first page is not there any more.
            Conflict: the cursor is of a state that this collection never was in.
            ModelNotFound: no such version.
        """
        return search(self, [query], **options)[0]

    def search_batch(self, queries: Sequence[str], **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """`search` for many queries at once, from one state; covered mass only if asked for."""
        options.setdefault("coverage", False)
        return search(self, queries, **options)

    def similar(
        self,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The documents most like some and least like others, themselves left out; see `similar.py`.

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
        return similar(self, like, unlike=unlike, query=query, **options)

    def attend(
        self,
        queries: Sequence[str] | Float[Tensor, "batch encoder_dim"],
        *,
        model: str | None = None,
        certify: int | None = None,
        filter: object | None = None,
        **options: Unpack[LayerOptions],
    ) -> Attended:
        """Attention itself: context, weights and ids for texts or for query states, without gradients.

        Args:
            queries: texts (in which quotes and signs mean nothing), or what takes the place of embeddings.
            model: a version; the live one when None.
            certify: how many of the first places to certify: whether they are provably those that scoring
                every document would give; None leaves that out.
            filter: a condition on metadata that documents must meet; see `dsearch/store/filters.py`.
            options: mode, candidates, hops, score, pooling, …; see `LayerOptions`.

        Raises:
            InvalidRequest, DimensionMismatch, ModelNotFound.
        """
        return attend(self, queries, model=model, certify=certify, filter=filter, options=options)

    def predict(
        self,
        queries: Sequence[str] | Float[Tensor, "batch encoder_dim"],
        *,
        field: str,
        evidence: int = EVIDENCE,
        model: str | None = None,
        filter: object | None = None,
        **options: Unpack[LayerOptions],
    ) -> Predicted:
        """A field of the documents, pooled by the attention of each query; see `predicting.py`.

        With a kernel score this is Nadaraya–Watson regression: `score="gaussian", width=0.2, mode="dense"`.

        Args:
            queries: texts, or what takes the place of their embeddings.
            field: a number, string or boolean of the metadata, by its dotted path; or "value", the
                documents' own number or vector.
            evidence: how many of the documents that weigh most to show with each prediction.
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
        """A field of every document, in the order of the snapshot's positions; None where it is absent.

        What to make `SearchLayer`'s `values` of. `field` is as for `predict`.
        """
        return list(fields_of(self.store, snapshot.rows(np.arange(snapshot.positions)), field))

    def layer_and_stamp(
        self, *, model: str | None = None, filter: object | None = None, **options: Unpack[LayerOptions]
    ) -> tuple[SearchLayer, Stamp]:
        """A layer over the present state (what a filter leaves of it) and a model's head; and its stamp."""
        version = self.live_model if model is None else model
        snapshot = self.snapshot_for(version)
        layer = SearchLayer(self.narrowed(snapshot, filter), self.head(version), **options)
        return layer, Stamp(snapshot.generation.number, version, snapshot.sequence)

    def narrowed(self, snapshot: Snapshot, filter: object | None) -> Snapshot:
        """A state of this collection in which only what meets a filter can be found; itself for None.

        Positions stay; metadata count as they were in that state.

        Raises:
            InvalidRequest: not a filter.
        """
        return self._narrowed.narrowed(snapshot, filter)

    def snapshot_at(self, stamp: Stamp) -> Snapshot:
        """The state that a stamp names: the present one, or one of the last few of its generation.

        Raises:
            Gone: it was replaced since.
            Conflict: this collection never was in that state.
        """
        if self._documents.has(stamp.model):
            found = self._documents.at(stamp.model, stamp.generation, stamp.sequence)
        else:
            found = self._state.at(stamp.generation, stamp.sequence)
        if found is not None:
            return found
        named = f"generation {stamp.generation}, sequence {stamp.sequence}"
        present = self.snapshot_for(stamp.model)
        live = f"generation {present.generation.number}, sequence {present.sequence}"
        if stamp.generation > present.generation.number or stamp.sequence > present.sequence:
            raise Conflict(
                f"{named}: collection {self.name!r} has only come to {live}; was this stamp of another "
                "collection, or of before a restore? Ask again and use the stamp of the answer"
            )
        raise Gone(f"{named} is gone; collection {self.name!r} is at {live}: ask again, without the stamp")

    def query_states(
        self, queries: Sequence[str], mode: Mode, model: str | None = None
    ) -> Float[Tensor, "batch encoder_dim"]:
        """What a layer takes for these texts; zeros where only their words count.

        Args:
            queries: the texts.
            mode: "hybrid", "dense" or "keyword".
            model: the version whose encoder speaks, that of the layer's head; the live one when None.
        """
        if mode == "keyword":
            return torch.zeros(len(queries), self.store.dimension)
        encoder = self.encoder_of(self.live_model if model is None else model)
        return torch.as_tensor(
            self.query_cache.states(encoder.identity, list(queries), encoder.encode_queries)
        )

    def ids_at(self, snapshot: Snapshot, positions: np.ndarray) -> list[list[str]]:
        """The documents' ids at each position, "" at −1."""
        rows = snapshot.rows(positions)
        wanted = np.unique(rows[rows >= 0])
        ids = dict(zip(wanted.tolist(), self.store.ids(wanted), strict=True))
        return [[ids.get(row, "") for row in line] for line in rows.tolist()]

    # ---- models

    def head(self, version: str) -> Head:
        """The head of a model; kept once loaded. It is shared: train a copy.

        Raises:
            ModelNotFound, CorruptData.
        """
        if version not in self._heads:
            with torch.inference_mode(False):  # loaded by a search, it would have no gradients for ever
                self._heads[version] = load_head(self.store, version)
        return self._heads[version]

    def encoder_of(self, version: str) -> TextEncoder:
        """The encoder that gives the query states of a model; the collection's own unless it was trained.

        Raises:
            ModelNotFound, CorruptData, EncoderMismatch.
        """
        return self._encoders.of(version)

    def add_model(
        self,
        head: Head,
        record: dict[str, Any],
        *,
        parent: str = UNTRAINED,
        encoder: EncoderChange | None = None,
        documents: EncodedDocuments | None = None,
    ) -> str:
        """Keep what was trained as a version that is not live yet.

        Args:
            head: the head.
            record: what should be known of it.
            parent: the version that it was trained from.
            encoder: what was changed of the query encoder.
            documents: encoded anew, where that encoder is theirs too.
        """
        with self._writing:
            return save_model(self.store, head, record, parent=parent, encoder=encoder, documents=documents)

    def promote(self, version: str) -> None:
        """Let a version answer from now on: one committed row, nothing is rebuilt.

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
            self._state.catch_up()
        if own_documents:
            return  # the index that is tuned is not the one that it asks
        if self.rebuilder.by_itself:
            self.rebuilder.in_background(self.retune, wait=True)
        else:
            # It answers now, with an encoder that is not at hand, too: then as the index was tuned before.
            with suppress(DsearchError):
                self.retune()

    def rollback(self) -> str:
        """Let the version answer that did before the live one was promoted; which it is.

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
        self._heads.pop(version, None)
        self._encoders.forget(version)
        self._documents.forget(version)

    def close(self) -> None:
        """Close the store; searches in flight elsewhere must have ended. A build that runs is given up."""
        self.rebuilder.close()
        self._narrowed.forget()
        self._documents.close()
        self._state.close()
        self._feedback.close()
        self.store.close()

    def _consider_rebuild(self) -> None:
        self.rebuilder.consider(partial(tuning_queries, self))
