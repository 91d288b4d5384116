"""Candidate generation: the legs of a search propose documents, without gradients and without duplicates.

In a small collection, candidate generation scores every document. Those scores are reused for the rest of the
search, which would compute them again: keyword scores of the candidates, a second round, covered mass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.attention.arrays import Array, is_array, numbers_of, on_device_of
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.search_options import COVERAGE_DOCUMENTS
from dsearch.types import Mode

if TYPE_CHECKING:
    from dsearch.engine.ranking.resident import ResidentEmbeddings

SCORES_AT_ONCE = 1 << 21  # 8 MB


class SearchLegs:
    """The legs of one search for some queries, in one round or several.

    Args:
        snapshot: the documents.
        texts: the words of each query; None leaves the keyword leg out.
        mode: the legs.
        candidates: how many each leg proposes for each head.
        further: positions proposed by the query memory, −1 = none.
        matches: scores of a field at every position, which then alone propose; −∞ where it does not match.
        resident: embeddings on the layer's device, where dense candidates are found then, exactly.

    Attributes:
        dense_of_all: the inner product of each query with the stored embedding at every position, of a long
            document with its best passage, those that cannot be found too; None: the last round did without.
        keyword_of_all: b(q, d) of every position, likewise.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        texts: Sequence[str] | None,
        *,
        mode: Mode,
        candidates: int,
        further: Int64[np.ndarray, "batch further"] | None = None,
        matches: Float32[np.ndarray, "batch positions"] | None = None,
        resident: ResidentEmbeddings | None = None,
    ):
        self._snapshot = snapshot
        self._texts = None if mode == "dense" or matches is not None else texts
        self._matches = matches
        self._mode, self._candidates, self._further = mode, candidates, further
        self._resident = resident
        if resident is not None:
            resident.require(snapshot)
        self._by_keywords: Int64[np.ndarray, "batch found"] | None = None
        self._same_scores: Float32[np.ndarray, "batch heads positions"] | None = None  # of the same queries
        self.dense_of_all: Float32[np.ndarray, "batch heads positions"] | None = None
        self.keyword_of_all: Float32[np.ndarray, "batch positions"] | None = None

    def propose(self, folded: Float[Array, "batch heads encoder_dim"]) -> Int64[np.ndarray, "batch found"]:
        """The union of what the legs find for the heads; everything in a collection no larger than that.

        Args:
            folded: the queries of all heads, against stored embeddings.

        Returns:
            Positions, ascending in each row, −1 behind them.
        """
        if self._matches is not None:
            return distinct(self._snapshot.best_of(self._matches, self._candidates))
        batch, heads, _ = folded.shape
        parts: list[Int64[np.ndarray, "batch found"]] = []
        if self._mode != "keyword":
            if self._snapshot.documents <= self._candidates:
                return np.tile(self._snapshot.visible(), (batch, 1))
            if self._resident is not None:
                by_head = self._resident.nearest(folded, self._snapshot, self._candidates)
            else:
                numbers = numbers_of(folded if is_array(folded) else folded.float())
                by_head = self._by_inner_product(numbers.astype(np.float32, copy=False))
            parts.append(by_head.reshape(batch, heads * by_head.shape[1]))
        if self._texts is not None:
            if self._by_keywords is None:  # the same words in every round
                self._by_keywords = self._by_words(self._texts)
            parts.append(self._by_keywords)
        if self._further is not None:
            parts.append(self._further)
        return distinct(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))

    def deeper(
        self,
        folded: Float[Array, "batch heads encoder_dim"],
        proposed: Int64[np.ndarray, "batch candidates"],
        depth: int,
        further: Int64[np.ndarray, "batch further"] | None,
    ) -> tuple[Int64[np.ndarray, "batch listed"], Bool[np.ndarray, "batch listed"]]:
        """Propose more: the candidates, and documents that the legs find in addition.

        Args:
            folded: the queries of `propose`.
            proposed: its result.
            depth: how many each leg proposes for each head.
            further: positions proposed by the query memory, −1 = none.

        Returns:
            Positions as of `propose`, and True for those in addition.
        """
        legs = copy(self)
        legs._candidates, legs._further, legs._by_keywords = depth, further, None
        legs._same_scores = self.dense_of_all
        every = distinct(np.concatenate([proposed, legs.propose(folded)], axis=1))
        is_extra = [~np.isin(row, within) for row, within in zip(every, proposed, strict=True)]
        return every, np.array(is_extra, bool).reshape(every.shape)

    def keyword_scores(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Float32[np.ndarray, "batch candidates"] | None:
        """b(q, d) for the documents at its row of positions, 0 at −1; None without a keyword leg."""
        if self._texts is None:
            return None
        every = self.keyword_of_all
        if every is None or every.shape[1] == 0:
            return self._snapshot.keyword_scores(self._texts, positions)
        scores = every[np.arange(len(every))[:, None], positions]
        scores[positions == NONE] = 0.0
        return scores

    def score_all_keywords(self) -> None:
        """Compute the keyword scores of every position, where words have a part."""
        if self._texts is not None and self.keyword_of_all is None:
            self.keyword_of_all = self._snapshot.all_keyword_scores(self._texts)

    def _by_inner_product(
        self, folded: Float32[np.ndarray, "batch heads encoder_dim"]
    ) -> Int64[np.ndarray, "queries found"]:
        """The dense leg, for the queries of all heads."""
        snapshot, k = self._snapshot, self._candidates
        flat = folded.reshape(-1, folded.shape[2])
        asking = np.any(flat, axis=1)
        every = _few(snapshot, len(flat)) and bool(asking.all())
        if self._same_scores is not None:
            return snapshot.best_of(self._same_scores.reshape(len(flat), -1), k)
        scores = snapshot.dense_scores(flat) if every else None
        if scores is not None:
            self.dense_of_all = scores.reshape(*folded.shape[:2], scores.shape[1])
            return snapshot.best_of(scores, k)
        return _searched(snapshot, flat, asking, k)

    def _by_words(self, texts: Sequence[str]) -> Int64[np.ndarray, "batch found"]:
        """The keyword leg."""
        if not _few(self._snapshot, len(texts)):
            return self._snapshot.keyword_candidates(texts, self._candidates)
        if self.keyword_of_all is None:
            self.keyword_of_all = self._snapshot.all_keyword_scores(texts)
        return self._snapshot.best_by_keywords(self.keyword_of_all, self._candidates)


def _few(snapshot: Snapshot, queries: int) -> bool:
    """Return True if the scores of all documents may be in memory at once."""
    return snapshot.positions <= COVERAGE_DOCUMENTS and queries * snapshot.positions <= SCORES_AT_ONCE


def _searched(
    snapshot: Snapshot,
    folded: Float32[np.ndarray, "batch encoder_dim"],
    asking: Bool[np.ndarray, " batch"],
    k: int,
) -> Int64[np.ndarray, "batch found"]:
    """Search the index. A query of zeros ties with every document, so it gets the first ones unsearched."""
    if asking.all():
        return snapshot.dense_candidates(folded, k)
    first = snapshot.visible()[:k]
    dense = snapshot.dense_candidates(folded[asking], k) if asking.any() else np.empty((0, 0), np.int64)
    candidates = np.full((len(folded), max(dense.shape[1], len(first))), NONE, np.int64)
    candidates[asking, : dense.shape[1]] = dense
    candidates[~asking, : len(first)] = first
    return candidates


def distinct(positions: Int64[np.ndarray, "batch found"]) -> Int64[np.ndarray, "batch candidates"]:
    """Each position once in its row, ascending, padded with −1 behind; no column that is all padding."""
    ordered = np.sort(positions, axis=1)
    fresh = ordered != NONE
    fresh[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    if len(ordered) == 1:  # one row needs no padding
        return ordered[fresh][None]
    last = np.iinfo(np.int64).max
    ordered = np.sort(np.where(fresh, ordered, last), axis=1)
    ordered[ordered == last] = NONE
    return ordered[:, : int(fresh.sum(axis=1).max(initial=0))]


def within_reach(
    positions: Int64[np.ndarray, "batch candidates"],
    raw: Float[Array, "batch heads candidates"],
    *,
    all_reached: bool,
) -> tuple[Int64[np.ndarray, "batch candidates"], Bool[Array, "batch candidates"] | None]:
    """Return positions, −1 for candidates that no head reaches, and True for the others.

    Args:
        positions: of the candidates; −1 = none.
        raw: their scores; −∞ outside a kernel's support.
        all_reached: True if every score is finite.

    Returns:
        Positions, and a mask; None where every place has a candidate and every score is finite.
    """
    present = positions != NONE
    if all_reached:
        return positions, None if present.all() else on_device_of(present, raw)
    mask = on_device_of(present, raw) & (raw != -math.inf).any(1)
    return np.where(numbers_of(mask), positions, NONE), mask
