"""Exact search by comparing every key, and the order of what is found: by score, ties by position."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float32, Int64


def best_of_blocks(
    queries: Float32[np.ndarray, "batch key_dim"],
    blocks: Iterable[tuple[Int64[np.ndarray, " block"], Float32[np.ndarray, "block key_dim"]]],
    k: int,
) -> tuple[Float32[np.ndarray, "batch found"], Int64[np.ndarray, "batch found"]]:
    """Exact search over keys that come in blocks of (positions, keys): (scores, positions), best first."""
    scores = np.empty((len(queries), 0), np.float32)
    positions = np.empty((len(queries), 0), np.int64)
    for here, keys in blocks:
        found = queries @ keys.T
        if (
            len(here) > 4 * k
        ):  # a tie at the cut goes to the lower position: sort all that reach the k-th score
            least = np.partition(found, len(here) - k, axis=1)[:, len(here) - k]
            kept = np.flatnonzero((found >= least[:, None]).any(axis=0))
            here, found = here[kept], found[:, kept]
        scores = np.concatenate([scores, found], axis=1)
        positions = np.concatenate([positions, np.broadcast_to(here, (len(queries), len(here)))], axis=1)
        scores, positions = by_score_then_position(scores, positions)
        scores, positions = scores[:, :k], positions[:, :k]
    return scores, positions


def by_score_then_position(
    scores: Float32[np.ndarray, "batch k"], positions: Int64[np.ndarray, "batch k"]
) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
    """Each row sorted by descending score, equal scores by ascending position."""
    order = np.lexsort((positions, -scores), axis=-1)
    return np.take_along_axis(scores, order, -1), np.take_along_axis(positions, order, -1)
