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

from dsearch.attention.arrays import keyword_part, length, unit
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.hops import towards, turned
from dsearch.attention.retrieval.kernel import Weighing, raw_scores
from dsearch.attention.retrieval.memory import ALIKE, QueryMemory
from dsearch.engine import Snapshot
from dsearch.engine.ranking.memory import SnapshotMemory
from dsearch.engine.ranking.ranker import HOP_CANDIDATES
from dsearch.products import product
from dsearch.training.data.examples import Examples
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.relevant import DEPTH, EVIDENCE_DEPTH

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
        return [[tops.all_documents for tops in of_head] for of_head in both]

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
        return self._tops(heads, hop_strengths, EVIDENCE_DEPTH, states, corpus, further, removed)

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
        for which, of_heads in self._blocks(heads, hop_strengths, states, corpus, further):
            at = which.numpy()
            out = None if removed is None else _pairs_of([removed[query] for query in at.tolist()])
            for of_head, mixtures in zip(best, of_heads, strict=True):
                for tops, scores in zip(of_head, mixtures, strict=True):
                    top = scores.topk(depth, dim=1).indices.cpu().numpy()
                    tops.all_documents[at] = tops.without_removed[at] = top
                    if out is not None and len(out[0]):
                        rest = scores.clone()
                        rest[out] = -torch.inf
                        tops.without_removed[at] = rest.topk(depth, dim=1).indices.cpu().numpy()
        return best

    @torch.inference_mode()
    def scores(self, head: Head, hop_strength: float) -> Iterator[Float[Tensor, "batch documents"]]:
        """The score of every document, for the queries in blocks."""
        everything = self.examples.states, self._corpus, self._further
        for _, of_heads in self._blocks([head], [hop_strength], *everything):
            yield next(iter(next(iter(of_heads))))

    def _blocks(
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
                        _Added(keyword, None if head.memory is None else remembered[head.memory]),
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
        added: _Added,
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
        which: Int64[Tensor, " batch"],
        hop_strengths: Sequence[float],
    ) -> Iterator[Float[Tensor, "batch documents"]]:
        raw = self._raw(head, scored.best, added)
        first = self._scores(head, raw, which, queries)
        hop = None
        if any(hop_strengths):
            nearest = first.topk(min(HOP_CANDIDATES, len(corpus)), dim=1).indices
            of_nearest = raw.gather(2, nearest[:, None].expand(-1, head.heads, -1))
            weights = Weighing(head.heads, head.mixture, head.temperature).weights(of_nearest, None).by_head
            hop = _Hop(
                queries,
                scored,
                self._pooled(head, weights, nearest, corpus, further, scored.taken(further)),
            )
        for strength in hop_strengths:
            scores = first
            if strength and hop is not None:
                turned = hop.scores(strength, lambda of: _passages(head.fold(of), corpus, further))
                best = turned.first if further is None else further.raised(turned.first, turned.further)
                scores = self._scores(head, self._raw(head, best, added), which, hop.queries(strength))
            yield scores

    def _keyword_scores(self, head: Head) -> KeywordScores:
        """Those of the last k1 and b are kept: heads with the same ones come in a row."""
        if self._keyword is None or head.keyword_weighting != self._weighed_by:
            self._keyword, self._weighed_by = (
                KeywordScores(self.examples.weighed(head)),
                head.keyword_weighting,
            )
        return self._keyword

    def _raw(
        self, head: Head, dense: Float[Tensor, "batch heads documents"], added: _Added
    ) -> Float[Tensor, "batch heads documents"]:
        keyword = None if added.keyword is None else keyword_part(head.keyword_weight, added.keyword)
        return raw_scores(dense, keyword, added.memory)

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

    def _scores(
        self,
        head: Head,
        raw: Float[Tensor, "batch heads documents"],
        which: Int64[Tensor, " batch"],
        queries: Float[Tensor, "batch heads key_dim"],
    ) -> Float[Tensor, "batch documents"]:
        """The scores that order hits, −inf at what is hidden."""
        mixture = head.mixture if head.excitation is None else head.mixture_of(head.fold(queries))
        scores = Weighing(head.heads, mixture, head.temperature).scores(raw, None)
        if self._hidden is not None:
            scores = scores.masked_fill(self._hidden.to(scores.device), -torch.inf)
        if self.examples.hidden is None:
            return scores
        scores = scores.clone()
        for row, query in enumerate(which.tolist()):
            scores[row, torch.as_tensor(self.examples.hidden[query]).to(scores.device)] = -torch.inf
        return scores


class _Added(NamedTuple):
    """What is added to the similarity: keyword scores b, and M; None without."""

    keyword: Float[Tensor, "batch documents"] | None
    memory: Float[Tensor, "batch documents"] | None


class BothTops(NamedTuple):
    """Best positions for every query, best first, of all documents and without those that were left out."""

    all_documents: Int64[np.ndarray, "queries depth"]
    without_removed: Int64[np.ndarray, "queries depth"]


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
    """Queries turned towards their pooled keys (attention/retrieval/hops.py), at any strength.

    A turned query is |q| · (unit(q) + g · unit(c)) / |unit(q) + g · unit(c)|, and scores are linear in the
    sum, so one more product with the corpus serves all strengths. The divisor is above 0: it changes no best
    passage.
    """

    def __init__(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        scored: _Scored,
        pooled: Float[Tensor, "batch heads key_dim"],
    ):
        self._queries, self._scored, self._pooled = queries, scored, pooled
        self._of_pooled: _Passages | None = None

    def queries(self, strength: float) -> Float[Tensor, "batch heads key_dim"]:
        """The turned queries."""
        return turned(self._queries, self._pooled, strength)

    def scores(self, strength: float, score: Callable[[Tensor], _Passages]) -> _Passages:
        """Their scores; `score` gives those of a query."""
        if self._of_pooled is None:
            self._of_pooled = score(length(self._queries) * unit(self._pooled))
        over = length(towards(unit(self._queries), unit(self._pooled), strength)).clamp_min(1e-12)
        pairs = zip((self._scored.first, self._scored.further), self._of_pooled, strict=True)
        return _Passages(*(towards(own, other, strength) / over for own, other in pairs))


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
