"""The index path: documents into the store, embeddings batch by batch, a generation built and published.

Each step is durable when it returns, so an interrupted run goes on where it stopped: documents that are
stored are not stored again, embeddings that are there are not computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.encoder import TextEncoder
from dsearch.encoder.batching import length_sorted_batches
from dsearch.engine.cutting import Cutting, encode, passage_table
from dsearch.engine.keys import KeyOptions
from dsearch.engine.language import language_of, tokenizer_for
from dsearch.index import Generation, PassageTable
from dsearch.index.fields import FieldsBuilder
from dsearch.store import Store
from dsearch.types import Document, Progress

OnProgress = Callable[[Progress], None]

_STORED_AT_A_TIME = 1024  # documents a transaction
_ENCODED_AT_A_TIME = 256  # documents between two commits of embeddings
_LONG_ENCODED_AT_A_TIME = 1_000_000  # characters, where there are long documents: some 1,000 passages
_READ_AT_A_TIME = 8192  # rows a block, when a generation is built
_CUT_AT_A_TIME = 1024  # rows a block of passages, of which a document may have a thousand


@dataclass(frozen=True, slots=True)
class Ingested:
    """What a run of indexing did."""

    inserted: int
    updated: int
    unchanged: int
    encoded: int
    elapsed_s: float


def store_documents(
    store: Store, documents: Iterable[Document], on_progress: OnProgress | None = None
) -> tuple[int, int, int]:
    """Store documents without embeddings; (inserted, updated, unchanged)."""
    counts = np.zeros(3, np.int64)
    started = time.monotonic()
    remaining = iter(documents)
    while batch := list(islice(remaining, _STORED_AT_A_TIME)):
        receipt = store.upsert(batch)
        counts += (receipt.inserted, receipt.updated, receipt.unchanged)
        if on_progress is not None:
            on_progress(Progress("read", int(counts.sum()), 0, time.monotonic() - started))
    inserted, updated, unchanged = counts.tolist()
    return inserted, updated, unchanged


def encode_pending(store: Store, encoder: TextEncoder, on_progress: OnProgress | None = None) -> int:
    """Compute and store the embeddings that are missing; the number of documents that they are of."""
    pending, cutting = store.pending(), Cutting.of(store)
    started, done = time.monotonic(), 0
    for batch in length_sorted_batches(pending.lengths, _ENCODED_AT_A_TIME):
        for part in [batch] if cutting is None else _of_bounded_length(batch, pending.lengths):
            rows = pending.rows[part]
            embeddings, further = encode(encoder, store.documents(rows), cutting)
            store.set_embeddings(rows, embeddings, {int(rows[at]): cut for at, cut in further.items()})
            done += len(rows)
            if on_progress is not None:
                on_progress(Progress("encode", done, len(pending.rows), time.monotonic() - started))
    return done


def _of_bounded_length(
    batch: Int64[np.ndarray, " batch"], lengths: Int64[np.ndarray, " pending"]
) -> list[Int64[np.ndarray, " part"]]:
    """A batch in parts, so that long documents bound neither memory nor what an interruption loses."""
    before = np.cumsum(lengths[batch]) - lengths[batch]
    cuts = np.flatnonzero(np.diff(before // _LONG_ENCODED_AT_A_TIME)) + 1
    return np.split(batch, cuts)


@dataclass(frozen=True, slots=True)
class Built:
    """A generation whose files stand, before the store knows of it."""

    number: int
    manifest_digest: str
    rows: int
    sequence: int
    record: dict[str, Any]


def build_generation(
    store: Store,
    *,
    key_projection: Float32[np.ndarray, "key_dim encoder_dim"] | None = None,
    keys: KeyOptions | None = None,
    language: str | None = None,
    queries: Float32[np.ndarray, "queries key_dim"] | None = None,
    on_progress: OnProgress | None = None,
) -> int:
    """Build a generation of everything searchable, register it and make it live; its number."""
    built = build_files(
        store,
        key_projection=key_projection,
        keys=keys,
        language=language,
        queries=queries,
        on_progress=on_progress,
    )
    publish(store, built)
    return built.number


def build_files(
    store: Store,
    *,
    key_projection: Float32[np.ndarray, "key_dim encoder_dim"] | None = None,
    keys: KeyOptions | None = None,
    language: str | None = None,
    queries: Float32[np.ndarray, "queries key_dim"] | None = None,
    on_progress: OnProgress | None = None,
) -> Built:
    """Build the files of the next generation; `store` is only read, so another process can do it.

    Args:
        store: of which everything searchable goes in.
        key_projection: W_g; None for the identity.
        keys: how its keys are kept; as those of the live generation when None.
        language: of its texts; that of the live generation when None.
        queries: what the keys will be asked, to tune an approximate kind by; made of the keys when None.
        on_progress: told of each stage.
    """
    keys, language = keys or KeyOptions.of(store), language or language_of(store)
    state = store.snapshot()
    number = store.next_generation_number()
    fields = FieldsBuilder()
    manifest = Generation.build(
        generation_folder(store, number),
        number=number,
        sequence=state.sequence,
        rows=state.rows,
        embeddings=_embedding_blocks(store, state.rows),
        passages=_passage_blocks(store, state.rows),
        texts=_contents(store, state.rows, fields),
        fields=fields,
        encoder=store.encoder,
        key_projection=key_projection,
        dense_kind=keys.kind,
        recall_target=keys.recall_target,
        memory_bytes=keys.memory_bytes,
        queries=queries,
        tokenizer=tokenizer_for(language),
        on_progress=on_progress,
    )
    record = {"keys": keys.to_dict(), "dense": manifest.dense, "language": language}
    return Built(number, manifest.digest, len(state.rows), state.sequence, record)


def publish(store: Store, built: Built) -> None:
    """Register a generation and make it live.

    Raises:
        Conflict: deletions that it does not know of were purged while it was built.
    """
    store.add_generation(
        built.number,
        manifest_digest=built.manifest_digest,
        rows=built.rows,
        snapshot=built.sequence,
        record=built.record,
    )
    store.publish_generation(built.number)


def generation_folder(store: Store, number: int) -> Path:
    """Where generation `number` of a store lies."""
    return store.path / "generations" / f"{number:06d}"


def _embedding_blocks(store: Store, rows: np.ndarray) -> Iterator[np.ndarray]:
    if len(rows) == 0:
        yield np.zeros((0, store.dimension), np.float32)
    for start in range(0, len(rows), _READ_AT_A_TIME):
        yield store.embeddings(rows[start : start + _READ_AT_A_TIME])


def _passage_blocks(store: Store, rows: np.ndarray) -> Iterator[PassageTable]:
    for start in range(0, len(rows), _CUT_AT_A_TIME):
        block = rows[start : start + _CUT_AT_A_TIME]
        table = passage_table(store.passages(block), block, store.dimension)
        yield replace(table, owners=table.owners + start)


def _contents(store: Store, rows: np.ndarray, fields: FieldsBuilder) -> Iterator[str]:
    """What is indexed of each row; its metadata go into `fields` on the way, so that it is read once."""
    for start in range(0, len(rows), _READ_AT_A_TIME):
        for document in store.documents(rows[start : start + _READ_AT_A_TIME]):
            fields.add(document.metadata)
            yield document.content
