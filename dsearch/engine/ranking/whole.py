"""Attention over every document of a snapshot, block by block.

    w_h(d) = exp(l_h(d) − Z_h)        Z_h = log Σ_d exp(l_h(d))        context = W_V Σ_h m_h Σ_d w_h(d) e_d

Every visible document is scored by the code that scores candidates, in blocks that are merged as
`PartialAttention` triples, so memory does not grow with the collection, apart from one keyword score a query
and document. With gradients each block is computed again in the backward (checkpointing), so nothing of it is
stored.

The same logits give covered mass, the share of this attention that the candidates of a search hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from dsearch.attention.arrays import as_like, keyword_part
from dsearch.attention.blockwise.blocks import PartialAttention, merge
from dsearch.attention.retrieval.kernel import Weighing, mix, raw_scores
from dsearch.engine.ranking.candidates import SearchLegs, distinct
from dsearch.engine.ranking.scores import ranks_by_inner_product
from dsearch.engine.ranking.scoring import CandidateScores, Scoring
from dsearch.engine.snapshot import NONE
from dsearch.index.exact import best_above
from dsearch.search_options import COVERAGE_DOCUMENTS

# Drawn uniformly, the same for all queries, where a collection is too large for an exact covered mass.
SAMPLE = 1024
_ROWS = 8192
_PRODUCTS = 1 << 22  # logits of a block
_HIDDEN = 1 << 24  # numbers of a block between a query and a key, for a score that is no product

_Few = tuple[Float32[np.ndarray, " _"], Int64[np.ndarray, " _"]]
Remembered = Callable[[Int64[np.ndarray, "batch candidates"]], Float[Tensor, "batch candidates"]]


class WholeOutput(NamedTuple):
    """Attention over all documents.

    Attributes:
        log_partition: Z_h; for equal weights the logarithm of the number of documents, without normalisation
            that of the sum of the weights.
        context: Σ_h m_h Σ_d w_h(d) v_d, before W_V; None: listed documents have all the weight.
        documents: number of documents in reach of any head.
    """

    log_partition: Float[Tensor, "batch heads"]
    context: Float[Tensor, "batch value_dim"] | None
    documents: Int64[np.ndarray, " batch"]


class Whole:
    """All documents as candidates of some queries.

    Args:
        scoring: how they are scored.
        weighing: how scores become weights.
        legs: keyword scores, and dense scores where candidate generation computed them.
        queries: in the space of keys, after the last hop.
        folded: the same against stored embeddings.
        remembered: part of the scores from past queries; None without a memory.
    """

    def __init__(
        self,
        scoring: Scoring,
        weighing: Weighing,
        legs: SearchLegs,
        queries: Float[Tensor, "batch heads key_dim"],
        folded: Float[Tensor, "batch heads encoder_dim"],
        remembered: Remembered | None,
    ):
        self._scoring, self._weighing, self._legs = scoring, weighing, legs
        self._queries, self._folded, self._remembered = queries, folded, remembered
        self._hard = weighing.pooling == "hard"

    def attended(self, values: Float[Tensor, "positions value_dim"] | None) -> WholeOutput:
        """Pool every document; the best one alone needs no pass.

        Args:
            values: a row for each position in place of embeddings.
        """
        if self._hard:
            every = np.full(len(self._folded), self._scoring.snapshot.documents, np.int64)
            return WholeOutput(self._folded.new_zeros(self._folded.shape[:2]), None, every)
        total, reached = None, np.zeros(len(self._folded), np.int64)
        for rows in self._blocks():
            maximum, mass, context, seen = self._computed(partial(self._partial, rows, values))
            part = PartialAttention(maximum, mass, context)
            total = part if total is None else merge([total, part])
            reached += seen.cpu().numpy()
        batch, heads, dim = self._folded.shape
        if total is None:
            nothing = self._folded.new_full((batch, heads), -math.inf)
            width = dim if values is None else values.shape[1]
            return WholeOutput(nothing, self._folded.new_zeros(batch, width), reached)
        finished = total.finish()
        mixture = self._weighing.mixture.to(finished.context)
        by_head = finished.context
        if not self._weighing.normalises:
            by_head = total.context * total.max.exp()[..., None]
        context = (mixture[..., None] * by_head).sum(1)
        return WholeOutput(finished.log_partition, context, reached)

    def best(self, count: int) -> Int64[np.ndarray, "batch candidates"]:
        """Return the positions of the best documents by the score that orders hits, ascending, −1 behind.

        A pooling that takes the best document of each head gets the best of every head.
        """
        with torch.no_grad():
            if self._folded.shape[1] > 1 and not self._hard:
                soft = self._weighing._replace(soft_partition=self._log_partition(soft=True))
                return self._largest(lambda raw: soft.scores(raw, None), count)
            return self._largest(lambda raw: raw, count)

    def among_all(self, everything: WholeOutput) -> Weighing:
        """How the scores of listed documents become weights among all."""
        if self._hard:
            soft = None if self._folded.shape[1] == 1 else self._log_partition(soft=True)
            return self._weighing._replace(soft_partition=soft)
        other = self._weighing.pooling != "soft" and self._folded.shape[1] > 1
        soft = self._log_partition(soft=True) if other else None
        return self._weighing._replace(partition=everything.log_partition, soft_partition=soft)

    def weights(
        self, among: Bool[np.ndarray, " positions"]
    ) -> Iterator[tuple[Int64[np.ndarray, " rows"], Float[Tensor, "batch rows"], Int64[Tensor, " batch"]]]:
        """Yield the weights of the documents `among` alone, without gradients.

        Yields:
            Positions, their weights, and the number of those in reach of each query.
        """
        with torch.no_grad():
            chosen, weighing = None, self._weighing
            if self._hard:
                chosen = self._best_of_heads(among)
            else:
                weighing = weighing._replace(partition=self._log_partition(among=among))
            for rows in self._blocks(among):
                raw = self._raw(rows)[0]
                if chosen is None:
                    weights = weighing.weights(raw, None).mixed
                else:
                    weights = mix(torch.as_tensor(chosen[..., None] == rows).to(raw), weighing.mixture)
                yield rows, weights, (raw != -math.inf).any(1).sum(1)

    @property
    def queries(self) -> int:
        """Number of queries."""
        return len(self._folded)

    def share(
        self, raw: Float[Tensor, "batch heads candidates"], positions: Int64[np.ndarray, "batch candidates"]
    ) -> Float[Tensor, " batch"]:
        """Compute the share of the attention over all documents that these candidates hold.

        In a collection of more than `COVERAGE_DOCUMENTS` it is an estimate from `SAMPLE` documents.
        """
        snapshot, mixture = self._scoring.snapshot, self._weighing.mixture
        allowed = torch.as_tensor(positions != NONE).to(raw.device)
        with torch.no_grad():
            logits = self._weighing.logits(raw.detach()).masked_fill(~allowed[:, None], -math.inf)
            partition = logits.logsumexp(-1) if not self._hard else _highest(logits)
            if snapshot.documents <= COVERAGE_DOCUMENTS:
                whole = self._log_partition()
            else:
                rest = self._log_partition_of_rest(positions)
                whole = torch.maximum(partition, rest) if self._hard else torch.logaddexp(partition, rest)
            if not self._weighing.normalises:
                partition, whole = ((mixture.log() + part).logsumexp(-1) for part in (partition, whole))
                return torch.exp(partition - whole).nan_to_num(nan=1.0).clamp(max=1.0)
            if self._hard:  # a sample may hold none that is better
                shares = (partition >= whole - 1e-5 * whole.abs()).to(partition)
            else:
                shares = torch.exp(partition - whole).nan_to_num(nan=1.0)  # nothing is in reach
            return (shares.clamp(max=1.0) * mixture.to(shares)).sum(-1).clamp(max=1.0)

    def _computed(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Call a function; with gradients it is called again in the backward, and nothing of it is stored."""
        if not torch.is_grad_enabled():
            return compute()
        stochastic = self._scoring.embed is not None  # an encoder may draw for its dropout
        again: Callable[..., tuple[Tensor, ...]] = checkpoint  # pyright: ignore[reportUnknownVariableType]
        return again(compute, use_reentrant=False, preserve_rng_state=stochastic)

    def _partial(
        self, rows: Int64[np.ndarray, " rows"], values: Float[Tensor, "positions value_dim"] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The triple of a block, and the number of its documents that each query reaches."""
        raw, scored = self._raw(rows, embeddings=values is None)
        logits = self._weighing.logits(raw)
        reached = (raw != -math.inf).any(1).sum(1)
        if values is not None:
            part = PartialAttention.of(logits, values[torch.as_tensor(rows).to(values.device)].to(logits))
            return part.max, part.sum, part.context, reached
        assert scored.embeddings is not None
        pooled = scored.embeddings[0]
        if scored.taken is not None:  # each head pools the passages that it took
            every = logits.new_full((*logits.shape[:2], len(pooled)), -math.inf)
            logits = every.scatter(2, scored.taken.reshape(logits.shape), logits)
        part = PartialAttention.of(logits, pooled)
        return part.max, part.sum, part.context, reached

    def _raw(
        self, rows: Int64[np.ndarray, " rows"], *, embeddings: bool = False
    ) -> tuple[Float[Tensor, "batch heads rows"], CandidateScores]:
        """Scores of documents for all queries, and what they were computed from."""
        scoring, (batch, heads, _) = self._scoring, self._folded.shape
        every = self._legs.dense_of_all
        reusable = every is not None and every.shape[2] and not torch.is_grad_enabled() and not embeddings
        reusable = reusable and scoring.bias is None
        if reusable and scoring.score is not None and ranks_by_inner_product(scoring.score):
            assert every is not None
            scored = CandidateScores(torch.as_tensor(every[:, :, rows]).to(self._folded))
        else:
            queries, folded = (of.flatten(0, 1).unsqueeze(0) for of in (self._queries, self._folded))
            scored = scoring.scored(queries, folded, rows[None])
        raw = scored.dense.reshape(batch, heads, len(rows))
        tiled = np.broadcast_to(rows, (batch, len(rows)))
        words, keyword, memory = self._legs.keyword_scores(tiled), None, None
        if words is not None:
            keyword = keyword_part(torch.as_tensor(scoring.head.keyword_weight), as_like(words, raw))
        if self._remembered is not None:
            memory = as_like(self._remembered(np.ascontiguousarray(tiled)), raw)
        return raw_scores(raw, keyword, memory), scored

    def _log_partition(
        self, *, soft: bool = False, among: Bool[np.ndarray, " positions"] | None = None
    ) -> Float[Tensor, "batch heads"]:
        """Z_h, of the largest logit alone if the best document takes all."""
        total, best = self._folded.new_full(self._folded.shape[:2], -math.inf), self._hard and not soft
        weighing = self._weighing._replace(pooling="soft") if soft else self._weighing

        def of_block(rows: Int64[np.ndarray, " rows"]) -> tuple[Float[Tensor, "batch heads"]]:
            raw = self._raw(rows)[0]
            logits = weighing.logits(raw)
            return (_highest(logits) if best else logits.logsumexp(-1),)

        for rows in self._blocks(among):
            (part,) = self._computed(partial(of_block, rows))
            total = torch.maximum(total, part) if best else torch.logaddexp(total, part)
        return total

    def _log_partition_of_rest(
        self, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Float[Tensor, "batch heads"]:
        """Z_h of all that are no candidates, estimated from a sample: log(rest · mean exp(l))."""
        visible = self._scoring.snapshot.visible()
        drawn = np.sort(np.random.default_rng(0).choice(visible, SAMPLE, replace=False))
        logits = self._weighing.logits(self._raw(drawn)[0])
        other = np.array([~np.isin(drawn, row) for row in positions]).reshape(len(positions), len(drawn))
        other = torch.as_tensor(other).to(logits.device)
        logits = logits.masked_fill(~other[:, None], -math.inf)
        if self._hard:
            return _highest(logits)
        rest = torch.as_tensor(len(visible) - (positions != NONE).sum(1)).to(logits)
        each = (rest / other.sum(1).clamp_min(1)).log()
        return logits.logsumexp(-1) + each[:, None]

    def _largest(
        self, scores_of: Callable[[Tensor], Tensor], count: int
    ) -> Int64[np.ndarray, "batch candidates"]:
        """The positions of the `count` largest scores of each query and head, ascending, −1 behind."""
        best: list[_Few] | None = None
        for rows in self._blocks():
            scores = scores_of(self._raw(rows)[0])
            lines = scores.flatten(0, -2).float().cpu().numpy()
            each = [best_above(line, count, -math.inf) for line in lines]
            few = [(line[at], rows[at]) for line, at in zip(lines, each, strict=True)]
            if best is not None:
                few = [_merged(first, other, count) for first, other in zip(best, few, strict=True)]
            best = few
        if not best:
            return np.empty((len(self._folded), 0), np.int64)
        table = np.full((len(best), count), NONE, np.int64)
        for line, (_, positions) in zip(table, best, strict=True):
            line[: len(positions)] = positions
        return distinct(table.reshape(len(self._folded), -1))

    def _best_of_heads(self, among: Bool[np.ndarray, " positions"]) -> Int64[np.ndarray, "batch heads"]:
        """The position of each head's best document, the first of equal ones; −1 where none is in reach."""
        highest = self._folded.new_full(self._folded.shape[:2], -math.inf)
        best = np.full(self._folded.shape[:2], NONE, np.int64)
        for rows in self._blocks(among):
            value, at = self._raw(rows)[0].max(-1)
            better = value > highest
            highest = torch.where(better, value, highest)
            best = np.where(better.cpu().numpy(), rows[at.cpu().numpy()], best)
        return best

    def _blocks(
        self, among: Bool[np.ndarray, " positions"] | None = None
    ) -> Iterator[Int64[np.ndarray, " rows"]]:
        visible = self._scoring.snapshot.visible()
        if among is not None:
            visible = visible[among[visible]]
        self._legs.score_all_keywords()
        queries = max(1, self._folded.shape[0] * self._folded.shape[1])
        step = min(_ROWS, max(256, _PRODUCTS // queries))
        score = self._scoring.score
        if score is not None and not ranks_by_inner_product(score):
            step = min(step, max(64, _HIDDEN // (queries * self._queries.shape[2])))
        for start in range(0, len(visible), step):
            yield visible[start : start + step]


def _highest(logits: Float[Tensor, "batch heads some"]) -> Float[Tensor, "batch heads"]:
    if logits.shape[-1] == 0:
        return logits.new_full(logits.shape[:-1], -math.inf)
    return logits.amax(-1)


def _merged(first: _Few, other: _Few, count: int) -> _Few:
    """The largest of two parts, ties by position."""
    scores, positions = (np.concatenate(pair) for pair in zip(first, other, strict=True))
    order = np.lexsort((positions, -scores))[:count]
    return scores[order], positions[order]
