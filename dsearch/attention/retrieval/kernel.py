"""The ranking kernel: how the parts of candidates' scores become weights, and the order of hits.

    t l_h(d)  = s_h(d) + w_h b(q, d) + M(q, d) + R(q, d)       dense, keyword, memory, second stage
    a_h(d)    = exp(l_h(d) − Z_h)                              Z_h = log Σ_c exp(l_h(c))
    weight(d) = Σ_h m_h a_h(d)                                 mixture of the heads
    score(d)  = t (log weight(d) + Σ_h m_h Z_h)                orders the hits

Search, layer, attention over all documents, training, gate and shards rank by these functions, over tensors
or NumPy arrays (attention/arrays.py). s is the score of a document's best passage (maxp.py), for queries that
hops may have turned (hops.py).

Heads are mixed after the softmax, never before: a sum of linear heads' logits is the logits of one linear
head, so several would gain nothing; a mixture of their softmaxes is richer than any one of them (Yang et al.,
2018, arXiv:1711.03953, section 2.3). The first part of the score is the logarithm of the weight, so the order
is that of the weights even where those underflow; the second, the same for all candidates of a query, makes
it exactly t l(d) with one head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from dsearch.attention.arrays import (
    CONE,
    Array,
    all_true,
    at_least,
    at_most,
    best_first,
    cone_logits,
    exp,
    fill,
    gather,
    gradients_enabled,
    known_all,
    largest,
    log,
    logsumexp,
    masked_softmax,
    on_device_of,
    softmax,
    temper,
    zeros,
)


def raw_scores(
    dense: Float[Array, "*batch heads candidates"],
    keyword: Float[Array, "*batch heads candidates"] | None = None,
    memory: Float[Array, "*batch candidates"] | None = None,
    second: Float[Array, "*batch candidates"] | None = None,
) -> Float[Array, "*batch heads candidates"]:
    """t l_h(d), the sum of the parts of each head's score.

    Args:
        dense: s_h(d).
        keyword: w_h b(q, d), see `dsearch.attention.arrays.keyword_part`.
        memory: M(q, d), what past queries add.
        second: R(q, d), the term of a second stage.
    """
    raw = dense if keyword is None else dense + keyword
    for part in (memory, second):
        if part is not None:
            raw = raw + part[..., None, :]
    return raw


def mix(
    head_weights: Float[Array, "*batch heads candidates"], mixture: Float[Array, "*#batch heads"]
) -> Float[Array, "*batch candidates"]:
    """weight(q, d) = Σ_h m_h a_h(q, d).

    Args:
        head_weights: the softmax weights of each head over the same candidates.
        mixture: the share of each head; a point of the simplex gives a distribution again. One head of
            share 1 gives its weights back unchanged.
    """
    return (head_weights * mixture[..., None]).sum(-2)


def log_mix(
    log_head_weights: Float[Array, "batch heads candidates"], mixture: Float[Array, "*#batch heads"]
) -> Float[Array, "batch candidates"]:
    """log Σ_h m_h a_h(q, d), from log a_h."""
    return logsumexp(log_parts(log_head_weights, mixture), 1)


def log_parts(
    log_head_weights: Float[Array, "batch heads candidates"], mixture: Float[Array, "*#batch heads"]
) -> Float[Array, "batch heads candidates"]:
    """log m_h a_h(q, d): what each head gives to a document's weight."""
    return log(mixture)[..., None] + log_head_weights


def partition_by_head(
    logits: Float[Array, "batch heads candidates"], mask: Bool[Array, "batch candidates"] | None = None
) -> Float[Array, "batch heads"]:
    """Z_h over the candidates where `mask` is True, all of them without a mask; 0 where none is in reach."""
    if mask is not None:
        logits = fill(logits, ~mask[:, None], -math.inf)
    empty = ~(logits != -math.inf).any(-1)
    if known_all(~empty):
        return logsumexp(logits, -1)
    return fill(logsumexp(fill(logits, empty[..., None], 0.0), -1), empty, 0.0)


def ranking_score(
    logits: Float[Array, "batch heads candidates"],
    partition: Float[Array, "batch heads"],
    temperature: float | Float[Array, ""],
    mixture: Float[Array, "*#batch heads"],
) -> Float[Array, "batch candidates"]:
    """score(d) of each candidate, from l_h(d), Z_h, t and m_h."""
    log_weights = log_mix(logits - partition[..., None], mixture)
    return temperature * (log_weights + (mixture * partition).sum(-1)[:, None])


