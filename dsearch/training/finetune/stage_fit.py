"""Fit a second stage (attention/retrieval/second_stage.py) to candidates of judged queries.

    l(q, d) = β (s₁(q, d) + γ M + Σ u x) over the best candidates of the first stage

is linear in (γ, u), which are pulled towards (0, 0), where hybrid search answers as before; β is free, for
the order does not depend on it. First γ alone is tried on a grid, then the linear model with several pulls;
other queries choose among them. A reranker's score is one more feature; it has to bring more than its
standard error over the best that goes without.

`fit_choice` fits the linear model: weights with a ridge, and a steepness without one.

    minimise  −Σ_q Σ_d y(q, d) log softmax_d e^θ (s(q, d) + w · x(q, d)) / queries + λ |w|²   over (w, θ)

θ is free of the ridge: with a temperature of its own, no feature has to stand in for another one. The loss
is not convex in (w, θ) together, so Newton steps go down along directions of negative curvature too
(saddle-free Newton: Dauphin et al., NeurIPS 2014). torch.optim.LBFGS ends in the same minimum after several
times as long, and loads torch's compiler first, for seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dsearch.attention.late_interaction import FEATURES, START_STRENGTH, RerankerIdentity
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
from dsearch.training.gate.held_out import drawn_parts, is_clear
from dsearch.training.relevant import Relevant, ndcg_at_10

STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5)
PULLS = (0.03, 0.1, 0.3, 1.0)
FOLDS = 5

_STEPS = 40
_SLOPE, _FALL = 1e-7, 1e-9  # the largest slope of a minimum, and the least fall of a further step
_NO_LOSS = 1e-6  # judgements without an error have no minimum: w goes to 0 as θ to infinity
_LEAST_CURVATURE = 1e-10
_LONGEST_STEP = 2.0
_HALVINGS = 30

Point = Float[np.ndarray, " terms_and_1"]


def fit_choice(
    scores: Float[np.ndarray, "queries candidates"],
    inputs: Float[np.ndarray, "queries candidates terms"],
    present: Bool[np.ndarray, "queries candidates"],
    target: Float[np.ndarray, "queries candidates"],
    ridge: float,
) -> Float[np.ndarray, " terms"]:
    """w, from zero weights and a steepness of 1.

    Args:
        scores: s, of weight 1.
        inputs: x; finite for absent candidates too.
        present: which candidates a query has.
        target: y, of sum 1 for each query; 0 for absent candidates.
        ridge: λ, above 0.
    """
    model = _Choice(scores, inputs, present, target, ridge)
    point = np.zeros(inputs.shape[2] + 1)
    loss = model.loss(point)
    for _ in range(_STEPS):
        slope, curvature = model.derivatives(point)
        if np.abs(slope).max() < _SLOPE:
            break
        values, vectors = np.linalg.eigh(curvature)
        size = np.maximum(np.abs(values), _LEAST_CURVATURE)
        step = -vectors @ (vectors.T @ slope / size)
        step *= min(1.0, _LONGEST_STEP / np.linalg.norm(step))
        for _ in range(_HALVINGS):
            lower = model.loss(point + step)
            if lower <= loss + 1e-4 * float(slope @ step):
                break
            step /= 2
        else:
            break  # as low as numbers go
        point, fall, loss = point + step, loss - lower, lower
        if fall < _FALL or loss < _NO_LOSS:
            break
    return point[:-1]


class _Choice:
    """The loss and its derivatives at a point (w, θ); arguments as those of `fit_choice`."""

    def __init__(
        self,
        scores: Float[np.ndarray, "queries candidates"],
        inputs: Float[np.ndarray, "queries candidates terms"],
        present: Bool[np.ndarray, "queries candidates"],
        target: Float[np.ndarray, "queries candidates"],
        ridge: float,
    ):
        self._scores, self._inputs, self._target, self._ridge = scores, inputs, target, ridge
        self._barred = np.where(present, 0.0, -np.inf)

    def loss(self, point: Point) -> float:
        logits = self._logits(point) + self._barred
        logits -= logits.max(1, keepdims=True)
        log_share = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        chosen = self._target > 0
        lost = -(self._target[chosen] * log_share[chosen]).sum() / len(logits)
        return float(lost + self._ridge * (point[:-1] ** 2).sum())

    def derivatives(self, point: Point) -> tuple[Point, Float[np.ndarray, "terms_and_1 terms_and_1"]]:
        """Slope and curvature."""
        terms, queries = len(point), len(self._scores)
        logits = self._logits(point)
        share = np.exp(logits + self._barred - (logits + self._barred).max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        # Of each logit z: ∂z/∂w = e^θ x, ∂z/∂θ = z, and ∂²z/∂w∂θ = e^θ x, ∂²z/∂θ² = z.
        of_logits = np.concatenate([np.exp(point[-1]) * self._inputs, logits[..., None]], axis=2)
        slope = ((share - self._target) / queries).ravel() @ of_logits.reshape(-1, terms)
        of_logits -= np.einsum("qd,qdt->qt", share, of_logits)[:, None]
        weighted = (of_logits * (share / queries)[..., None]).reshape(-1, terms)
        curvature = weighted.T @ of_logits.reshape(-1, terms)
        curvature[-1, :-1] += slope[:-1]
        curvature[:-1, -1] += slope[:-1]
        curvature[-1, -1] += slope[-1]
        pulled = np.arange(terms - 1)
        curvature[pulled, pulled] += 2 * self._ridge
        slope[:-1] += 2 * self._ridge * point[:-1]
        return slope, curvature

    def _logits(self, point: Point) -> Float[np.ndarray, "queries candidates"]:
        return np.exp(point[-1]) * (self._scores + self._inputs @ point[:-1])


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


class FitMethod(NamedTuple):
    """Manner of fitting a second stage: γ as it is, or everything with this pull to nothing.

    Attributes:
        strength: γ.
        pull: of all weights; None leaves γ alone.
        reranked: whether a reranker has a weight.
    """

    strength: float = 0.0
    pull: float | None = None
    reranked: bool = False


TERMS_OF_UNTRAINED = torch.tensor([START_STRENGTH, *(0.0 for _ in FEATURES)])  # (γ, u)
METHODS = (FitMethod(), *(FitMethod(strength=of) for of in STRENGTHS), *(FitMethod(pull=of) for of in PULLS))
RERANKED_METHODS = tuple(FitMethod(pull=of, reranked=True) for of in PULLS)


def fitted(lists: CandidateLists, method: FitMethod) -> Float[Tensor, " terms"]:
    """(γ, u, v) by these queries.

    A reranker whose weight would be below 0 has none, and the others are fitted without it.
    """
    open_to = torch.ones(lists.features.shape[2])
    if lists.reranked and not method.reranked:
        open_to[-1] = 0.0
    weights = _fitted(lists, method, open_to)
    if lists.reranked and weights[-1] < 0:
        open_to[-1] = 0.0
        weights = _fitted(lists, method, open_to)
    return weights


def _fitted(
    lists: CandidateLists, method: FitMethod, open_to: Float[Tensor, " terms"]
) -> Float[Tensor, " terms"]:
    terms = lists.features.shape[2]
    start = torch.zeros(terms)
    if method.pull is None:
        start[0] = method.strength
        return start
    judged = torch.as_tensor(lists.grades.sum(1) > 0)
    if not judged.any():
        return start
    features, scores = lists.features[judged].double(), lists.scores[judged].double()
    present = (scores > -torch.inf)[..., None]
    grades = torch.as_tensor(lists.grades)[judged].double()
    target = grades / grades.sum(1, keepdim=True)
    # Constants of a query cancel in the softmax; on a common scale one pull serves all.
    inputs, of_features = _standardised(features, present)
    inputs = inputs * open_to
    of_first, of_scores = _standardised(scores.nan_to_num(neginf=0.0)[..., None], present)
    weights = fit_choice(
        of_first[..., 0].numpy(), inputs.numpy(), present[..., 0].numpy(), target.numpy(), method.pull
    )
    return (torch.as_tensor(weights) * open_to / of_features * of_scores).float()


def _standardised(values: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Values less their mean of the query, by their deviation; and that."""
    centred = torch.where(present, values - _means(values, present), 0.0)
    deviation = (centred.square().sum((0, 1)) / present.sum()).sqrt().clamp_min(1e-4)
    return centred / deviation, deviation


