"""Rank the whole corpus for known queries by a head; basis of headroom, gate and tuning.

The ranking is exact, without candidate generation. Everything that does not depend on the head is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.attention.arrays import length, unit
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import ALIKE, QueryMemory
from dsearch.engine import Snapshot
from dsearch.engine.ranking.memory import SnapshotMemory
from dsearch.engine.ranking.ranker import HOP_CANDIDATES
from dsearch.products import product
from dsearch.training.data.examples import Examples
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.relevant import DEPTH

_QUERIES_AT_A_TIME = 32
# Keyword scores of all queries over all documents are kept between heads up to this size.
_KEYWORD_CACHE_BYTES = 2 << 30

Row = Float32[np.ndarray, " documents"]


class Ranking:
    """Ranking of the examples' corpus for their queries by any head.

    Args:
        examples: queries and their documents.
        keywords: True to include the keyword score.
    """

    def __init__(self, examples: Examples, *, keywords: bool = True):
        self.examples = examples
        self._corpus = examples.cached("corpus", lambda: corpus_embeddings(examples.snapshot))
        self._further = examples.cached(
            "further", lambda: FurtherPassages.of(examples.snapshot, self._corpus)
        )
        self._keywords = keywords
        self._keyword: KeywordScores | None = None
        self._weighed_by: tuple[float, float] | None = None
        self._memory: SnapshotMemory | None = None
        excluded = examples.snapshot.excluded
        self._hidden = None if excluded is None else torch.as_tensor(excluded)

    def top(
        self, head: Head, depth: int = DEPTH, *, hop_strength: float = 0.0
    ) -> Int64[np.ndarray, "queries depth"]:
        """The positions of the best documents for every query, best first; with a second hop at g ≠ 0.

        What is hidden from a query stands last.
        """
        return self.tops_of_alike([head], [hop_strength], depth)[0][0]

    @torch.inference_mode()
    def tops_of_alike(
        self,
        heads: Sequence[Head],
        hop_strengths: Sequence[float],
        depth: int = DEPTH,
    ) -> list[list[Int64[np.ndarray, "queries depth"]]]:
        """`top` of each head, at each hop strength; the heads project alike and have the same k1 and b.

        They differ only in keyword weight, temperature or mixture: what a query has to do with a document is
        computed for the first and serves all.
        """
        both = self._tops(heads, hop_strengths, depth, self.examples.states, self._corpus, self._further)
        return [[of.whole for of in of_head] for of_head in both]

    @torch.inference_mode()
    def tops_without(
        self,
        heads: Sequence[Head],
        hop_strengths: Sequence[float],
        removed: Sequence[Int64[np.ndarray, " _"]],
        *,
        states: Float32[np.ndarray, "queries encoder_dim"] | None = None,
        corpus: Float[Tensor, "documents encoder_dim"] | None = None,
        further: FurtherPassages | None = None,
    ) -> list[list[BothTops]]:
        """`tops_of_alike`, and the same without some documents of each query, for which others move up.

        Args:
            heads: heads that project alike.
            hop_strengths: hop strengths of each.
            removed: for each query, positions that are left out of the second ranking.
            states: in place of the examples' query embeddings.
            corpus: embeddings of the documents, in place of the stored ones.
            further: further passages of `corpus`.
        """
        states = self.examples.states if states is None else states
        if corpus is None:
            corpus, further = self._corpus, self._further
        return self._tops(heads, hop_strengths, DEPTH, states, corpus, further, removed)

    def _tops(
        self,
        heads: Sequence[Head],
        hop_strengths: Sequence[float],
        depth: int,
        states: Float32[np.ndarray, "queries encoder_dim"],
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
        removed: Sequence[Int64[np.ndarray, " _"]] | None = None,
    ) -> list[list[BothTops]]:
        depth = min(depth, len(self._corpus))
        shape = len(self.examples), depth
        best = [
            [BothTops(*(np.zeros(shape, np.int64) for _ in range(2))) for _ in hop_strengths] for _ in heads
        ]
        for which, of_heads in self._mixtures(heads, hop_strengths, states, corpus, further):
            at = which.numpy()
            out = None if removed is None else _pairs_of([removed[query] for query in at.tolist()])
            for of_head, mixtures in zip(best, of_heads, strict=True):
                for of, mixed in zip(of_head, mixtures, strict=True):
                    of.whole[at] = of.rest[at] = mixed.topk(depth, dim=1).indices.cpu().numpy()
                    if out is not None and len(out[0]):
                        scores = mixed.clone()
                        scores[out] = -torch.inf
                        of.rest[at] = scores.topk(depth, dim=1).indices.cpu().numpy()
        return best

    @torch.inference_mode()
    def scores(self, head: Head, hop_strength: float) -> Iterator[Float[Tensor, "batch documents"]]:
        """The score of every document, t · logit with one head, for the queries in blocks."""
        everything = self.examples.states, self._corpus, self._further
        for _, of_heads in self._mixtures([head], [hop_strength], *everything):
            yield next(iter(next(iter(of_heads)))) * head.temperature

    def _mixtures(
        self,
        heads: Sequence[Head],
        hop_strengths: Sequence[float],
        states: Float32[np.ndarray, "queries encoder_dim"],
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
    ) -> Iterator[tuple[Int64[Tensor, " batch"], Iterator[Iterator[Float[Tensor, "batch documents"]]]]]:
        """The ranking scores by each head at each hop strength, for the queries in blocks."""
        alike = heads[0]
        device = alike.temperature.device
        further = None if further is None else further.to(device)
        corpus = corpus.to(device)
        for start in range(0, len(self.examples), _QUERIES_AT_A_TIME):
            which = torch.arange(start, min(start + _QUERIES_AT_A_TIME, len(self.examples)))
            keyword = None
            if self._keywords:
                keyword = self._keyword_scores(alike)(which).to(device)
            own = torch.as_tensor(states[which.numpy()]).to(device)
            queries = alike.queries(own)
            scored = _Scored.of(alike.fold(queries), corpus, further)
            remembered: dict[QueryMemory, Tensor] = {}
            for head in heads:
                if head.memory is not None and head.memory not in remembered:
                    recalled = head.memory(own, above=ALIKE)
                    remembered[head.memory] = self._snapshot_memory(head.memory).of_all(recalled)
            yield (
                which,
                (
                    self._block(
                        head,
                        queries,
                        scored,
                        _Beside(keyword, None if head.memory is None else remembered[head.memory]),
                        corpus,
                        further,
                        which,
                        hop_strengths,
                    )
                    for head in heads
                ),
            )

    def _snapshot_memory(self, memory: QueryMemory) -> SnapshotMemory:
        bound = self._memory
        if bound is None or not bound.same_rows(memory):
            bound = self._memory = SnapshotMemory(memory, self.examples.snapshot)
        return bound

    def _block(
        self,
        head: Head,
        queries: Float[Tensor, "batch heads key_dim"],
        scored: _Scored,
        beside: _Beside,
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
        which: Int64[Tensor, " batch"],
        hop_strengths: Sequence[float],
    ) -> Iterator[Float[Tensor, "batch documents"]]:
        logits = self._logits(head, scored.best, beside)
        first = self._mixed(head, logits, which, queries)
        hop = None
        if any(hop_strengths):
            first_rows = first.topk(min(HOP_CANDIDATES, len(corpus)), dim=1).indices
            weights = logits.gather(2, first_rows[:, None].expand(-1, head.heads, -1)).softmax(-1)
            hop = _Hop(
                queries,
                scored,
                self._pooled(head, weights, first_rows, corpus, further, scored.taken(further)),
            )
        for strength in hop_strengths:
            mixed = first
            if strength and hop is not None:
                turned, over = hop.scores(strength, lambda of: _passages(head.fold(of), corpus, further))
                scores = turned.first if further is None else further.raised(turned.first, turned.further)
                logits = self._logits(head, scores, beside, over)
                mixed = self._mixed(head, logits, which, hop.queries(strength))
            yield mixed

    def _keyword_scores(self, head: Head) -> KeywordScores:
        """Those of the last k1 and b are kept: heads with the same ones come in a row."""
        if self._keyword is None or head.keyword_weighting != self._weighed_by:
            self._keyword, self._weighed_by = (
                KeywordScores(self.examples.weighed(head)),
                head.keyword_weighting,
            )
        return self._keyword

    def _logits(
        self,
        head: Head,
        scores: Float[Tensor, "batch heads documents"],
        beside: _Beside,
        over: Float[Tensor, "batch heads 1"] | float = 1.0,
    ) -> Float[Tensor, "batch heads documents"]:
        """(s / `over` + w b + γ M) / t."""
        # One copy of a block and no more: those are what takes the time here.
        logits = scores * (1 / (head.temperature * over))
        if beside.keyword is not None:
            logits.addcmul_(beside.keyword[:, None], (head.keyword_weight / head.temperature)[:, None])
        if beside.memory is not None:
            logits.addcmul_(beside.memory[:, None], 1 / head.temperature)
        return logits

    def _pooled(
        self,
        head: Head,
        weights: Float[Tensor, "batch heads found"],
        nearest: Int64[Tensor, "batch found"],
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
        taken: Int64[Tensor, "batch heads documents"] | None,
    ) -> Float[Tensor, "batch heads key_dim"]:
        """Attention-weighted mean of the keys, one for each head."""
        if taken is None or further is None:
            return head.keys(torch.einsum("bhf,bfk->bhk", weights, corpus[nearest]))  # linear: pooled first
        best = taken.gather(2, nearest[:, None].expand(-1, head.heads, -1)).cpu()
        stored = further.beside(corpus).cpu()[best].to(weights)
        return head.keys(torch.einsum("bhf,bhfk->bhk", weights, stored))

    def _mixed(
        self,
        head: Head,
        logits: Float[Tensor, "batch heads documents"],
        which: Int64[Tensor, " batch"],
        queries: Float[Tensor, "batch heads key_dim"],
    ) -> Float[Tensor, "batch documents"]:
        """Ranking score log Σ_h m_h softmax(l_h); for a single head its logits, which give the same order."""
        if head.heads == 1:
            mixed = logits[:, 0]
        else:
            mixture = head.mixture if head.excitation is None else head.mixture_of(head.fold(queries))
            mixed = (mixture.log()[..., None] + logits.log_softmax(-1)).logsumexp(1)
        if self._hidden is not None:
            mixed = mixed.masked_fill(self._hidden.to(mixed.device), -torch.inf)
        if self.examples.hidden is None:
            return mixed
        mixed = mixed.clone()
        for row, query in enumerate(which.tolist()):
            mixed[row, torch.as_tensor(self.examples.hidden[query]).to(mixed.device)] = -torch.inf
        return mixed


class _Beside(NamedTuple):
    """Parts of the logits beside the similarity: keyword scores b, and γ M; None without."""

    keyword: Float[Tensor, "batch documents"] | None
    memory: Float[Tensor, "batch documents"] | None


class BothTops(NamedTuple):
    """Best positions for every query, best first, of all documents and without those that were left out."""

    whole: Int64[np.ndarray, "queries depth"]
    rest: Int64[np.ndarray, "queries depth"]


def _pairs_of(
    positions: Sequence[Int64[np.ndarray, " _"]],
) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
    """Row and position of each."""
    rows = np.repeat(np.arange(len(positions)), [len(of) for of in positions])
    return torch.as_tensor(rows), torch.as_tensor(np.concatenate([*positions, np.empty(0, np.int64)]))


class _Passages(NamedTuple):
    """Scores of first and of further passages."""

    first: Float[Tensor, "batch heads documents"]
    further: Float[Tensor, "batch heads further"]


def _passages(
    folded: Float[Tensor, "batch heads encoder_dim"],
    corpus: Float[Tensor, "documents encoder_dim"],
    further: FurtherPassages | None,
) -> _Passages:
    first = product(folded, corpus)
    return _Passages(first, first[..., :0] if further is None else product(folded, further.embeddings))


class _Scored:
    """q · k of first passages, of further ones, and of each document's best one.

    Both are linear in the query, so a hop combines those of two queries; only then the best ones are chosen.
    """

    def __init__(
        self,
        first: Float[Tensor, "batch heads documents"],
        further: Float[Tensor, "batch heads further"],
        best: Float[Tensor, "batch heads documents"],
    ):
        self.first, self.further, self.best = first, further, best
        self._taken: Tensor | None = None

    @classmethod
    def of(
        cls,
        folded: Float[Tensor, "batch heads encoder_dim"],
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
    ) -> _Scored:
        """Scores of folded queries."""
        first, more = _passages(folded, corpus, further)
        best = first if further is None else further.raised(first.clone(), more)
        return cls(first, more, best)

    def taken(self, further: FurtherPassages | None) -> Int64[Tensor, "batch heads documents"] | None:
        """The best passage of each document; None where each has but one."""
        if further is not None and self._taken is None:
            self._taken = further.best(self.first, self.further)[1]
        return self._taken


class _Hop:
    """Queries refined by their pooled keys (`dsearch.attention.retrieval.hops.refine`), at any strength.

    The turned query is a combination of the query q and the pooled key c, and scores are linear in it:
    |q| · unit(unit(q) + g · unit(c)) · k = (q · k + g |q| · unit(c) · k) / |unit(q) + g · unit(c)|. So one
    more product with the corpus serves all strengths. The divisor is above 0: it changes no best passage.
    """

    def __init__(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        scored: _Scored,
        pooled: Float[Tensor, "batch heads key_dim"],
    ):
        self._queries, self._scored = queries, scored
        self._length = length(queries)
        self._towards = unit(pooled)
        self._along: _Passages | None = None

    def queries(self, strength: float) -> Float[Tensor, "batch heads key_dim"]:
        """The turned queries."""
        return self._length * unit(unit(self._queries) + strength * self._towards)

    def scores(
        self, strength: float, score: Callable[[Tensor], _Passages]
    ) -> tuple[_Passages, Float[Tensor, "batch heads 1"]]:
        """Their scores before they are divided, and the divisor; `score` gives those of a query."""
        if self._along is None:
            self._along = score(self._length * self._towards)
        turned = length(unit(self._queries) + strength * self._towards)
        first = torch.add(self._scored.first, self._along.first, alpha=strength)
        further = torch.add(self._scored.further, self._along.further, alpha=strength)
        return _Passages(first, further), turned.clamp_min(1e-12)


class KeywordScores:
    """Keyword scores b(q, d) of examples' queries over the corpus, cached if they fit into memory.

    If the examples have a cache, each query's scores are computed once for all parts of the examples.
    """

    def __init__(self, examples: Examples, device: str = "cpu"):
        self._examples, self._device = examples, device
        keyword = examples.snapshot.keyword
        cached: dict[str, Row] = examples.cached(("keyword", keyword.k1, keyword.b), dict)
        missing = [text for text in dict.fromkeys(examples.texts) if text not in cached]
        size = 4 * (len(cached) + len(missing)) * examples.snapshot.positions
        self._rows_of_examples: list[Row] | None = None
        if size <= _KEYWORD_CACHE_BYTES:
            if missing:
                cached |= zip(missing, examples.snapshot.all_keyword_scores(missing), strict=True)
            self._rows_of_examples = [cached[text] for text in examples.texts]

    def __call__(self, batch: Int64[Tensor, " batch"]) -> Float[Tensor, "batch documents"]:
        """b(q, d) of the examples at these indices."""
        which = batch.numpy()
        if self._rows_of_examples is not None:
            scores = np.stack([self._rows_of_examples[i] for i in which])
        else:
            scores = self._examples.snapshot.all_keyword_scores([self._examples.texts[i] for i in which])
        return torch.as_tensor(scores).to(self._device)


def corpus_embeddings(snapshot: Snapshot) -> Float[Tensor, "documents encoder_dim"]:
    """The embeddings at all positions of a snapshot; deleted ones are zeros, which no query prefers."""
    every = np.concatenate([snapshot.generation.embeddings, snapshot.fresh.embeddings])
    if snapshot.excluded is not None:
        every[snapshot.excluded] = 0
    return torch.as_tensor(every)
