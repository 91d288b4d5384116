"""Train a second stage behind a search of a training, fitted by stage_fit.py, and judge it.

Scores of the first stage have to be those of queries that it did not learn from. It is one of three searches:

    a head            each fold of its training is scored by the head (and the memory) that was trained
                      without it (`FoldHeads`). What is chosen and fitted on four parts of those queries
                      answers the fifth; the gate compares these answers with the first stage's
    a tuned search    only γ is fitted (`fit_strength`), and each query is answered by the γ of the others:
                      with a few dozen queries one number can be chosen, and ten weights cannot
    scope full        the encoder learned without the held-out queries, so the stage is fitted to these over
                      the documents as that encoder sees them; documents that it learned by count as seen. It
                      becomes part of the same version, for tokens belong to their encoder
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64

from dsearch.attention.late_interaction import FEATURES, RerankerIdentity
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import LearningEncoder, TextTokens
from dsearch.engine import UNTRAINED, Collection, EncodedDocuments, Snapshot
from dsearch.engine.models.documents import encoded_state
from dsearch.engine.models.training_record import query_statistics
from dsearch.engine.search.queries import tokens_of
from dsearch.engine.snapshot import NONE, QueryTokens, query_tokens
from dsearch.search_options import RERANK_CANDIDATES
from dsearch.training.candidate import StageCandidate
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.stage_fit import (
    FOLDS,
    METHODS,
    STRENGTHS,
    CandidateLists,
    FitMethod,
    chosen_method,
    fitted,
    lists_of,
    stage_with,
)
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, HeldOut, is_clear, joined, split_folds
from dsearch.training.relevant import ndcg_at_10
from dsearch.training.tune import MOST_QUERIES, TunedSearch

SCOPE = "second stage"  # of its record
MIN_QUERIES = 40


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStage(StageCandidate):
    """A second stage, fitted on all queries, and its evaluation.

    Attributes:
        base: the search that it follows: "start", "tuned" or "head".
        method: how it was fitted.
        gate: report on held-out queries, against that search alone.
    """

    base: str
    method: FitMethod
    gate: GateReport


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
    report = judge(before, after, gate, seed=seed)
    method = chosen_method(lists, examples, seed)
    stage = stage_with(fitted(lists, method), reranker if method.reranked else None)
    return _trained_stage(examples, lists, base, method, stage, report, seed, started)


def _trained_stage(
    examples: Examples,
    lists: CandidateLists,
    base: str,
    method: FitMethod,
    stage: SecondStage,
    report: GateReport,
    seed: int,
    started: float,
) -> TrainedStage:
    """A second stage with its record; `started`: `time.monotonic()` of then."""
    record = {
        "scope": SCOPE,
        "examples": len(lists),
        "data_sha256": examples.digest,
        "training_queries": query_statistics(examples.states),
        "second_stage": {
            "base": base,
            "rerank_candidates": RERANK_CANDIDATES,
            "way": method._asdict(),
            "strength": stage.strength.item(),
            "features": dict(zip(FEATURES, stage.feature_weights.tolist(), strict=True)),
            "reranker": None if stage.reranker is None else list(stage.reranker),
            "reranker_weight": None if stage.reranker_weight is None else stage.reranker_weight.item(),
        },
        "gate": report.to_dict(),
        "seed": seed,
        "seconds": round(time.monotonic() - started, 2),
    }
    return TrainedStage(stage=stage, record=record, base=base, method=method, gate=report)


def stage_in_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a training's second stage: its fit, its verdict and the reason, and both in `text`."""
    about, gate = record["second_stage"], record["gate"]
    method = FitMethod(**about["way"])
    how = "no second stage" if method == METHODS[0] else _described(method)
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
        weights = fitted(training, chosen_method(training, examples, seed))
        befores.append(held_out.answers_to(mine.ranked(torch.zeros_like(weights))))
        afters.append(held_out.answers_to(mine.ranked(weights)))
        places += part
    order = np.argsort(np.array(places))
    return joined(befores).subset(order), joined(afters).subset(order)


