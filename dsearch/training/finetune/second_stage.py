"""Fit a second stage (attention/retrieval/second_stage.py) on judged queries, and judge it.

    l(q, d) = β (s₁(q, d) + γ M + Σ u x) over the best candidates of the first stage

is linear in (γ, u), which are pulled towards (0, 0), where hybrid search answers as before; β is free, for
the order does not depend on it. First γ alone is tried on a grid, then the linear model with several pulls;
other queries choose among them. A reranker's score is one more feature; it has to bring more than its
standard error over the best that goes without.

Scores of the first stage have to be those of queries that it did not learn from, so each fold of the training
is scored by the head (and the memory) that was trained without it (`FoldHeads`). What is chosen and fitted on
four parts of those queries answers the fifth; the gate compares these answers with the first stage's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.late_interaction import FEATURES, START_STRENGTH, RerankerIdentity
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import TextTokens
from dsearch.engine.models.training_record import query_statistics
from dsearch.engine.snapshot import QueryTokens, query_tokens
from dsearch.search_options import RERANK_CANDIDATES
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.choice_model import fit_choice
from dsearch.training.finetune.lists import CandidateLists, lists_of
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, HeldOut, joined, split_folds
from dsearch.training.relevant import ndcg_at_10

SCOPE = "second stage"  # of its record
STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5)
PULLS = (0.03, 0.1, 0.3, 1.0)
MIN_QUERIES = 40
_FOLDS = 5


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
WAYS = (FitMethod(), *(FitMethod(strength=of) for of in STRENGTHS), *(FitMethod(pull=of) for of in PULLS))
RERANKED_WAYS = tuple(FitMethod(pull=of, reranked=True) for of in PULLS)


class OwnQueries(NamedTuple):
    """Queries of a fold by an encoder that learned without them.

    Attributes:
        states: embeddings.
        tokens: of each.
    """

    states: Float[np.ndarray, "queries encoder_dim"]
    tokens: list[TextTokens]


@dataclass(frozen=True, slots=True)
class FoldHeads:
    """The heads of one fold: each search that may go live, learned without these queries.

    Attributes:
        queries: indices of the fold's queries.
        heads: by the name of the candidate: "start", "tuned", "head".
        own: the queries as "head" sees them; None for the collection's encoder.
    """

    queries: list[int]
    heads: dict[str, Head]
    own: OwnQueries | None = None

    def seen_by(
        self, base: str, examples: Examples, tokens: Sequence[QueryTokens]
    ) -> tuple[Examples, Sequence[QueryTokens]]:
        """All examples and tokens, with the fold's queries as the encoder of a candidate sees them."""
        if self.own is None or base != "head":
            return examples, tokens
        states, tokens = examples.states.copy(), list(tokens)
        for place, at in enumerate(self.queries):
            states[at] = self.own.states[place]
            tokens[at] = query_tokens(self.own.tokens[place], examples.texts[at], examples.snapshot)
        return replace(examples, states=states), tokens


def fitted(lists: CandidateLists, way: FitMethod) -> Float[Tensor, " terms"]:
    """(γ, u, v) by these queries.

    A reranker whose weight would be below 0 has none, and the others are fitted without it.
    """
    open_to = torch.ones(lists.features.shape[2])
    if lists.reranked and not way.reranked:
        open_to[-1] = 0.0
    weights = _fitted(lists, way, open_to)
    if lists.reranked and weights[-1] < 0:
        open_to[-1] = 0.0
        weights = _fitted(lists, way, open_to)
    return weights


def _fitted(
    lists: CandidateLists, way: FitMethod, open_to: Float[Tensor, " terms"]
) -> Float[Tensor, " terms"]:
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
    target = grades / grades.sum(1, keepdim=True)
    # Constants of a query cancel in the softmax; on a common scale one pull serves all.
    inputs, of_features = _standardised(features, present)
    inputs = inputs * open_to
    of_first, of_scores = _standardised(scores.nan_to_num(neginf=0.0)[..., None], present)
    weights = fit_choice(
        of_first[..., 0].numpy(), inputs.numpy(), present[..., 0].numpy(), target.numpy(), way.pull
    )
    return (torch.as_tensor(weights) * open_to / of_features * of_scores).float()


