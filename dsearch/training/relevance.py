"""Relevant positions of many queries as matrices, and nDCG@10 of rankings of positions.

`dsearch.evaluation` measures runs of ids; here nothing has an id, and a ranking is one row of positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.evaluation.metrics import Judged, ndcg

DEPTH = 10


class Relevant:
    """The documents that answer some queries, by which rankings are scored again and again.

    Args:
        relevant: for each query, positions and grades; a query may have none.
    """

    def __init__(self, relevant: Sequence[tuple[np.ndarray, np.ndarray]]):
        self._positions, self._grades = padded(relevant)
        self._ideal = -np.sort(-self._grades, axis=1).astype(np.float64)

    def ndcg_at_10(self, top: Int64[np.ndarray, "queries depth"]) -> Float[np.ndarray, " queries"]:
        """nDCG@10 of each ranking; NaN where nothing is relevant."""
        gains = gains_of(top[:, :DEPTH], self._positions, self._grades)
        with np.errstate(invalid="ignore"):
            return ndcg(Judged(gains, self._ideal), DEPTH)


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


def gains_of(
    top: Int64[np.ndarray, "queries depth"],
    positions: Int64[np.ndarray, "queries positives"],
    grades: Float32[np.ndarray, "queries positives"],
) -> Float[np.ndarray, "queries depth"]:
    """The grade at each rank, 0 where the document is not relevant."""
    return np.einsum("qdp,qp->qd", top[:, :, None] == positions[:, None, :], grades.astype(np.float64))


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