def _parts(lists: CandidateLists, examples: Examples, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    covered = examples.subset(lists.queries.tolist())
    every = set(range(len(lists)))
    for part in split_folds(covered, FOLDS, seed):
        if part:
            yield part, sorted(every - set(part))


def _described(method: FitMethod) -> str:
    return f"strength {method.strength:g}" if method.pull is None else f"linear, pull {method.pull:g}"


FEWEST_FOR_STRENGTH = 20
STRENGTH_METHODS = (METHODS[0], *(FitMethod(strength=of) for of in STRENGTHS))


@dataclass(frozen=True, slots=True)
class StrengthChoice:
    """Choices of γ.

    Attributes:
        method: by all queries.
        left_out: for each query the number of the method that the other queries choose.
    """

    method: FitMethod
    left_out: list[int]


def strength_behind(
    collection: Collection, tuned: TunedSearch, examples: Examples, *, gate: Gate, seed: int
) -> TrainedStage | None:
    """Fit γ behind what answers after a tuning; None without tokens, and with too few queries."""
    base = "tuned" if tuned.gate.passed else "start" if collection.live_model == UNTRAINED else None
    if base is None or examples.snapshot.tokens is None:
        return None
    if len(examples) > MOST_QUERIES:
        drawn = np.random.default_rng(seed).permutation(len(examples))[:MOST_QUERIES]
        examples = examples.subset(np.sort(drawn).tolist())
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    head = tuned.head if base == "tuned" else collection.head(UNTRAINED)
    return fit_strength(examples, tokens, head, base, gate=gate, seed=seed)


def fit_strength(
    examples: Examples,
    tokens: Sequence[QueryTokens],
    head: Head,
    base: str,
    *,
    gate: Gate | None = None,
    seed: int = 0,
) -> TrainedStage | None:
    """Fit γ behind a head; None with too few queries.

    Args:
        examples: judged queries.
        tokens: of each.
        head: the search that it follows, of a few scalars at most.
        base: its name in the record: "start" or "tuned".
        gate: requirements.
        seed: random seed of the gate.
    """
    started = time.monotonic()
    if len(examples) < FEWEST_FOR_STRENGTH:
        return None
    lists = lists_of(examples, tokens, head, range(len(examples)))
    ranked = [lists.ranked(terms_of(method)) for method in STRENGTH_METHODS]
    values = np.stack([ndcg_at_10(of, examples.relevant) for of in ranked])
    choice = chosen_strength(values)
    held_out = HeldOut(examples, examples.subset([]))
    crossed = np.stack([ranked[number][row] for row, number in enumerate(choice.left_out)])
    before, after = held_out.answers_to(ranked[0]), held_out.answers_to(crossed)
    report = judge(before, after, gate, seed=seed)
    stage = stage_with(terms_of(choice.method))
    return _trained_stage(examples, lists, base, choice.method, stage, report, seed, started)


def chosen_strength(values: Float[np.ndarray, "methods queries"]) -> StrengthChoice:
    """Choose γ by the measures of each method: by all queries, and for each query by the others.

    The best on average, if it gains more than its standard error over no second stage.
    """
    gains = values - values[:1]
    count = values.shape[1]
    others = max(1, count - 1)
    means = (gains.sum(1, keepdims=True) - gains) / others
    squares = (np.square(gains).sum(1, keepdims=True) - np.square(gains)) / others
    best = means.argmax(0)
    at = (best, np.arange(count))
    error = np.sqrt(np.maximum(squares[at] - means[at] ** 2, 0.0) / others)
    of_all = int(gains.mean(1).argmax())
    method = STRENGTH_METHODS[of_all] if is_clear(gains[of_all]) else METHODS[0]
    return StrengthChoice(method, np.where(means[at] > error, best, 0).tolist())


def terms_of(method: FitMethod) -> Float[torch.Tensor, " terms"]:
    """(γ, 0) of a method without features."""
    terms = torch.zeros(1 + len(FEATURES))
    terms[0] = method.strength
    return terms


_BASE = "head"


def train_stage_of_full(
    collection: Collection,
    examples: Examples,
    held_out: Sequence[int],
    encoder: LearningEncoder,
    documents: EncodedDocuments,
    head: Head,
    *,
    gate: Gate | None,
    seed: int,
) -> TrainedStage | None:
    """Fit a second stage to follow a trained encoder; None without tokens, or with too few queries.

    The documents are built in a temporary folder, as large as their generation will be.

    Args:
        collection: of the documents.
        examples: judged queries, those that the encoder learned by among them.
        held_out: indices of those that it did not learn by.
        encoder: the trained one.
        documents: encoded by it, with their tokens.
        head: ranks by its embeddings.
        gate: requirements.
        seed: random seed of the folds.
    """
    if documents.tokens is None or not held_out:
        return None
    texts = [examples.texts[at] for at in held_out]
    states, raw = encoder.encode_tokens(texts, "query")
    learned = sorted(set(range(len(examples))) - set(held_out))
    mine = replace(examples.subset([*held_out, *learned]), cache=None)
    mine.states[: len(held_out)] = states
    own = range(len(held_out))
    with TemporaryDirectory() as folder:
        state = encoded_state(Path(folder), collection.store, documents, encoder.identity)
        over = _over(mine, state)
        tokens = [query_tokens(of, text, over.snapshot) for of, text in zip(raw, texts, strict=True)]
        fold = FoldHeads(list(own), {_BASE: head})
        return train_second_stage(
            over, tokens, [fold], _BASE, gate=gate, seed=seed, learned=range(len(own), len(mine))
        )


def _over(examples: Examples, state: Snapshot) -> Examples:
    """The examples over another state with the same documents, whose positions differ."""

    def moved(positions: Int64[np.ndarray, " _"]) -> Int64[np.ndarray, " _"]:
        return state.positions_of(examples.snapshot.rows(positions))

    relevant = [(moved(at), grades) for at, grades in examples.relevant]
    relevant = [(at[at != NONE], grades[at != NONE]) for at, grades in relevant]
    hidden = None if examples.hidden is None else [moved(at) for at in examples.hidden]
    return replace(examples, snapshot=state, relevant=relevant, hidden=hidden)
