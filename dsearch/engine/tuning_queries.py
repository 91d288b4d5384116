"""What an approximate index is tuned by: queries like those that will be asked, against its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float32

from dsearch.corpus import sentences
from dsearch.engine.given import is_given
from dsearch.engine.keys import KeyOptions
from dsearch.engine.retuning import Tuned, key_queries, retune, retune_in_child
from dsearch.index.dense_kinds import AUTO, EXHAUSTIVE_BELOW
from dsearch.processes import run_spawned

if TYPE_CHECKING:
    from dsearch.engine.collection import Collection

QUERIES = 400
_WORDS = 40  # of a sentence: questions are no longer


def tuning_queries(
    collection: Collection,
    keys: KeyOptions,
    projection: Float32[np.ndarray, "key_dim encoder_dim"] | None,
    texts: Sequence[str] | None = None,
) -> Float32[np.ndarray, "queries key_dim"] | None:
    """Queries against the keys of a generation with W_g = `projection`; None where nothing is tuned by them.

    They are `texts`, or sentences of the documents where none are given.
    """
    count = collection.store.count().documents
    exhaustive = keys.kind == AUTO and count < EXHAUSTIVE_BELOW
    if not keys.approximate or exhaustive or count == 0:
        return None
    folded = folded_queries(collection, texts)
    return None if folded is None else key_queries(folded, projection)


def folded_queries(
    collection: Collection, texts: Sequence[str] | None = None
) -> Float32[np.ndarray, "queries encoder_dim"] | None:
    """Folded queries of the live head; None for a collection whose embeddings were given, without texts."""
    if is_given(collection.store):
        return None
    texts = list(texts)[:QUERIES] if texts else _sentences(collection)
    if not texts:
        return None
    head = collection.head(collection.live_model)
    with torch.inference_mode():
        folded = head.fold(head.queries(collection.query_states(texts, "dense"))).flatten(0, 1)
    # Heads ask the same index: as many queries of each, and no more than QUERIES of all.
    step = max(1, len(folded) // QUERIES)
    return np.ascontiguousarray(folded[::step][:QUERIES].numpy(), np.float32)


def measured_live(collection: Collection) -> Tuned | None:
    """What the live index finds of the live head's queries; None for a kind that compares every key.

    In a process of its own where builds are.
    """
    if not collection.snapshot.generation.dense.parameters:
        return None
    folded = folded_queries(collection)
    if folded is None:
        return None
    store = collection.store
    asked = (collection.live_model, folded, KeyOptions.of(store).recall_target)
    if collection.rebuilder.by_itself:
        return run_spawned(retune_in_child, store.path, *asked)
    return retune(store, *asked)


def _sentences(collection: Collection) -> list[str]:
    """A sentence of each of up to `QUERIES` documents, spread over the collection; always the same."""
    rows = collection.store.rows()
    spread = rows[np.linspace(0, len(rows) - 1, min(QUERIES, len(rows))).astype(np.int64)]
    chance = np.random.default_rng(0)
    found: list[str] = []
    for document in collection.store.documents(spread):
        parts = sentences(document.text) or [document.content]
        words = parts[int(chance.integers(len(parts)))].split()[:_WORDS]
        if words:
            found.append(" ".join(words))
    return found
