"""Fit a second stage (attention/retrieval/second_stage.py) on judged queries, and judge it.

    l(q, d) = β (s₁(q, d) + γ M + Σ u x) over the best candidates of the first stage

is linear in (γ, u), which are pulled towards (0, 0), where hybrid search answers as before; β is free, for
the order does not depend on it. First γ alone is tried on a grid, then the linear model with several pulls;
other queries choose among them. W stays as it is: a matrix of 4,096 numbers has no place beside some hundred
queries.

Scores of the first stage have to be those of queries that it did not learn from, so each fold of the training
is scored by the head (and the memory) that was trained without it (`FoldHeads`). What is chosen and fitted on
four parts of those queries answers the fifth; the gate compares these answers with the first stage's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import FEATURES, START_STRENGTH, SecondStage
from dsearch.engine import Snapshot
from dsearch.engine.models.training_record import query_statistics
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.second_stage import (
    CandidateEvidence,
    FirstStage,
    QueryTokens,
    Reranker,
    features_of,
    neutral,
)
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.evaluation.near import NearCalibration, NearRows, StageScores, calibrate_near, near_evidence
from dsearch.search_options import RERANK_CANDIDATES
from dsearch.training.data.examples import Examples
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, HeldOut, joined, split_folds
from dsearch.training.relevant import Relevant, ndcg_at_10

SCOPE = "second stage"  # of its record
STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5)
PULLS = (0.03, 0.1, 0.3, 1.0)
MIN_QUERIES = 40
_FOLDS = 5
_AT_A_TIME = 16
_STEPS = 40


class Way(NamedTuple):
    """Manner of fitting a second stage: γ as it is, or everything with this pull to nothing."""

    strength: float = 0.0
    pull: float | None = None


TERMS_OF_UNTRAINED = torch.tensor([START_STRENGTH, *(0.0 for _ in FEATURES)])  # (γ, u)
WAYS = (Way(), *(Way(strength=of) for of in STRENGTHS), *(Way(pull=of) for of in PULLS))


@dataclass(frozen=True, slots=True)
class FoldHeads:
    """The heads of one fold: each search that may go live, learned without these queries.

    Attributes:
        queries: indices of the fold's queries.
        heads: by the name of the candidate: "start", "tuned", "head".
    """

    queries: list[int]
    heads: dict[str, Head]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The candidates of some queries.

    Attributes:
        positions: the best of the first stage, best first; −1 behind.
        scores: t · l of the first stage.
        features: M, then `FEATURES`.
        grades: of each candidate.
        ideal: grades of all relevant documents of each query; 0 behind.
        temperature: t of each query's head.
        queries: indices among all examples.
    """

    positions: Int64[np.ndarray, "queries candidates"]
    scores: Float[Tensor, "queries candidates"]
    features: Float[Tensor, "queries candidates terms"]
    grades: Float[np.ndarray, "queries candidates"]
    temperature: Float[Tensor, " queries"]
    queries: Int64[np.ndarray, " queries"]

    def __len__(self) -> int:
        return len(self.positions)

    def subset(self, which: Sequence[int] | Int64[np.ndarray, " some"]) -> Lists:
        """Those of some queries."""
        at = np.asarray(which, np.int64)
        rows = torch.as_tensor(at)
        return Lists(
            self.positions[at],
            self.scores[rows],
            self.features[rows],
            self.grades[at],
            self.temperature[rows],
            self.queries[at],
        )

    def ranked(self, weights: Float[Tensor, " terms"]) -> Int64[np.ndarray, "queries candidates"]:
        """Positions in the order of the second stage."""
        order = (self.scores + self.features @ weights).sort(dim=1, descending=True, stable=True).indices
        return np.take_along_axis(self.positions, order.numpy(), 1)

    @classmethod
    def joined(cls, parts: Sequence[Lists]) -> Lists:
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
        )

    def padded(self, width: int) -> Lists:
        """These with −1 behind, up to a width."""
        more = width - self.positions.shape[1]
        return Lists(
            np.pad(self.positions, ((0, 0), (0, more)), constant_values=NONE),
            torch.nn.functional.pad(self.scores, (0, more), value=-torch.inf),
            torch.nn.functional.pad(self.features, (0, 0, 0, more)),
            np.pad(self.grades, ((0, 0), (0, more))),
            self.temperature,
            self.queries,
        )


@torch.no_grad()
def lists_of(examples: Examples, tokens: Sequence[QueryTokens], head: Head, queries: Sequence[int]) -> Lists:
    """The candidates of some queries by a head that did not learn from them."""
    at = np.asarray(queries, np.int64)
    layer = SearchLayer(examples.snapshot, head.reranking(None))
    parts = [
        _block(examples, tokens, layer, at[start : start + _AT_A_TIME])
        for start in range(0, len(at), _AT_A_TIME)
    ]
    return Lists.joined(parts)


