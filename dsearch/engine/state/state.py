"""`State`: everything of a collection that is in memory: its snapshots, heads, encoders and caches.

Search, rebuilds and maintenance work on it. The functions of `search/` take it as an argument, and
`Collection` adds them, and writing, as methods. No module below imports `Collection`.

A request holds one snapshot and one head from beginning to end; a write or a promotion replaces them by one
assignment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float, Float32, Int64

from dsearch.attention.arrays import Array
from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.attention_options import FIELD_SCORES
from dsearch.declared import suggestion
from dsearch.encoder import EncoderIdentity, QueryCache, TextEncoder, encoder_in_use
from dsearch.engine.filters import FilteredSnapshots
from dsearch.engine.home import is_given, require_encoder
from dsearch.engine.indexing.tokens import TokenKeeper
from dsearch.engine.indexing.tuning import keys_report
from dsearch.engine.models.confidence import Calibrations
from dsearch.engine.models.documents import ModelDocuments
from dsearch.engine.models.drafts import DraftHeads
from dsearch.engine.models.encoders import ModelEncoders
from dsearch.engine.models.files import UNTRAINED, live_problem, served_version
from dsearch.engine.models.training_record import QueryDrift
from dsearch.engine.options import LayerOptions, language_of, search_fields_of
from dsearch.engine.ranking.field_match import FieldMatch
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.engine.state.caches import (
    OWN_FIELDS,
    DocumentCache,
    FieldCache,
    HeadCache,
    LayerCache,
    QueryTokenCache,
)
from dsearch.engine.state.remembered import RememberedRows
from dsearch.engine.state.snapshots import Snapshots, no_such_state
from dsearch.errors import Command, CorruptData, DocumentNotFound, InvalidRequest, UnsupportedFormat
from dsearch.results import CollectionInfo
from dsearch.store import FeedbackStore, GenerationRecord, Store
from dsearch.store.filters import SAMPLE, names_of
from dsearch.types import Mode, PendingDocuments, Stamp

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head
    from dsearch.engine.ranking.layer import SearchLayer

_log = logging.getLogger(__name__)


class State:
    """What one collection has in memory, beside its store.

    Args:
        store: source of truth of the collection.
        encoder: loads the encoder; called at its first use, so that a keyword search loads none.
        query_cache: embeddings of earlier queries; None caches none.
    """

    def __init__(
        self,
        store: Store,
        encoder: Callable[[], TextEncoder],
        query_cache: QueryCache | None = None,
    ):
        self.store = store
        self._give_encoder = encoder
        self._compared: TextEncoder | None = None
        self.query_cache = QueryCache(0) if query_cache is None else query_cache
        self.drift = QueryDrift()
        self._writing = threading.Lock()
        self.tokens = TokenKeeper(store)
        self._snapshots = Snapshots(store, self.tokens)
        self._heads = HeadCache(store)
        self.remembered = RememberedRows(store, self._writing, self._snapshots)
        self.drafts = DraftHeads()
        self._served = ("", "")  # promoted version, and version that answers
        self._filtered = FilteredSnapshots(store, suggest=True)
        self.document_cache = DocumentCache(store)
        self.field_cache = FieldCache(store)
        self.layers = LayerCache()
        self.query_token_cache = QueryTokenCache()
        self._feedback = FeedbackStore(store.path)
        self.calibrations = Calibrations(store)
        self._encoders = ModelEncoders(store, lambda: self.encoder)
        self._documents = ModelDocuments(store, self._encoders, lambda: self.snapshot)

    @property
    def name(self) -> str:
        """The collection's name."""
        return self.store.name

    @property
    def encoder(self) -> TextEncoder:
        """Encoder of this collection.

        Raises:
            EncoderMismatch: the available encoder is another one, or the caller supplies embeddings.
        """
        require_encoder(self.store)
        encoder = self._give_encoder()
        if encoder is not self._compared:  # compared once, since every search gets it
            EncoderIdentity.from_dict(self.store.encoder).require_same(encoder.identity, self.name)
            self._compared = encoder
        return encoder

    def encoder_in_use(self) -> dict[str, Any] | None:
        """Return `EncoderInUse` as JSON; None before texts are encoded, and where embeddings are supplied."""
        in_use = encoder_in_use(self._compared)
        return None if in_use is None else asdict(in_use)

    @property
    def has_encoder(self) -> bool:
        """True if texts can be encoded for the collection; False if callers supply its embeddings."""
        return not is_given(self.store)

    @property
    def snapshot(self) -> Snapshot:
        """Present state; hold it as long as answers must be consistent.

        Raises:
            CorruptData: the live generation is damaged; the message names the remedy.
        """
        return self._snapshots.present

    def snapshot_for(self, version: str) -> Snapshot:
        """Return the present state for a model: mostly `snapshot`, for scope full the model's own documents.

        Raises:
            CorruptData: its files are damaged.
        """
        return self._documents.snapshot(version) if self._documents.has(version) else self.snapshot

    @property
    def live_model(self) -> str:
        """Version that answers by default; see models/files.py for one that cannot be served."""
        live, served = self.store.live_model(), self._served  # read once, for other threads
        if live != served[0]:
            served = self._served = live, served_version(self.store, live)
            if served[1] != live:
                _log.warning("%s", live_problem(self.store))
        return served[1]

    @property
    def feedback(self) -> FeedbackStore:
        """Feedback about the collection's hits, in a separate file beside the documents."""
        return self._feedback

    @property
    def waiting(self) -> PendingDocuments | None:
        """Documents that an interrupted run left without an embedding, and the command that goes on."""
        pending = self._snapshots.pending
        return PendingDocuments(pending, Command("index", ("-c", self.name))) if pending else None

    @property
    def stale(self) -> bool:
        """True if a build would produce other documents than the live generation has."""
        return self._snapshots.stale

    def describe(self) -> CollectionInfo:
        """Description of the collection; `statistics` has the costs."""
        counts, generation = self.store.count(), self.store.live_generation()
        return CollectionInfo(
            name=self.name,
            documents=counts.documents,
            pending=counts.pending,
            generation=generation.number if generation else 0,
            model=self.live_model,
            model_problem=live_problem(self.store),
            sequence=self.store.sequence,
            encoder=self.store.encoder,
            language=language_of(self.store),
            search_fields=list(search_fields_of(self.store)),
            passages=self.store.cutting,
            keys=keys_report(self.store),
            second_stage=self.tokens.codec is not None,
        )

    def layer_and_stamp(
        self,
        *,
        model: str | None = None,
        filter: object | None = None,
        **options: Unpack[LayerOptions],
    ) -> tuple[SearchLayer, Stamp]:
        """Return a layer over the present state (after a filter) with a model's head, and its stamp.

        Without a model it is the live one.
        """
        version = self.live_model if model is None else model
        snapshot = self.snapshot_for(version)
        head = self.head(version, snapshot.sequence)
        layer = self.layer_over(self.filtered(snapshot, filter), head, options)
        return layer, Stamp(snapshot.generation.number, version, snapshot.sequence)

    def selected(self, snapshot: Snapshot, among: Sequence[str] | None, exclude: Sequence[str]) -> Snapshot:
        """Return the state of the documents `among` without those of `exclude`.

        Positions stay. Ids of no document are ignored: a history outlives its documents.
        """
        if among is not None:
            snapshot = snapshot.restricted_to(self._rows_of(among))
        return snapshot.excluding(self._rows_of(exclude), snapshot.sequence) if exclude else snapshot

    def states_of(
        self, ids: Sequence[str], snapshot: Snapshot | None = None
    ) -> Float[Array, "batch encoder_dim"]:
        """Return the embeddings of documents, of their first passages, as query states of a recommender.

        Raises:
            DocumentNotFound: no such document in this state, or it has no embedding yet.
        """
        snapshot = self.snapshot if snapshot is None else snapshot
        rows = self.store.rows_of(ids)
        positions = snapshot.positions_of(np.array([rows.get(id, NONE) for id in ids], np.int64))
        for id, position in zip(ids, positions.tolist(), strict=True):
            if position == NONE or id not in rows:
                raise DocumentNotFound(
                    f"no document {id[:80]!r} with an embedding in collection {self.store.name!r}; "
                    "ids are exact"
                )
        import torch

        return torch.as_tensor(snapshot.embeddings(positions))

    def _rows_of(self, ids: Sequence[str]) -> Int64[np.ndarray, " rows"]:
        return np.array([*self.store.rows_of(ids).values()], np.int64)

    def layer_over(self, snapshot: Snapshot, head: Head, options: LayerOptions) -> SearchLayer:
        """Return a layer over a snapshot of this collection, with the field that it matches.

        Raises:
            InvalidRequest: options out of range, not a field, a field for a score that compares vectors.
        """
        snapshot, own = self.layer_parts(snapshot, options)
        from dsearch.engine.ranking.layer import SearchLayer

        return SearchLayer(snapshot, head, **own)

    def layer_parts(self, snapshot: Snapshot, options: LayerOptions) -> tuple[Snapshot, dict[str, Any]]:
        """Return a `SearchLayer`'s snapshot and options, those resolved that name documents or a field."""
        plain: dict[str, Any] = {**options}
        snapshot = self.selected(snapshot, plain.pop("among", None), plain.pop("exclude", ()))
        return snapshot, self._with_match(snapshot, plain)

    def _with_match(self, snapshot: Snapshot, plain: dict[str, Any]) -> dict[str, Any]:
        """Replace `match_field` and `ignore_case` by the score that compares the field in this snapshot."""
        from dsearch.attention import SCORES

        field, ignore_case = plain.pop("match_field", None), plain.pop("ignore_case", False)
        score = plain.get("score", "dot")
        names = list(dict.fromkeys([*SCORES, *FIELD_SCORES]))
        if isinstance(score, str) and score not in names:
            raise InvalidRequest(f"score={score!r}; use one of {', '.join(names)}{suggestion(score, names)}")
        if field is not None:
            if score not in FIELD_SCORES:
                raise InvalidRequest(
                    f"match_field={field!r} with score={score!r}; only {', '.join(FIELD_SCORES)} compare a "
                    "field"
                )
            rows = snapshot.rows(np.arange(snapshot.positions))
            values = self.field_cache.of(rows, field, own=True)
            if all(value is None for value in values):
                near = suggestion(field, [*OWN_FIELDS, *names_of(self.store.list(limit=SAMPLE))])
                if near:
                    raise InvalidRequest(
                        f"match_field={field!r}: no document has this field{near}; use id, title, text or a "
                        "field of the metadata"
                    )
            plain["score"] = FieldMatch(score, field, values, ignore_case=ignore_case)
            plain["mode"] = "dense"  # neither vectors nor keywords have a part
        elif isinstance(score, str) and score in FIELD_SCORES[1:]:
            raise InvalidRequest(
                f"score={score!r} without a field; give match_field: id, title, text or one of the metadata"
            )
        elif ignore_case:
            raise InvalidRequest("ignore_case without match_field, which it is about; give both")
        return plain

    def filtered(self, snapshot: Snapshot, filter: object | None) -> Snapshot:
        """Return the state of the documents that match a filter; `snapshot` itself for None.

        Positions stay; metadata are those of that state.

        Raises:
            InvalidRequest: not a filter.
        """
        return snapshot if filter is None else self._filtered.restricted(snapshot, filter)

    def snapshot_at(self, stamp: Stamp) -> Snapshot:
        """Return the state that a stamp names: the present one, or one of the last few of its generation.

        Raises:
            Gone: the state was replaced.
            Conflict: the collection never had that state.
        """
        if self._documents.has(stamp.model):
            snapshot = self._documents.at(stamp.model, stamp.generation, stamp.sequence)
        else:
            snapshot = self._snapshots.at(stamp.generation, stamp.sequence)
        if snapshot is not None:
            return snapshot
        raise no_such_state(self.name, stamp, self.snapshot_for(stamp.model))

    def query_states(
        self, queries: Sequence[str], mode: Mode, model: str | None = None, tokens: TextEncoder | None = None
    ) -> Float[Array, "batch encoder_dim"]:
        """Encode texts as query states for a layer; zeros if only their words count.

        Args:
            queries: texts.
            mode: "hybrid", "dense" or "keyword".
            model: version whose encoder is used, that of the layer's head; the live one when None.
            tokens: encoder of their tokens, if these are wanted next; the same pass of it gives both.
        """
        import torch

        return torch.as_tensor(self.query_embeddings(queries, mode, model, tokens))

    def query_embeddings(
        self, queries: Sequence[str], mode: Mode, model: str | None = None, tokens: TextEncoder | None = None
    ) -> Float32[np.ndarray, "batch encoder_dim"]:
        """Return `query_states` as an array, which needs no torch."""
        if mode == "keyword":
            return np.zeros((len(queries), self.store.dimension), np.float32)
        encoder = self.encoder_of(self.live_model if model is None else model)
        encode = encoder.encode_queries
        if encoder is tokens:
            encode = partial(self.query_token_cache.encode, encoder)
        return self.query_cache.states(encoder.identity, list(queries), encode)

    @property
    def query_drift(self) -> float | None:
        """Distance of recent queries from the training queries of the live model (models/training_record.py).

        None if the model was not trained, or received fewer than 30 queries.
        """
        live = self.live_model
        if live == UNTRAINED:
            return None
        return self.drift.of(live, self.store.model(live).record.get("training_queries"))

    def ids_at(self, snapshot: Snapshot, positions: np.ndarray) -> list[list[str]]:
        """Return the documents' ids at each position, "" at −1."""
        rows = snapshot.rows(positions)
        wanted = np.unique(rows[rows >= 0])
        ids = dict(zip(wanted.tolist(), self.store.ids(wanted), strict=True))
        return [[ids.get(row, "") for row in line] for line in rows.tolist()]

    def head(self, version: str, sequence: int | None = None) -> Head:
        """Return the head of a model, cached once loaded. It is shared: train a copy.

        Its memory has the rows that were inserted until operation `sequence`, until now when None.

        Raises:
            ModelNotFound, CorruptData.
        """
        return self.remembered.remembering(version, self.stored_head(version), sequence)

    def stored_head(self, version: str) -> Head:
        """Return the head of a model as it was stored, without inserted rows; raises as `head`."""
        return self._heads.of(version)

    def ranking_head(self, version: str, sequence: int | None = None) -> Head | FixedHead:
        """Return the head that a search ranks by: in NumPy where that computes all of it; see `head`."""
        head = self._heads.fixed(version) or self.stored_head(version)
        return self.remembered.remembering(version, head, sequence)

    def has_documents_of(self, version: str) -> bool:
        """Return True if a model has re-encoded documents (scope full)."""
        return self._documents.has(version)

    def encoder_of(self, version: str) -> TextEncoder:
        """Return the encoder of a model's query states; the collection's own unless it was trained.

        Raises:
            ModelNotFound, CorruptData, EncoderMismatch.
        """
        return self._encoders.of(version)

    def encoder_identity_of(self, version: str) -> EncoderIdentity:
        """Return the identity of that encoder; none is loaded.

        Raises:
            ModelNotFound.
        """
        return self._encoders.identity_of(version)

    def catch_up(self) -> None:
        """Load another process's writes; only a collection opened readonly needs it."""
        with self._writing:
            self.remembered.catch_up()
            self._snapshots.catch_up()

    def forget_states(self) -> None:
        """Release every state but the present one, so that their generations can be deleted."""
        self._filtered.recent.clear()
        self.layers.clear()
        self._snapshots.forget_recent()

    @contextmanager
    def writing_stopped(self) -> Generator[None]:
        """Block this process's writers during the `with` block."""
        with self._writing:
            yield

    def close(self) -> None:
        """Release snapshots and caches, and close the store."""
        self._filtered.recent.clear()
        self.layers.clear()
        self.document_cache.clear()
        self.field_cache.clear()
        self._documents.close()
        self._snapshots.close()
        self._feedback.close()
        self.tokens.close()
        self.store.close()

    def _damaged_generation(self) -> GenerationRecord | None:
        """Return the live generation if it is missing or damaged, else None."""
        live = self.store.live_generation()
        if live is None:
            return None
        try:
            self._snapshots.require_readable()
        except (CorruptData, UnsupportedFormat):
            return live
        return None

    def _forget_model(self, version: str) -> None:
        """Remove a deleted model from all caches."""
        self._heads.drop(version)
        self.remembered.forget(version)
        self.layers.clear()
        self._encoders.forget(version)
        self._documents.forget(version)
