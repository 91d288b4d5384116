"""The index path: documents into the store, embeddings batch by batch, a generation built and published.

Each step is durable when it returns, so an interrupted run goes on where it stopped: documents that are
stored are not stored again, embeddings that are there are not computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from dsearch.encoder import TextEncoder
from dsearch.encoder.batching import length_sorted_batches
from dsearch.index import Generation
from dsearch.store import Store
from dsearch.types import Document, Progress

OnProgress = Callable[[Progress], None]

_STORED_AT_A_TIME = 1024  # documents a transaction
_ENCODED_AT_A_TIME = 256  # documents between two commits of embeddings
_READ_AT_A_TIME = 8192  # rows a block, when a generation is built


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
    """Compute and store the embeddings that are missing; their number."""
    pending = store.pending()
    started, done = time.monotonic(), 0
    for batch in length_sorted_batches(pending.lengths, _ENCODED_AT_A_TIME):
        rows = pending.rows[batch]
        store.set_embeddings(rows, encoder.encode_documents(store.contents(rows)))
        done += len(rows)
        if on_progress is not None:
            on_progress(Progress("encode", done, len(pending.rows), time.monotonic() - started))
    return done


def build_generation(
    store: Store,
    *,
    key_projection: Float32[np.ndarray, "key_dim encoder_dim"] | None = None,
    dense_kind: str = "Flat",
    on_progress: OnProgress | None = None,
) -> int:
    """Build a generation of everything searchable, register it and make it live; its number."""
    state = store.snapshot()
    number = store.next_generation_number()
    folder = generation_folder(store, number)
    manifest = Generation.build(
        folder,
        number=number,
        sequence=state.sequence,
        rows=state.rows,
        embeddings=_embedding_blocks(store, state.rows),
        texts=_contents(store, state.rows),
        encoder=store.encoder,
        key_projection=key_projection,
        dense_kind=dense_kind,
        on_progress=on_progress,
    )
    store.add_generation(
        number, manifest_digest=manifest.digest, rows=len(state.rows), snapshot=state.sequence
    )
    store.publish_generation(number)
    return number


def generation_folder(store: Store, number: int) -> Path:
    """Where generation `number` of a store lies."""
    return store.path / "generations" / f"{number:06d}"


def _embedding_blocks(store: Store, rows: np.ndarray) -> Iterator[np.ndarray]:
    if len(rows) == 0:
        yield np.zeros((0, store.dimension), np.float32)
    for start in range(0, len(rows), _READ_AT_A_TIME):
        yield store.embeddings(rows[start : start + _READ_AT_A_TIME])


def _contents(store: Store, rows: np.ndarray) -> Iterator[str]:
    for start in range(0, len(rows), _READ_AT_A_TIME):
        yield from store.contents(rows[start : start + _READ_AT_A_TIME])