def _block(
    examples: Examples, tokens: Sequence[QueryTokens], layer: SearchLayer, at: Int64[np.ndarray, " some"]
) -> Lists:
    snapshot = layer.snapshot
    assert snapshot.tokens is not None
    reranker = Reranker(snapshot, SecondStage(snapshot.tokens.codec.dims))
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
    features = torch.zeros(len(at), width, 1 + len(FEATURES))
    for row, columns in enumerate(reranker.best(first)):
        count = len(columns)
        of, present = reranker.interactions(tokens[at[row]], positions[row, columns], scores)
        matches = neutral(reranker.stage.matches(of), present)
        of_positions[row, :count] = positions[row, columns]
        of_scores[row, :count] = scores[row, torch.as_tensor(columns)]
        features[row, :count, 0] = matches.sharp
        embeddings = reranker.embeddings(positions[row, columns], scores)
        evidence = CandidateEvidence(matches, of.counts, embeddings)
        features[row, :count, 1:] = features_of(first, row, columns, evidence)
    gains = Relevant([examples.relevant[i] for i in at]).gains(of_positions)
    return Lists(of_positions, of_scores, features, gains, layer.head.temperature.expand(len(at)).clone(), at)


def near_rows(lists: Lists, tokens: Sequence[QueryTokens], *, hidden: bool = False) -> NearRows:
    """Evidence of each query of whether it has an answer; `hidden`: its right documents taken out."""
    present = lists.positions != NONE
    if hidden:
        present &= lists.grades <= 0
    parts = lists.features.double().numpy()
    column = {name: parts[..., 1 + at] for at, name in enumerate(FEATURES)}
    scores = StageScores(
        lists.scores.nan_to_num(neginf=0.0).double().numpy(),
        column["dense"],
        column["keyword"],
        parts[..., 0],
        column["sum"],
        column["lead"],
        present,
        [tokens[at].weights for at in lists.queries],
    )
    return near_evidence(scores, START_STRENGTH)


def near_calibration(lists: Lists, tokens: Sequence[QueryTokens]) -> NearCalibration | None:
    """Fit "nothing fits" to these queries, with their right documents and without them."""
    answered = lists.subset(np.flatnonzero(lists.grades.sum(1) > 0))
    if not len(answered):
        return None
    return calibrate_near(near_rows(answered, tokens), near_rows(answered, tokens, hidden=True))


def fitted(lists: Lists, way: Way) -> Float[Tensor, " terms"]:
    """(γ, u) by these queries."""
    terms = lists.features.shape[2]
    start = torch.zeros(terms)
    if way.pull is None:
        start[0] = way.strength
        return start
    judged = torch.as_tensor(lists.grades.sum(1) > 0)
    if not judged.any():
        return start
    features, scores = lists.features[judged].double(), lists.scores[judged].double()
    present = (scores > -torch.inf)[..., None]
    grades = torch.as_tensor(lists.grades)[judged].double()
    target, pull = grades / grades.sum(1, keepdim=True), way.pull
    # Constants of a query cancel in the softmax; on a common scale one pull serves all.
    inputs, of_features = _standardised(features, present)
    of_first, of_scores = _standardised(scores.nan_to_num(neginf=0.0)[..., None], present)
    weights = torch.zeros(terms, dtype=torch.float64, requires_grad=True)
    # Free of the pull: with a temperature of its own, no feature has to stand in for another one.
    steepness = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights, steepness], max_iter=_STEPS, line_search_fn="strong_wolfe")
    missing = ~present[..., 0]

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = (of_first[..., 0] + inputs @ weights) * steepness.exp()
        log_share = logits.masked_fill(missing, -torch.inf).log_softmax(1)
        lost = -torch.where(target > 0, target * log_share, 0.0).sum(1).mean()
        value = lost + pull * weights.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)  # pyright: ignore[reportArgumentType]
    return (weights.detach() / of_features * of_scores).float()