class CandidateWeights(NamedTuple):
    """Weights that follow from the scores of candidates.

    Attributes:
        by_head: a_h(d); zeros where there is no candidate.
        mixed: the mixture of the heads' weights.
        mixture: m_h.
    """

    by_head: Float[Array, "batch heads candidates"]
    mixed: Float[Array, "batch candidates"]
    mixture: Float[Array, "*#batch heads"]


class Weighing(NamedTuple):
    """How scores become weights.

    Masks are True where there is a candidate; None means that there is one everywhere, with a finite score.

    Attributes:
        heads: number of heads.
        mixture: share of each head, for all queries or for each.
        temperature: t.
        pooling: "soft", "hard" or "uniform"; "exp", "relu" or "sigmoid" for a_h(d) = φ(l_h(d)), which no
            other document changes (`cone_logits`).
        is_extra: True for documents that are listed behind the candidates: they share no attention, but their
            weights have the candidates' denominators, a_h(d) = exp(l_h(d) − Z_h), at most 1; None: there are
            none.
        partition: Z_h of `pooling` over more documents than the candidates, which then have their weights
            among those; None: the candidates share the attention.
        soft_partition: the same of soft pooling, by which hits are ordered; None: `partition`.
    """

    heads: int
    mixture: Float[Array, "*#batch heads"]
    temperature: Float[Array, ""] | float
    pooling: str = "soft"
    is_extra: Bool[Array, "batch candidates"] | None = None
    partition: Float[Array, "batch heads"] | None = None
    soft_partition: Float[Array, "batch heads"] | None = None

    @property
    def normalises(self) -> bool:
        """True if the weights of a head sum to 1."""
        return self.pooling not in CONE

    def logits(self, raw: Float[Array, "batch heads candidates"]) -> Float[Array, "batch heads candidates"]:
        """log a_h(d) + Z_h: l_h(d) of the softmax, 0 for uniform weights, log φ(l_h(d)) of the cone."""
        if self.pooling == "uniform":
            return fill(zeros(tuple(raw.shape), raw), raw == -math.inf, -math.inf)
        logits = temper(raw, self.temperature)
        return logits if self.normalises else cone_logits(logits, self.pooling)

    def weights(
        self, raw: Float[Array, "batch heads candidates"], mask: Bool[Array, "batch candidates"] | None
    ) -> CandidateWeights:
        """The weights of candidates by their scores."""
        by_head = self._by_head(raw, mask)
        alone = self.heads == 1 and not gradients_enabled()  # its share is 1
        return CandidateWeights(by_head, by_head[:, 0] if alone else mix(by_head, self.mixture), self.mixture)

    def scores(
        self, raw: Float[Array, "batch heads candidates"], mask: Bool[Array, "batch candidates"] | None
    ) -> Float[Array, "batch candidates"]:
        """The scores that order the hits, −inf where `mask` is False.

        With several heads the order is exactly that of soft weights.
        """
        if self.heads == 1:
            return raw[:, 0] if mask is None else fill(raw[:, 0], ~mask, -math.inf)
        logits = temper(raw, self.temperature)
        partition = self.partition if self.soft_partition is None else self.soft_partition
        if partition is None:
            partition = partition_by_head(logits, self._shares_attention(raw, mask))
        else:
            partition = fill(partition, partition == -math.inf, 0.0)
        if mask is None:
            return ranking_score(logits, partition, self.temperature, self.mixture)
        logits = fill(logits, ~mask[:, None], 0.0)
        scores = ranking_score(logits, partition, self.temperature, self.mixture)
        return fill(scores, ~mask, -math.inf)

    def _by_head(
        self, raw: Float[Array, "batch heads candidates"], mask: Bool[Array, "batch candidates"] | None
    ) -> Float[Array, "batch heads candidates"]:
        if not self.normalises:
            return self._among_more(raw, mask, zeros(tuple(raw.shape[:2]), raw))
        if self.partition is not None and self.pooling != "hard":
            return self._among_more(raw, mask, self.partition)
        shares_attention = self._shares_attention(raw, mask)
        if shares_attention is None and self.pooling == "soft":  # without a look for −∞
            return softmax(raw / self.temperature, -1)
        among = None if shares_attention is None else shares_attention[:, None]
        by_head = _pooling(self.pooling)(temper(raw, self.temperature), among)
        if self.is_extra is None or shares_attention is None:
            return by_head
        return by_head + self._of_extra(raw, shares_attention, mask)

    def _shares_attention(
        self, raw: Float[Array, "batch heads candidates"], mask: Bool[Array, "batch candidates"] | None
    ) -> Bool[Array, "batch candidates"] | None:
        """True for candidates, False for documents that are only listed; None where all are candidates."""
        if self.is_extra is None:
            return mask
        return (all_true(raw[:, 0]) if mask is None else mask) & ~self.is_extra

    def _among_more(
        self,
        raw: Float[Array, "batch heads candidates"],
        mask: Bool[Array, "batch candidates"] | None,
        partition: Float[Array, "batch heads"],
    ) -> Float[Array, "batch heads candidates"]:
        """exp(l − Z) by a partition over more documents; zeros where nothing is in reach."""
        logits = self.logits(raw)
        if mask is not None:
            logits = fill(logits, ~mask[:, None], -math.inf)
        nothing = partition == -math.inf
        if known_all(~nothing):
            return exp(logits - partition[..., None])
        return fill(exp(logits - fill(partition, nothing, 0.0)[..., None]), nothing[..., None], 0.0)

    def _of_extra(
        self,
        raw: Float[Array, "batch heads candidates"],
        shares_attention: Bool[Array, "batch candidates"],
        mask: Bool[Array, "batch candidates"] | None,
    ) -> Float[Array, "batch heads candidates"]:
        """The weights of documents behind the candidates; zeros elsewhere."""
        logits = temper(raw, self.temperature)
        partition = partition_by_head(logits, shares_attention)[..., None]
        others = shares_attention if mask is None else shares_attention | ~mask
        return fill(exp(at_most(logits - partition, 0.0)), others[:, None], 0.0)


