"""`CollectionReader`: what a collection is, and everything that can be asked of it.

A reader of answers holds one snapshot and one head for a whole request; `Collection` replaces them by one
assignment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.head import Head
from dsearch.encoder import EncoderIdentity, QueryCache, TextEncoder
from dsearch.engine.indexing.clean_close import CleanClose
from dsearch.engine.indexing.ingest import is_given, require_encoder
from dsearch.engine.indexing.tuning import keys_report
from dsearch.engine.models.documents import ModelDocuments
from dsearch.engine.models.encoders import ModelEncoders
from dsearch.engine.models.files import UNTRAINED, load_head, load_lessons
from dsearch.engine.models.training_record import Lessons, QueryDrift
from dsearch.engine.options import LayerOptions, SearchOptions, language_of
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.search.attend import Attended, attend
from dsearch.engine.search.predict import EVIDENCE, Predicted, fields_of, predict
from dsearch.engine.search.search import search
from dsearch.engine.search.similar import similar
from dsearch.engine.snapshot.filters import NarrowedStates
from dsearch.engine.snapshot.snapshot import Snapshot
from dsearch.engine.state.caches import KeptDocuments, KeptLayers
from dsearch.engine.state.live import LiveState
from dsearch.errors import Conflict, Gone
from dsearch.store import FeedbackStore, Store
from dsearch.types import Mode, SearchResult, Stamp


class CollectionReader:
    """One collection, to be asked; `Collection` is one that can be written and improved as well.

    Args:
        store: its source of truth.
        encoder: gives the encoder; called when one is needed, so that a keyword search loads none.
        query_cache: keeps the embeddings of queries; none are kept when None.
        closed: what the last writer left (clean_close.py).
    """

    def __init__(
        self,
        store: Store,
        encoder: Callable[[], TextEncoder],
        query_cache: QueryCache | None = None,
        *,
        closed: CleanClose | None = None,
    ):
        self.store = store
        self._give_encoder = encoder
        self._compared: TextEncoder | None = None
        self.query_cache = QueryCache(0) if query_cache is None else query_cache
        self.drift = QueryDrift()
        self._writing = threading.Lock()
        self._state = LiveState(store, closed)
        self._heads: dict[str, Head] = {}
        self._lessons: tuple[str, Lessons | None] | None = None
        self._narrowed = NarrowedStates(store)
        self.kept_documents = KeptDocuments(store)
        self.layers = KeptLayers()
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
        if encoder is not self._compared:  # once for each: every search asks for it
            EncoderIdentity.from_dict(self.store.encoder).require_same(encoder.identity, self.name)
            self._compared = encoder
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
    def verification(self) -> dict[str, Any]:
        """As JSON: whether the files of the generation that answers are what was written.

        `state` is "unopened", "running" (it answers meanwhile), "proven", or "damaged": then everything that
        would be answered from it raises CorruptData, whose message is `problem`.
        """
        proof = self._state.proof
        if proof is None:
            return {"state": "unopened", "problem": None}
        return {"state": proof.state, "problem": proof.problem}

    @property
    def stale(self) -> bool:
        """Whether a build would hold other documents than the live generation does."""
        return self._state.stale

    def describe(self) -> dict[str, Any]:
        """What it is and holds, as JSON; `statistics` in maintenance/statistics.py says what it costs."""
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
                filter: a condition on metadata that documents must meet; see `dsearch.store.filters`.
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
        found = search(self, [query], **options)[0]
        self._state.require_sound()  # damage that was found meanwhile is damage of this answer
        return found

    def search_batch(self, queries: Sequence[str], **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """`search` for many queries at once, from one state; covered mass only if asked for."""
        options.setdefault("coverage", False)
        found = search(self, queries, **options)
        self._state.require_sound()
        return found

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
            filter: a condition on metadata that documents must meet; see `dsearch.store.filters`.
            options: mode, candidates, hops, score, pooling, …; see `LayerOptions`.

        Raises:
            InvalidRequest, DimensionMismatch, ModelNotFound.
        """
        found = attend(self, queries, model=model, certify=certify, filter=filter, options=options)
        self._state.require_sound()
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

    @property
    def query_drift(self) -> float | None:
        """How far lately asked queries lie from those that the live model was trained on (drift.py).

        None when it was not trained, or fewer than 30 queries were asked of it.
        """
        live = self.live_model
        if live == UNTRAINED:
            return None
        return self.drift.of(live, self.store.model(live).record.get("training_queries"))

    def ids_at(self, snapshot: Snapshot, positions: np.ndarray) -> list[list[str]]:
        """The documents' ids at each position, "" at −1."""
        rows = snapshot.rows(positions)
        wanted = np.unique(rows[rows >= 0])
        ids = dict(zip(wanted.tolist(), self.store.ids(wanted), strict=True))
        return [[ids.get(row, "") for row in line] for line in rows.tolist()]

    # ---- by model

    def head(self, version: str) -> Head:
        """The head of a model; kept once loaded. It is shared: train a copy.

        Raises:
            ModelNotFound, CorruptData.
        """
        if version not in self._heads:
            with torch.inference_mode(False):  # loaded by a search, it would have no gradients for ever
                self._heads[version] = load_head(self.store, version).settle()
        return self._heads[version]

    def encoder_of(self, version: str) -> TextEncoder:
        """The encoder that gives the query states of a model; the collection's own unless it was trained.

        Raises:
            ModelNotFound, CorruptData, EncoderMismatch.
        """
        return self._encoders.of(version)

    def encoder_identity_of(self, version: str) -> EncoderIdentity:
        """The identity of that encoder; none is loaded.

        Raises:
            ModelNotFound.
        """
        return self._encoders.identity_of(version)

    def lessons_of(self, version: str) -> Lessons | None:
        """What a model was taught, query by query; kept for one model. None where that was not kept.

        Raises:
            ModelNotFound, CorruptData.
        """
        if self._lessons is None or self._lessons[0] != version:
            self._lessons = version, load_lessons(self.store, version)
        return self._lessons[1]
