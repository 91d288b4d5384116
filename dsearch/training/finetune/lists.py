"""The candidates of judged queries with what both stages say of them, to fit a second stage on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.late_interaction import FEATURES, RerankerIdentity
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.second_stage import (
    CandidateEvidence,
    FirstStage,
    Reranker,
    features_of,
    neutral,
    reranker_scores,
)
from dsearch.engine.snapshot import NONE, QueryTokens
from dsearch.search_options import RERANK_CANDIDATES
from dsearch.training.data.examples import Examples
from dsearch.training.relevant import Relevant

_AT_A_TIME = 16


@dataclass(frozen=True, slots=True, eq=False)
class CandidateLists:
    """The candidates of some queries.

    Attributes:
        positions: the best of the first stage, best first; −1 behind.
        scores: t · l of the first stage.
        features: M, then `FEATURES` and, with a reranker, its score.
        grades: of each candidate.
        ideal: grades of all relevant documents of each query; 0 behind.
        temperature: t of each query's head.
        queries: indices among all examples.
        reranked: whether the last feature is the score of a reranker.
    """

    positions: Int64[np.ndarray, "queries candidates"]
    scores: Float[Tensor, "queries candidates"]
    features: Float[Tensor, "queries candidates terms"]
    grades: Float[np.ndarray, "queries candidates"]
    temperature: Float[Tensor, " queries"]
    queries: Int64[np.ndarray, " queries"]
    reranked: bool = False

    def __len__(self) -> int:
        return len(self.positions)

    def subset(self, which: Sequence[int] | Int64[np.ndarray, " some"]) -> CandidateLists:
        """Those of some queries."""
        at = np.asarray(which, np.int64)
        rows = torch.as_tensor(at)
        return CandidateLists(
            self.positions[at],
            self.scores[rows],
            self.features[rows],
            self.grades[at],
            self.temperature[rows],
            self.queries[at],
            self.reranked,
        )

    def ranked(self, weights: Float[Tensor, " terms"]) -> Int64[np.ndarray, "queries candidates"]:
        """Positions in the order of the second stage."""
        order = (self.scores + self.features @ weights).sort(dim=1, descending=True, stable=True).indices
        return np.take_along_axis(self.positions, order.numpy(), 1)

    @classmethod
    def joined(cls, parts: Sequence[CandidateLists]) -> CandidateLists:
        """All of them."""
        width = max(part.positions.shape[1] for part in parts)
        wide = [part.padded(width) for part in parts]
        return cls(
            np.concatenate([part.positions for part in wide]),
            torch.cat([part.scores for part in wide]),
            torch.cat([part.features for part in wide]),
            np.concatenate([part.grades for part in wide]),
            torch.cat([part.temperature for part in wide]),
            np.concatenate([part.queries for part in wide]),
            wide[0].reranked,
        )

    def padded(self, width: int) -> CandidateLists:
        """These with −1 behind, up to a width."""
        more = width - self.positions.shape[1]
        return CandidateLists(
            np.pad(self.positions, ((0, 0), (0, more)), constant_values=NONE),
            torch.nn.functional.pad(self.scores, (0, more), value=-torch.inf),
            torch.nn.functional.pad(self.features, (0, 0, 0, more)),
            np.pad(self.grades, ((0, 0), (0, more))),
            self.temperature,
            self.queries,
            self.reranked,
        )


@torch.no_grad()
def lists_of(
    examples: Examples,
    tokens: Sequence[QueryTokens],
    head: Head,
    queries: Sequence[int],
    model: RerankerIdentity | None = None,
) -> CandidateLists:
    """The candidates of some queries by a head that did not learn from them.

    Args:
        examples: judged queries.
        tokens: of each.
        head: ranks the candidates.
        queries: numbers of the queries.
        model: a reranker whose score is a feature.
    """
    at = np.asarray(queries, np.int64)
    layer = SearchLayer(examples.snapshot, head.reranking(None))
    parts = [
        _block(examples, tokens, layer, at[start : start + _AT_A_TIME], model)
        for start in range(0, len(at), _AT_A_TIME)
    ]
    return CandidateLists.joined(parts)


def _block(
    examples: Examples,
    tokens: Sequence[QueryTokens],
    layer: SearchLayer,
    at: Int64[np.ndarray, " some"],
    model: RerankerIdentity | None,
) -> CandidateLists:
    snapshot = layer.snapshot
    assert snapshot.tokens is not None
    reranker = Reranker(snapshot, SecondStage(reranker=model))
    texts = [examples.texts[i] for i in at]
    first_hits = layer.ranked(torch.as_tensor(examples.states[at]), texts)
    positions = first_hits.positions.copy()
    if examples.hidden is not None:
        for row, i in enumerate(at.tolist()):
            positions[row, np.isin(positions[row], examples.hidden[i])] = NONE
    scores = first_hits.scores.masked_fill(torch.as_tensor(positions == NONE), -torch.inf)
    words = torch.as_tensor(snapshot.keyword_scores(texts, positions))
    first = FirstStage(positions, first_hits.raw, scores, first_hits.dense, words)
    width = min(RERANK_CANDIDATES, positions.shape[1])
    of_positions = np.full((len(at), width), NONE, np.int64)
    of_scores = torch.full((len(at), width), -torch.inf)
    features = torch.zeros(len(at), width, 1 + len(FEATURES) + (model is not None))
    for row, columns in enumerate(reranker.best(first)):
        count = len(columns)
        of, present = reranker.interactions(tokens[at[row]], positions[row, columns], scores)
        matches = neutral(reranker.stage.matches(of), present)
        of_positions[row, :count] = positions[row, columns]
        of_scores[row, :count] = scores[row, torch.as_tensor(columns)]
        features[row, :count, 0] = matches.sharp
        embeddings = reranker.embeddings(positions[row, columns], scores)
        evidence = CandidateEvidence(matches, of.counts, embeddings)
        features[row, :count, 1 : 1 + len(FEATURES)] = features_of(first, row, columns, evidence)
        scored = reranker_scores(snapshot, reranker.stage, tokens[at[row]], positions[row, columns])
        if scored is not None:
            features[row, :count, -1] = torch.as_tensor(scored)
    gains = Relevant([examples.relevant[i] for i in at]).gains(of_positions)
    return CandidateLists(
        of_positions,
        of_scores,
        features,
        gains,
        layer.head.temperature.expand(len(at)).clone(),
        at,
        model is not None,
    )
