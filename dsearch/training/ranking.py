"""How a head ranks the whole corpus for known queries: what headroom, gate and tuning are computed from.

Exact, not by candidates, and with everything that a head does not change kept between heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dsearch.attention.head import Head
from dsearch.attention.hops import refine
from dsearch.engine import Snapshot
from dsearch.engine.layer import HOP_CANDIDATES
from dsearch.evaluation.metrics import Judged, ndcg
from dsearch.training.examples import Examples
from dsearch.training.passages import FurtherPassages

DEPTH = 10
_QUERIES_AT_A_TIME = 32
# Keyword scores of all queries over all documents are kept between heads up to this size.
_KEYWORD_CACHE_BYTES = 2 << 30


class Ranking:
    """The corpus of some examples, ranked for their queries by any head.

    Args:
        examples: queries and their documents.
        keywords: whether the keyword head has a part.
    """

    def __init__(self, examples: Examples, *, keywords: bool = True):
        self.examples = examples
        self._corpus = corpus_embeddings(examples.snapshot)
        self._further = FurtherPassages.of(examples.snapshot, self._corpus)
        self._keyword = KeywordScores(examples) if keywords else None
        excluded = examples.snapshot.excluded
        self._hidden = None if excluded is None else torch.as_tensor(excluded)

    @torch.inference_mode()
    def top(
        self,
        head: Head,
        depth: int = DEPTH,
        *,
        hop_strength: float = 0.0,
        states: Float32[np.ndarray, "queries encoder_dim"] | None = None,
        corpus: Float[Tensor, "documents encoder_dim"] | None = None,
        further: FurtherPassages | None = None,
    ) -> Int64[np.ndarray, "queries depth"]:
        """The positions of the best documents for every query, best first; with a second hop at g ≠ 0.

        What is hidden from a query stands last. `states` and `corpus` (with its `further` passages) take the
        place of the examples' query embeddings and of the stored ones.
        """
        depth = min(depth, len(self._corpus))
        states = self.examples.states if states is None else states
        if corpus is None:
            corpus, further = self._corpus, self._further
        best = np.zeros((len(self.examples), depth), np.int64)
        for start in range(0, len(best), _QUERIES_AT_A_TIME):
            which = torch.arange(start, min(start + _QUERIES_AT_A_TIME, len(best)))
            best[start : start + len(which)] = self._block(
                head, states, corpus, further, which, depth, hop_strength
            )
        return best

    def _block(
        self,
        head: Head,
        states: Float32[np.ndarray, "queries encoder_dim"],
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
        which: Int64[Tensor, " batch"],
        depth: int,
        hop_strength: float,
    ) -> Int64[np.ndarray, "batch depth"]:
        device = head.temperature.device
        further = None if further is None else further.to(device)
        corpus = corpus.to(device)
        keyword = None if self._keyword is None else self._keyword(which).to(device)
        queries = head.queries(torch.as_tensor(states[which.numpy()]).to(device))
        log_heads, taken = self._log_heads(head, queries, corpus, further, keyword)
        if hop_strength:
            found = self._mixed(head, log_heads, which).topk(min(HOP_CANDIDATES, len(corpus)), dim=1).indices
            weights = log_heads.gather(2, found[:, None].expand(-1, head.heads, -1)).softmax(-1)
            queries = self._hop(head, queries, weights, found, corpus, further, taken, hop_strength)
            log_heads, _ = self._log_heads(head, queries, corpus, further, keyword)
        return self._mixed(head, log_heads, which).topk(depth, dim=1).indices.cpu().numpy()

    def _log_heads(
        self,
        head: Head,
        queries: Float[Tensor, "batch heads key_dim"],
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
        keyword: Float[Tensor, "batch documents"] | None,
    ) -> tuple[Float[Tensor, "batch heads documents"], Int64[Tensor, "batch heads documents"] | None]:
        """log softmax, and the passage of each document that it is of; None where each has but one."""
        folded, taken = head.fold(queries), None
        scores = folded @ corpus.T
        if further is not None:
            scores, taken = further.taken(folded, scores)
        if keyword is not None:
            scores = scores + head.keyword_weight[:, None] * keyword[:, None]
        return (scores / head.temperature).log_softmax(-1), taken

    def _hop(
        self,
        head: Head,
        queries: Float[Tensor, "batch heads key_dim"],
        weights: Float[Tensor, "batch heads found"],
        found: Int64[Tensor, "batch found"],
        corpus: Float[Tensor, "documents encoder_dim"],
        further: FurtherPassages | None,
        taken: Int64[Tensor, "batch heads documents"] | None,
        strength: float,
    ) -> Float[Tensor, "batch heads key_dim"]:
        if taken is None or further is None:
            return refine(queries, weights, head.keys(corpus[found]), strength)
        best = taken.gather(2, found[:, None].expand(-1, head.heads, -1)).cpu()
        keys = head.keys(further.beside(corpus).cpu()[best].to(queries))
        return refine(queries.unsqueeze(2), weights.unsqueeze(2), keys, strength).squeeze(2)

    def _mixed(
        self,
        head: Head,
        log_heads: Float[Tensor, "batch heads documents"],
        which: Int64[Tensor, " batch"],
    ) -> Float[Tensor, "batch documents"]:
        mixed = (head.mixture.log()[:, None] + log_heads).logsumexp(1)
        if self._hidden is not None:
            mixed = mixed.masked_fill(self._hidden.to(mixed.device), -torch.inf)
        for row, query in enumerate([] if self.examples.hidden is None else which.tolist()):
            assert self.examples.hidden is not None
            mixed[row, torch.as_tensor(self.examples.hidden[query]).to(mixed.device)] = -torch.inf
        return mixed


class KeywordScores:
    """b(q, d) of examples' queries over the corpus, kept when they fit into memory."""

    def __init__(self, examples: Examples, device: str = "cpu"):
        self._examples, self._device = examples, device
        size = 4 * len(examples) * examples.snapshot.positions
        fits = size <= _KEYWORD_CACHE_BYTES
        self._kept = examples.snapshot.all_keyword_scores(examples.texts) if fits else None

    def __call__(self, batch: Int64[Tensor, " batch"]) -> Float[Tensor, "batch documents"]:
        """b(q, d) of the examples at these indices."""
        which = batch.numpy()
        if self._kept is not None:
            scores = self._kept[which]
        else:
            scores = self._examples.snapshot.all_keyword_scores([self._examples.texts[i] for i in which])
        return torch.as_tensor(scores).to(self._device)


def corpus_embeddings(snapshot: Snapshot) -> Float[Tensor, "documents encoder_dim"]:
    """The embeddings at all positions of a snapshot; deleted ones are zeros, which no query prefers."""
    every = np.concatenate([snapshot.generation.embeddings, snapshot.fresh.embeddings])
    if snapshot.excluded is not None:
        every[snapshot.excluded] = 0
    return torch.as_tensor(every)


def ndcg_at_10(
    top: Int64[np.ndarray, "queries depth"], relevant: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Float[np.ndarray, " queries"]:
    """nDCG@10 of each ranking; NaN where nothing is relevant."""
    if not relevant:
        return np.zeros(0)
    positions, grades = padded(relevant)
    gains = gains_of(top, positions, grades)
    ideal = -np.sort(-grades, axis=1)
    with np.errstate(invalid="ignore"):
        return ndcg(Judged(gains, ideal.astype(np.float64)), DEPTH)


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
