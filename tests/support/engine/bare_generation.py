"""A generation of a store's rows as an older release built it: with neither passages nor fields."""

from __future__ import annotations

import numpy as np

from dsearch.engine.indexing.ingest import generation_folder
from dsearch.index import Generation
from dsearch.store import Store


def add_bare_generation(
    store: Store, rows: np.ndarray | None = None, embeddings: np.ndarray | None = None
) -> int:
    """Build and register it, of the store's rows or of those given, and return its number; it is not live."""
    state = store.snapshot()
    rows = state.rows if rows is None else rows
    number = store.next_generation_number()
    manifest = Generation.build(
        generation_folder(store, number),
        number=number,
        sequence=state.sequence,
        rows=rows,
        embeddings=store.embeddings(rows) if embeddings is None else embeddings,
        texts=["x"] * len(rows),
        encoder=store.encoder,
    )
    store.add_generation(number, manifest_digest=manifest.digest, rows=len(rows), snapshot=state.sequence)
    return number
