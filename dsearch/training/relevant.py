"""Relevant positions of many queries as matrices, and nDCG@10 and average precision of rankings of positions.

`dsearch.evaluation` measures runs of ids; here a ranking is one row of positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.evaluation.metrics import JudgedQuery, average_precision, ndcg

DEPTH = 10
EVIDENCE_DEPTH = 100  # of average precision: deeper ranks add less than .001 to it


class Relevant:
    """Relevant documents of some queries, prepared for scoring many rankings.

    Args:
        relevant: for each query, positions and grades; a query may have none.
    """

    def __init__(self, relevant: Sequence[tuple[np.ndarray, np.ndarray]]):
        self._pairs = Pairs([positions for positions, _ in relevant])
        grades = [of for _, of in relevant]
        self._grades = np.concatenate([*grades, [0.0]]).astype(np.float64)[self._pairs.first]
        self._ideal = -np.sort(-padded(relevant)[1], axis=1).astype(np.float64)

    def gains(self, top: Int64[np.ndarray, "queries depth"]) -> Float[np.ndarray, "queries depth"]:
        """The grade at each rank, 0 where the document is not relevant."""
        inside, at = self._pairs.places(top)
        return np.where(inside, self._grades[at], 0.0) if len(self._grades) else np.zeros(top.shape)

    def ndcg_at_10(self, top: Int64[np.ndarray, "queries depth"]) -> Float[np.ndarray, " queries"]:
        """nDCG@10 of each ranking; NaN where nothing is relevant."""
        with np.errstate(invalid="ignore"):
            return ndcg(JudgedQuery(self.gains(top[:, :DEPTH]), self._ideal), DEPTH)

    def average_precision(self, top: Int64[np.ndarray, "queries depth"]) -> Float[np.ndarray, " queries"]:
        """Average precision of each ranking down to `EVIDENCE_DEPTH`; NaN where nothing is relevant."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return average_precision(JudgedQuery(self.gains(top), self._ideal), EVIDENCE_DEPTH)


def ndcg_at_10(
    top: Int64[np.ndarray, "queries depth"], relevant: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Float[np.ndarray, " queries"]:
    """`Relevant.ndcg_at_10`, for rankings that are scored once."""
    return Relevant(relevant).ndcg_at_10(top)


def without(
    top: Int64[np.ndarray, "queries depth"], taken_out: Bool[np.ndarray, "queries depth"]
) -> Int64[np.ndarray, "queries depth"]:
    """Rankings without some of their documents: what stood below moves up, −1 at the end."""
    order = np.argsort(taken_out, axis=1, kind="stable")
    return np.take_along_axis(np.where(taken_out, -1, top), order, axis=1)


class Pairs:
    """Some positions of each query, to be looked up in rankings.

    Comparing every rank with every position takes memory and time of queries × depth × positions: with
    hundreds of judgements a query it was more than half of a training.

    Args:
        positions: of each query, its own.
    """

    def __init__(self, positions: Sequence[Int64[np.ndarray, " _"]]):
        rows = np.repeat(np.arange(len(positions)), [len(of) for of in positions])
        flat = np.concatenate([*positions, np.empty(0, np.int64)]).astype(np.int64)
        self._stride = int(flat.max(initial=0)) + 2  # a position of −1, or one beyond, is no query's
        self._codes, self.first = np.unique(rows * self._stride + flat, return_index=True)

    def among(self, top: Int64[np.ndarray, "queries depth"]) -> Bool[np.ndarray, "queries depth"]:
        """True where a query's ranking has one of its positions."""
        return self.places(top)[0]

    def places(
        self, top: Int64[np.ndarray, "queries depth"]
    ) -> tuple[Bool[np.ndarray, "queries depth"], Int64[np.ndarray, "queries depth"]]:
        """True where a ranking has one of its query's positions, and the place of that one in `first`.

        `first` is the place of each pair among all positions as they were given.
        """
        if not len(self._codes):
            return np.zeros(top.shape, bool), np.zeros(top.shape, np.int64)
        inside = (top >= 0) & (top < self._stride)
        codes = np.arange(len(top))[:, None] * self._stride + np.where(inside, top, 0)
        at = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return inside & (self._codes[at] == codes), at


def padded(
    relevant: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[Int64[np.ndarray, "queries longest"], Float32[np.ndarray, "queries longest"]]:
    """Positions and grades of every query as matrices; −2 and 0 where a query has fewer."""
    longest = max([1, *(len(positions) for positions, _ in relevant)])
    at = np.full((len(relevant), longest), -2, np.int64)
    grades = np.zeros((len(relevant), longest), np.float32)
    for row, (positions, graded) in enumerate(relevant):
        at[row, : len(positions)] = positions
        grades[row, : len(positions)] = graded
    return at, grades