def _pooling(name: str) -> Callable[[Array, Array | None], Array]:
    if name == "soft":
        return masked_softmax
    from dsearch.attention.pooling import POOLINGS

    return POOLINGS[name]


class StageTerms(NamedTuple):
    """Terms of the candidates of some queries in a second stage.

    Attributes:
        values: R(q, d).
        inside: True for those that the second stage looked at.
        reranked: the reranker's part of the values; None without one.
    """

    values: Float[Array, "batch candidates"]
    inside: Bool[np.ndarray, "batch candidates"]
    reranked: Float[Array, "batch candidates"] | None = None


class RankedCandidates(NamedTuple):
    """Candidates in the order in which they were proposed, weighed and ranked.

    Attributes:
        weights: their weights.
        scores: the score of each; −inf where there is no candidate.
        second: terms of the second stage; None without one.
        order: columns of the candidates, best first.
    """

    weights: CandidateWeights
    scores: Float[Array, "batch candidates"]
    second: StageTerms | None
    order: Int64[Array, "batch candidates"]


def rank(
    raw: Float[Array, "batch heads candidates"],
    mask: Bool[Array, "batch candidates"] | None,
    weighing: Weighing,
    second_stage: Callable[[Float[Array, "batch candidates"]], StageTerms] | None = None,
) -> RankedCandidates:
    """Weigh and order the candidates of some queries.

    Args:
        raw: t l_h(d) of the first stage, see `raw_scores`.
        mask: as of `Weighing`.
        weighing: how scores become weights.
        second_stage: gives the terms of the candidates, from the scores of the first stage; None without one.
    """
    second = None
    if second_stage is not None:
        second = second_stage(weighing.scores(raw, mask))
        if weighing.is_extra is not None:
            second = held_below(second, raw, weighing.is_extra)
        raw = raw_scores(raw, second=second.values)
    scores = weighing.scores(raw, mask)
    return RankedCandidates(weighing.weights(raw, mask), scores, second, order_of(scores, second))


def order_of(
    scores: Float[Array, "batch candidates"], second: StageTerms | None
) -> Int64[Array, "batch candidates"]:
    """The order of hits: by score, ties by position; of equals those first that a second stage looked at.

    Proposals ascend, so stable sorts do.
    """
    if second is None:
        return best_first(scores)
    first = best_first(on_device_of(second.inside.astype(np.int8), scores))
    return gather(first, best_first(gather(scores, first, 1)), 1)


def held_below(
    second: StageTerms,
    raw: Float[Array, "batch heads candidates"],
    is_extra: Bool[Array, "batch candidates"],
) -> StageTerms:
    """The terms of a second stage where documents behind the candidates rank below those it looked at.

    Each has the term of the candidates outside, less what keeps its own logit below all of those.
    """
    every = raw_scores(raw, second=second.values)
    unseen = on_device_of(~second.inside, raw)
    looked_at = fill(every, unseen[:, None], math.inf)
    lowest = -largest(-looked_at.reshape(len(raw), raw.shape[1] * raw.shape[2]), 1)
    excess = at_least(largest(every.mT, 1)[..., 0] - lowest, 0.0)
    return second._replace(values=second.values - fill(excess, ~is_extra, 0.0))
