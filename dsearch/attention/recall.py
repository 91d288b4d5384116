"""Recall of past queries without gradients, in NumPy: the formulas of `QueryMemory` for served searches.

A search recalls for one query at a time; in torch the dozens of small operations take longer than what they
compute. Results agree with those of `QueryMemory` but for rounding.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float32, Int8, Int64

from dsearch.attention.retrieval.contributors import KEY_SHARE, TRUSTED


@runtime_checkable
class NearestKeys(Protocol):
    """An index of the first keys of a memory."""

    def __len__(self) -> int:
        """Number of its keys."""
        ...

    def nearest(
        self, queries: Float32[np.ndarray, "batch encoder_dim"], count: int
    ) -> Int64[np.ndarray, "batch near"]:
        """Numbers of at least `count` keys, those with the largest products among them; −1 behind."""
        ...


class RowArrays(NamedTuple):
    """Past queries and their grades, as `QueryMemory` holds them.

    Attributes:
        keys, key_scales: embeddings of unit length, in 8 bits.
        starts: where the grades of each query begin, and the end.
        of_document, grades: judged document and grade, by query.
        contributors: of each query; None where all are trusted.
        documents: number of judged documents.
    """

    keys: Int8[np.ndarray, "queries encoder_dim"]
    key_scales: Float32[np.ndarray, " queries"]
    starts: Int64[np.ndarray, " ends"]
    of_document: Int64[np.ndarray, " grades"]
    grades: Float32[np.ndarray, " grades"]
    contributors: Int64[np.ndarray, " queries"] | None
    documents: int

    def attention(
        self,
        states: Float32[np.ndarray, "batch encoder_dim"],
        index: NearestKeys,
        most: int,
        temperature: float,
        null_level: float,
    ) -> tuple[Int64[np.ndarray, "batch near"], Float32[np.ndarray, "batch near"]]:
        """The `most` nearest rows, nearest first, and the attention of each; see `QueryMemory.attention`."""
        norms = np.sqrt(np.einsum("bd,bd->b", states, states))[:, None]
        states = states / np.where(norms > 0, norms, 1)
        rows, cosines = self._nearest(states, index, most)
        null = np.float32(null_level / temperature)
        logits = cosines * np.float32(1 / temperature)
        highest = np.maximum(logits.max(1, keepdims=True, initial=-np.inf), null)
        powers = np.exp(logits - highest)
        weights = powers / (powers.sum(1, keepdims=True) + np.exp(null - highest))
        if self.contributors is not None:
            of = self.contributors[rows]
            same = (of[:, :, None] == of[:, None]) & (of != TRUSTED)[:, None]
            total = (same * weights[:, None]).sum(-1, dtype=np.float32)
            weights = weights * (KEY_SHARE / np.maximum(total, np.float32(KEY_SHARE)))
        return rows, weights

    def relevance(
        self, rows: Int64[np.ndarray, "batch near"], weights: Float32[np.ndarray, "batch near"]
    ) -> Float32[np.ndarray, "batch documents"]:
        """Σ_i weight_i R_ij of each judged document j."""
        batch, near = rows.shape
        past = rows.ravel()
        first = self.starts[past]
        counts = self.starts[past + 1] - first
        ends = counts.cumsum()
        pairs = np.arange(ends[-1] if len(ends) else 0) + (first - (ends - counts)).repeat(counts)
        parts = weights.ravel().repeat(counts) * self.grades[pairs]
        places = self.of_document[pairs]
        if batch > 1:
            row = np.arange(batch, dtype=np.int64).repeat(near).repeat(counts)
            places = places + np.multiply(row, self.documents)
        total = np.bincount(places, parts, batch * self.documents)
        return total.astype(np.float32).reshape(batch, self.documents)

    def _nearest(
        self, states: Float32[np.ndarray, "batch encoder_dim"], index: NearestKeys, most: int
    ) -> tuple[Int64[np.ndarray, "batch near"], Float32[np.ndarray, "batch near"]]:
        rows = index.nearest(states, most)
        if len(index) < len(self.keys):  # rows since it was built are compared beside it
            later = np.arange(len(index), len(self.keys))
            rows = np.concatenate([rows, np.broadcast_to(later, (len(rows), len(later)))], axis=1)
        at = rows.ravel()
        missing = at.min(initial=0) < 0
        if missing:
            at = np.maximum(at, 0)
        keys = self.keys.take(at, axis=0).astype(np.float32)
        if len(rows) == 1:
            cosines = (keys @ states[0])[None]
        else:
            cosines = (keys.reshape(*rows.shape, -1) @ states[..., None])[..., 0]
        cosines = cosines * self.key_scales[at].reshape(rows.shape)
        if missing:
            cosines = np.where(rows < 0, np.float32(-np.inf), cosines)
        best = np.argsort(-cosines, axis=1, kind="stable")[:, :most]
        if len(rows) == 1:
            rows, cosines = rows[:, best[0]], cosines[:, best[0]]
        else:
            rows, cosines = np.take_along_axis(rows, best, 1), np.take_along_axis(cosines, best, 1)
        return np.maximum(rows, 0) if missing else rows, cosines


def in_eight_bits(
    numbers: Float[np.ndarray, "count dim"],
) -> tuple[Int8[np.ndarray, "count dim"], Float32[np.ndarray, " count"]]:
    """Round rows to 8 bits: whole numbers, and the size of a unit for each row.

    The product of two unit vectors of 384 numbers is off by .0005.
    """
    largest = np.abs(numbers).max(axis=1, initial=0.0)
    scales = (largest / 127).astype(np.float32)
    steps = np.divide(numbers, scales[:, None], out=np.zeros(numbers.shape), where=scales[:, None] > 0)
    return np.rint(steps).astype(np.int8), scales


def by_query(
    of_query: Int64[np.ndarray, " grades"],
    of_document: Int64[np.ndarray, " grades"],
    grades: Float[np.ndarray, " grades"],
    inserted: Bool[np.ndarray, " grades"],
    queries: int,
) -> dict[str, np.ndarray]:
    """Grades in the order of their queries, the best of each 1, and where those of each query begin."""
    if len(of_query) and (of_query[1:] < of_query[:-1]).any():
        order = np.argsort(of_query, kind="stable")
        of_query, of_document = of_query[order], of_document[order]
        grades, inserted = grades[order], inserted[order]
    best = np.zeros(queries, np.float32)
    np.maximum.at(best, of_query, grades)
    return {
        "of_query": of_query.astype(np.int64),
        "of_document": of_document.astype(np.int64),
        "grades": (grades / best[of_query]).astype(np.float32),
        "inserted": inserted,
        "starts": np.searchsorted(of_query, np.arange(queries + 1)).astype(np.int64),
    }