def _standardised(values: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Values less their mean of the query, by their deviation; and that."""
    centred = torch.where(present, values - _means(values, present), 0.0)
    deviation = (centred.square().sum((0, 1)) / present.sum()).sqrt().clamp_min(1e-4)
    return centred / deviation, deviation


def _means(features: Tensor, present: Tensor) -> Tensor:
    return (features * present).sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp_min(1)


def chosen_way(lists: CandidateLists, examples: Examples, seed: int) -> FitMethod:
    """The way that answers other queries best; none where it gains less than its standard error.

    One with a reranker has to gain more than that over the best without it.
    """
    fold = np.random.default_rng([seed, 3]).permutation(len(lists)) % _FOLDS
    ways = (*WAYS, *RERANKED_WAYS) if lists.reranked else WAYS
    values = np.zeros((len(ways), len(lists)))
    for number in range(_FOLDS):
        mine, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        part, rest = lists.subset(mine), lists.subset(others)
        relevant = [examples.relevant[i] for i in part.queries]
        for row, way in enumerate(ways):
            values[row, mine] = ndcg_at_10(part.ranked(fitted(rest, way)), relevant)
    best = int(values[: len(WAYS)].mean(1).argmax())
    best = best if _is_clear(values[best] - values[0]) else 0
    if lists.reranked:
        other = len(WAYS) + int(values[len(WAYS) :].mean(1).argmax())
        best = other if _is_clear(values[other] - values[best]) else best
    return ways[best]


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
    way: FitMethod
    gate: GateReport
    record: dict[str, Any]

    @property
    def passed(self) -> bool:
        """True if it may go live."""
        return self.gate.passed


def train_second_stage(
    examples: Examples,
    tokens: Sequence[QueryTokens],
    folds: Sequence[FoldHeads],
    base: str,
    *,
    gate: Gate | None = None,
    seed: int = 0,
    reranker: RerankerIdentity | None = None,
    learned: Sequence[int] = (),
) -> TrainedStage | None:
    """Fit a second stage to follow one of the searches of a training; None with too few queries.

    Args:
        examples: judged queries.
        tokens: of each.
        folds: heads that did not learn from their queries.
        base: which of those heads.
        gate: requirements.
        seed: random seed of the folds.
        reranker: a model whose score is a feature, where held-out queries gain by it.
        learned: further examples, which all heads have learned: documents relevant to them are seen.
    """
    started = time.monotonic()
    of_folds = [
        lists_of(*fold.seen_by(base, examples, tokens), fold.heads[base], fold.queries, reranker)
        for fold in folds
        if base in fold.heads
    ]
    if sum(map(len, of_folds)) < MIN_QUERIES:
        return None
    lists = CandidateLists.joined(of_folds)
    before, after = _crossed(lists, examples, seed, learned)
    report = judge(before, after, gate, queries=lists.queries, seed=seed)
    way = chosen_way(lists, examples, seed)
    stage = stage_with(fitted(lists, way), reranker if way.reranked else None)
    record = stage_record(examples, lists, base, way, stage, report, seed, started)
    return TrainedStage(base, stage, way, report, record)


def stage_record(
    examples: Examples,
    lists: CandidateLists,
    base: str,
    way: FitMethod,
    stage: SecondStage,
    report: GateReport,
    seed: int,
    started: float,
) -> dict[str, Any]:
    """The record of a second stage; `started`: `time.monotonic()` of then."""
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
            "reranker": None if stage.reranker is None else list(stage.reranker),
            "reranker_weight": None if stage.reranker_weight is None else stage.reranker_weight.item(),
        },
        "gate": report.to_dict(),
        "seed": seed,
        "seconds": round(time.monotonic() - started, 2),
    }


def stage_in_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a training's second stage: its fit, its verdict and the reason, and both in `text`."""
    about, gate = record["second_stage"], record["gate"]
    way = FitMethod(**about["way"])
    how = "no second stage" if way == WAYS[0] else _described(way)
    if about.get("reranker"):
        how += f", reranker {about['reranker'][0]} {about['reranker_weight']:+.4g}"
    return {
        "verdict": gate["verdict"],
        "reason": gate["reason"],
        "text": f"second stage ({how}): {gate['verdict']}: {gate['reason']}",
        "after": about["base"],
        "strength": about["strength"],
        "features": about["features"],
        "reranker": None if not about.get("reranker") else about["reranker"][0],
        "gate": gate,
    }


def stage_with(weights: Float[Tensor, " terms"], reranker: RerankerIdentity | None = None) -> SecondStage:
    """A second stage with these weights."""
    stage = SecondStage(strength=weights[0].item(), reranker=reranker)
    with torch.no_grad():
        stage.feature_weights.copy_(weights[1 : 1 + len(FEATURES)])
        if stage.reranker_weight is not None:
            stage.reranker_weight.copy_(weights[-1])
    return stage.eval()


def _crossed(
    lists: CandidateLists, examples: Examples, seed: int, learned: Sequence[int]
) -> tuple[Answers, Answers]:
    """Answers without a second stage, and each part's by what the other parts choose and fit."""
    befores: list[Answers] = []
    afters: list[Answers] = []
    places: list[int] = []
    for part, rest in _parts(lists, examples, seed):
        training, mine = lists.subset(rest), lists.subset(part)
        taught = examples.subset([*training.queries.tolist(), *learned])
        held_out = HeldOut(examples.subset(mine.queries.tolist()), taught)
        weights = fitted(training, chosen_way(training, examples, seed))
        befores.append(held_out.answers_to(mine.ranked(torch.zeros_like(weights))))
        afters.append(held_out.answers_to(mine.ranked(weights)))
        places += part
    order = np.argsort(np.array(places))
    return joined(befores).subset(order), joined(afters).subset(order)


def _is_clear(gains: Float[np.ndarray, " queries"]) -> bool:
    """True if the mean is above its standard error."""
    return len(gains) > 0 and bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def _parts(lists: CandidateLists, examples: Examples, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    covered = examples.subset(lists.queries.tolist())
    every = set(range(len(lists)))
    for part in split_folds(covered, _FOLDS, seed):
        if part:
            yield part, sorted(every - set(part))


def _described(way: FitMethod) -> str:
    return f"strength {way.strength:g}" if way.pull is None else f"linear, pull {way.pull:g}"