def _standardised(values: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Values less their mean of the query, by their deviation; and that."""
    centred = torch.where(present, values - _means(values, present), 0.0)
    deviation = (centred.square().sum((0, 1)) / present.sum()).sqrt().clamp_min(1e-4)
    return centred / deviation, deviation


def _means(features: Tensor, present: Tensor) -> Tensor:
    return (features * present).sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp_min(1)


def chosen_way(lists: Lists, examples: Examples, seed: int) -> Way:
    """The way that answers other queries best; none where it gains less than its standard error."""
    fold = np.random.default_rng([seed, 3]).permutation(len(lists)) % _FOLDS
    values = np.zeros((len(WAYS), len(lists)))
    for number in range(_FOLDS):
        mine, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        part, rest = lists.subset(mine), lists.subset(others)
        relevant = [examples.relevant[i] for i in part.queries]
        for row, way in enumerate(WAYS):
            values[row, mine] = ndcg_at_10(part.ranked(fitted(rest, way)), relevant)
    gains = values - values[0]
    best = int(gains.mean(1).argmax())
    error = gains[best].std() / np.sqrt(len(lists))
    return WAYS[best] if gains[best].mean() > error else WAYS[0]


@dataclass(frozen=True, slots=True)
class TrainedStage:
    """A second stage and its evaluation.

    Attributes:
        base: the search that it follows: "start", "tuned" or "head".
        stage: fitted on all queries.
        way: how.
        gate: report on held-out queries, against that search alone.
        record: as JSON.
    """

    base: str
    stage: SecondStage
    way: Way
    gate: GateReport
    record: dict[str, Any]

    @property
    def passed(self) -> bool:
        """True if it may go live."""
        return self.gate.passed

    def to_text(self) -> str:
        """Lines for a terminal."""
        return stage_in_words(self.record)["text"]


def train_second_stage(
    examples: Examples,
    tokens: Sequence[QueryTokens],
    folds: Sequence[FoldHeads],
    base: str,
    *,
    gate: Gate | None = None,
    seed: int = 0,
) -> TrainedStage | None:
    """Fit a second stage to follow one of the searches of a training; None with too few queries.

    Args:
        examples: judged queries.
        tokens: of each.
        folds: heads that did not learn from their queries.
        base: which of those heads.
        gate: requirements.
        seed: random seed of the folds.
    """
    started = time.monotonic()
    of_folds = [
        lists_of(examples, tokens, fold.heads[base], fold.queries) for fold in folds if base in fold.heads
    ]
    if sum(map(len, of_folds)) < MIN_QUERIES:
        return None
    lists = Lists.joined(of_folds)
    before, after = _crossed(lists, examples, seed)
    report = judge(before, after, gate, queries=lists.queries, seed=seed)
    way = chosen_way(lists, examples, seed)
    stage = stage_with(examples.snapshot, fitted(lists, way))
    record = stage_record(examples, lists, tokens, base, way, stage, report, seed, started)
    return TrainedStage(base, stage, way, report, record)


def stage_record(
    examples: Examples,
    lists: Lists,
    tokens: Sequence[QueryTokens],
    base: str,
    way: Way,
    stage: SecondStage,
    report: GateReport,
    seed: int,
    started: float,
) -> dict[str, Any]:
    """The record of a second stage; `started`: `time.monotonic()` of then."""
    near = near_calibration(lists, tokens)
    return {
        "scope": SCOPE,
        "examples": len(lists),
        "data_sha256": examples.digest,
        "training_queries": query_statistics(examples.states),
        "second_stage": {
            "base": base,
            "rerank_candidates": RERANK_CANDIDATES,
            "way": way._asdict(),
            "strength": stage.strength.item(),
            "features": dict(zip(FEATURES, stage.feature_weights.tolist(), strict=True)),
        },
        "near": None if near is None else near.to_dict(),
        "gate": report.to_dict(),
        "seed": seed,
        "seconds": round(time.monotonic() - started, 2),
    }


def stage_in_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a training's second stage: its fit, its verdict and the reason, and both in `text`."""
    about, gate = record["second_stage"], record["gate"]
    way = Way(**about["way"])
    how = "no second stage" if way == WAYS[0] else _described(way)
    return {
        "verdict": gate["verdict"],
        "reason": gate["reason"],
        "text": f"second stage ({how}): {gate['verdict']}: {gate['reason']}",
        "after": about["base"],
        "strength": about["strength"],
        "features": about["features"],
        "gate": gate,
    }


def stage_with(snapshot: Snapshot, weights: Float[Tensor, " terms"]) -> SecondStage:
    """A second stage with these weights, for the tokens of a state."""
    assert snapshot.tokens is not None
    stage = SecondStage(snapshot.tokens.codec.dims, strength=weights[0].item())
    with torch.no_grad():
        stage.feature_weights.copy_(weights[1:])
    return stage.eval()


def _crossed(lists: Lists, examples: Examples, seed: int) -> tuple[Answers, Answers]:
    """Answers without a second stage, and each part's by what the other parts choose and fit."""
    befores: list[Answers] = []
    afters: list[Answers] = []
    places: list[int] = []
    for part, rest in _parts(lists, examples, seed):
        training, mine = lists.subset(rest), lists.subset(part)
        held_out = HeldOut(examples.subset(mine.queries.tolist()), examples.subset(training.queries.tolist()))
        weights = fitted(training, chosen_way(training, examples, seed))
        befores.append(held_out.answers_to(mine.ranked(torch.zeros_like(weights))))
        afters.append(held_out.answers_to(mine.ranked(weights)))
        places += part
    order = np.argsort(np.array(places))
    return joined(befores).subset(order), joined(afters).subset(order)


def _parts(lists: Lists, examples: Examples, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    covered = examples.subset(lists.queries.tolist())
    every = set(range(len(lists)))
    for part in split_folds(covered, _FOLDS, seed):
        if part:
            yield part, sorted(every - set(part))


def _described(way: Way) -> str:
    return f"strength {way.strength:g}" if way.pull is None else f"linear, pull {way.pull:g}"
