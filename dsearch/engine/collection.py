"""`Collection`: a named set of documents that can be written, searched and, by its models, improved.

A write returns when it is durable, and what it wrote can be found from then on. Readers hold one snapshot and
one head for a whole request; a write or a promotion replaces them by one assignment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from dsearch.attention.head import Head
from dsearch.encoder import EncoderChange, QueryCache, TextEncoder
from dsearch.engine.indexing.chunking import Cutting, encode
from dsearch.engine.indexing.clean_close import CleanClose, leave_clean_close
from dsearch.engine.indexing.ingest import (
    Ingested,
    OnProgress,
    checked_embeddings,
    encode_pending,
    store_documents,
)
from dsearch.engine.indexing.retention import retire_one, strike_missing
from dsearch.engine.indexing.tuning import Tuned, keep_tuned
from dsearch.engine.models.documents import EncodedDocuments
from dsearch.engine.models.files import UNTRAINED, before_live, delete_version, save_model
from dsearch.engine.models.training_record import Lessons
from dsearch.engine.options import KeyOptions
from dsearch.engine.rebuild import MINIMUM, Rebuilder, measured_live, tuning_queries
from dsearch.engine.state.view import CollectionReader
from dsearch.errors import CorruptData, DsearchError, UnsupportedFormat
from dsearch.store import GenerationRecord, Store, WriteReceipt
from dsearch.types import Document


class Collection(CollectionReader):
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
            store, self._state, self._writing, share=rebuild_share, minimum=rebuild_minimum
        )

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
        spawned: bool | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> int:
        """Build a generation of the present documents, its keys projected by the live head; its number.

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
        self.layers.forget()
        self._state.forget_recent()

    @contextmanager
    def writing_stopped(self) -> Generator[None]:
        """While the block runs, writers of this process wait."""
        with self._writing:
            yield

    def restore_derived(self, on_progress: OnProgress | None = None) -> bool:
        """Build the live generation anew where it is missing or damaged; whether it was.

        It can be computed from documents and embeddings: a backup may come without, and damage to it does no
        harm.
        """
        strike_missing(self.store)
        if self._damaged_generation() is None:
            return False
        self.refresh(on_progress)
        return True

    def _damaged_generation(self) -> GenerationRecord | None:
        """The live generation where it is missing or damaged."""
        live = self.store.live_generation()
        if live is None:
            return None
        try:
            _ = self.snapshot
        except (CorruptData, UnsupportedFormat):
            return live
        return None

    def catch_up(self) -> None:
        """See what another process has written since; only a collection that is open readonly needs it."""
        with self._writing:
            self._state.catch_up()

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
        """Keep what was trained as a version that is not live yet.

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
        self.layers.forget()
        self._encoders.forget(version)
        self._documents.forget(version)

    def close(self) -> None:
        """Close the store; searches in flight elsewhere must have ended. A build that runs is given up."""
        self.rebuilder.close()
        self._narrowed.forget()
        self.layers.forget()
        self.kept_documents.forget()
        self._documents.close()
        closed = None if self.store.closed else self._state.close()
        self._feedback.close()
        writable = not self.store.readonly
        self.store.close()
        if writable and closed is not None:
            leave_clean_close(self.store.path, closed)

    def _consider_rebuild(self) -> None:
        self.rebuilder.consider(partial(tuning_queries, self))