def _means(features: Tensor, present: Tensor) -> Tensor:
    return (features * present).sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp_min(1)


def chosen_method(lists: CandidateLists, examples: Examples, seed: int) -> FitMethod:
    """The method that answers other queries best; none where it gains less than its standard error.

    One with a reranker has to gain more than that over the best without it.
    """
    methods = (*METHODS, *RERANKED_METHODS) if lists.reranked else METHODS
    values = np.zeros((len(methods), len(lists)))
    for drawn in drawn_parts(len(lists), FOLDS, seed, 3):
        mine, others = np.flatnonzero(drawn), np.flatnonzero(~drawn)
        part, rest = lists.subset(mine), lists.subset(others)
        relevant = [examples.relevant[i] for i in part.queries]
        for row, method in enumerate(methods):
            values[row, mine] = ndcg_at_10(part.ranked(fitted(rest, method)), relevant)
    best = int(values[: len(METHODS)].mean(1).argmax())
    best = best if is_clear(values[best] - values[0]) else 0
    if lists.reranked:
        other = len(METHODS) + int(values[len(METHODS) :].mean(1).argmax())
        best = other if is_clear(values[other] - values[best]) else best
    return methods[best]


def stage_with(weights: Float[Tensor, " terms"], reranker: RerankerIdentity | None = None) -> SecondStage:
    """A second stage with these weights."""
    stage = SecondStage(strength=weights[0].item(), reranker=reranker)
    with torch.no_grad():
        stage.feature_weights.copy_(weights[1 : 1 + len(FEATURES)])
        if stage.reranker_weight is not None:
            stage.reranker_weight.copy_(weights[-1])
    return stage.eval()
