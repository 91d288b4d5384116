"""Candidates: what the legs of a search propose, without gradients and without duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.engine.overlaid import Overlaid
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.types import Mode


def propose(
    snapshot: Snapshot,
    folded: Float[Tensor, "batch heads encoder_dim"],
    texts: Sequence[str] | None,
    *,
    mode: Mode,
    candidates: int,
    overlaid: Overlaid | None = None,
) -> Int64[np.ndarray, "batch found"]:
    """The union of what the legs find for the heads; everything in a collection no larger than that.

    Args:
        snapshot: the documents.
        folded: the queries of all heads, against stored embeddings.
        texts: the words of each query; None leaves the keyword leg out.
        mode: the legs.
        candidates: how many each leg proposes for each head.
        overlaid: documents whose keys the index does not know.

    Returns:
        Positions, ascending in each row, −1 behind them.
    """
    batch, heads, _ = folded.shape
    found: list[Int64[np.ndarray, "batch found"]] = []
    if mode != "keyword":
        if snapshot.documents <= candidates:
            return np.broadcast_to(snapshot.visible(), (batch, snapshot.documents))
        flat = folded.detach().flatten(0, 1).float().cpu().numpy()
        by_head = _by_inner_product(snapshot if overlaid is None else overlaid.others, flat, candidates)
        if overlaid is not None:
            by_head = np.concatenate([by_head, overlaid.nearest(flat, candidates)], axis=1)
        found.append(by_head.reshape(batch, heads * by_head.shape[1]))
    if texts is not None and mode != "dense":
        found.append(snapshot.keyword_candidates(texts, candidates))
    return _distinct(found[0]) if len(found) == 1 and heads == 1 else _distinct(np.concatenate(found, axis=1))


def _by_inner_product(
    snapshot: Snapshot, folded: Float32[np.ndarray, "batch encoder_dim"], k: int
) -> Int64[np.ndarray, "batch found"]:
    """The dense leg. A query of zeros ties with every document: the first come, and no index is asked."""
    asking = folded.any(axis=1)
    if asking.all():
        return snapshot.dense_candidates(folded, k)
    first = snapshot.visible()[:k]
    found = snapshot.dense_candidates(folded[asking], k) if asking.any() else np.empty((0, 0), np.int64)
    candidates = np.full((len(folded), max(found.shape[1], len(first))), NONE, np.int64)
    candidates[asking, : found.shape[1]] = found
    candidates[~asking, : len(first)] = first
    return candidates


def _distinct(positions: Int64[np.ndarray, "batch found"]) -> Int64[np.ndarray, "batch candidates"]:
    """Each position once in its row, ascending, padded with −1 behind; no column that is all padding."""
    ordered = np.sort(positions, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = NONE
    last = np.iinfo(np.int64).max
    ordered = np.sort(np.where(ordered == NONE, last, ordered), axis=1)
    ordered[ordered == last] = NONE
    return ordered[:, : int((ordered != NONE).sum(axis=1).max(initial=0))]
