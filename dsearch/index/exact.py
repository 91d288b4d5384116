"""Exact search by comparing every key; results are ordered by score, ties by position.

A matrix product scores a block of keys for all queries at once, but the last bits of a score then depend on
the key's place in the block, so that equal keys need not tie. The product therefore only selects: keys within
its rounding error of the k best are scored again, each pair by itself.

    |fl(q·k) − q·k| ≤ γ |q| |k|        γ = d u / (1 − d u),  u = 2⁻²⁴

for a sum of d products in any order (Higham 2002, "Accuracy and Stability of Numerical Algorithms", §3.1).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float, Float32, Int64

_MORE_ROUNDING = 8  # of the result, of the bound itself, and of its difference to a score
_BLOCKS_FOR_ONE = 4  # blocks for each of the k results
_SORTED_FOR_ONE = 4  # scores for each of them that are sorted sooner than parted
_LONGEST_BLOCK = 1024  # scores
_SHORTEST_BLOCK = {True: 2, False: 16}  # by whether every score counts: few equal ones are parted soon
_PAIRS = 4096  # scored at a time: some tens of megabytes in float64


def best_of_blocks(
    queries: Float32[np.ndarray, "batch key_dim"],
    blocks: Iterable[tuple[Int64[np.ndarray, " block"], Float32[np.ndarray, "block key_dim"]]],
    k: int,
    longest: float | None = None,
) -> tuple[Float32[np.ndarray, "batch found"], Int64[np.ndarray, "batch found"]]:
    """Search blocks of (positions, keys) exactly; return (scores, positions), best first.

    Scores are sums in float64, rounded once: equal keys tie, whatever the batch and the block.

    Args:
        queries: all are compared with every key.
        blocks: positions, each once, ascending within a block; and their keys.
        k: number of results; fewer if there are fewer keys.
        longest: upper bound on the length of the keys; computed for each block when None.
    """
    terms = queries.shape[1] + _MORE_ROUNDING
    lengths = np.linalg.norm(queries, axis=1, keepdims=True) * (terms * 2.0**-24 / (1 - terms * 2.0**-24))
    best = _Best(len(queries), k)
    for positions, keys in blocks:
        if len(positions) == 0:
            continue
        products = queries @ keys.T
        error = (lengths * (longest_of(keys) if longest is None else longest)).astype(np.float32)
        least = best.least - error
        if len(positions) > k and np.isneginf(least).any():
            # k keys of this block score at least its k-th product minus the error.
            least = np.maximum(least, _kth(products, k) - 2 * error)
        rows, columns = np.nonzero(products >= least)
        for some in range(0, len(rows), _PAIRS):
            row, column = rows[some : some + _PAIRS], columns[some : some + _PAIRS]
            best.add(row, _scores(queries[row], keys[column]), positions[column])
    return best.result()


def best_above(
    scores: Float[np.ndarray, " documents"], k: int, least: float = 0.0
) -> Int64[np.ndarray, " found"]:
    """Return positions of the k highest scores above `least`, best first, ties by ascending position.

    k blocks of scores whose maxima are at least x hold k scores of at least x. So the k-th highest block
    maximum is a lower bound of the scores to compare. A partition of all scores takes ten times as long, and
    more if many are equal, as keyword scores are.
    """
    positions = values = None
    width = min(len(scores) // (_BLOCKS_FOR_ONE * k), _LONGEST_BLOCK)
    if width >= _SHORTEST_BLOCK[least == -np.inf]:
        blocks = len(scores) // width
        highest = scores[: blocks * width].reshape(width, blocks).max(axis=0)  # side by side: by whole rows
        highest.partition(blocks - k)
        bound = highest[blocks - k]
        if bound > least:
            positions = (scores >= bound).nonzero()[0]
            values = scores[positions]
            above = values > bound
            higher = np.count_nonzero(above)
            if higher < k:  # add the first of those equal to the bound
                keep = np.concatenate([np.flatnonzero(above), np.flatnonzero(~above)[: k - higher]])
                positions, values = positions[keep], values[keep]
            else:
                positions, values = positions[above], values[above]
    if positions is None or values is None:
        positions = (scores > least).nonzero()[0]
        values = scores[positions]
    if len(positions) > _SORTED_FOR_ONE * k:
        keep = values >= np.partition(values, len(values) - k)[len(values) - k]
        positions, values = positions[keep], values[keep]
    return positions[(-values).argsort(kind="stable")[:k]]  # of those equal to the last the first


def longest_of(keys: Float32[np.ndarray, "documents key_dim"]) -> float:
    """The length of the longest key."""
    return float(np.sqrt(np.einsum("nd,nd->n", keys, keys).max(initial=0.0)))


def by_score_then_position(
    scores: Float32[np.ndarray, "batch k"], positions: Int64[np.ndarray, "batch k"]
) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
    """Each row sorted by descending score, equal scores by ascending position."""
    order = np.lexsort((positions, -scores), axis=-1)
    return np.take_along_axis(scores, order, -1), np.take_along_axis(positions, order, -1)


class _Best:
    """Best k of each row so far; an empty place has score −inf and the maximum position."""

    def __init__(self, batch: int, k: int):
        self._scores = np.full((batch, k), -np.inf, np.float32)
        self._positions = np.full((batch, k), np.iinfo(np.int64).max, np.int64)

    @property
    def least(self) -> np.ndarray:
        """The k-th best score of each row, [batch, 1]; −inf with fewer than k."""
        return self._scores[:, -1:]

    def add(self, rows: np.ndarray, scores: np.ndarray, positions: np.ndarray) -> None:
        """Add candidates, given as (row, score, position)."""
        batch, k = self._scores.shape
        all_rows = np.concatenate([np.repeat(np.arange(batch), k), rows])
        all_scores = np.concatenate([self._scores.ravel(), scores])
        all_positions = np.concatenate([self._positions.ravel(), positions])
        order = np.lexsort((all_positions, -all_scores, all_rows))
        starts = np.searchsorted(all_rows[order], np.arange(batch))
        best = order[starts[:, None] + np.arange(k)]
        self._scores, self._positions = all_scores[best], all_positions[best]

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and positions; every row has the same number."""
        filled = int(
            (self._positions != np.iinfo(np.int64).max).sum(axis=1).min(initial=self._scores.shape[1])
        )
        return self._scores[:, :filled], self._positions[:, :filled]


def _kth(products: np.ndarray, k: int) -> np.ndarray:
    """The k-th largest of each row, [batch, 1]."""
    cut = products.shape[1] - k
    return np.partition(products, cut, axis=1)[:, cut : cut + 1]


def _scores(queries: np.ndarray, keys: np.ndarray) -> Float32[np.ndarray, " pairs"]:
    """q·k of each pair, in float64 and then rounded."""
    return np.einsum("pd,pd->p", queries.astype(np.float64), keys.astype(np.float64)).astype(np.float32)
