"""Fit γ of a second stage behind a tuned search; each query is answered by the γ of the others.

Nothing else is fitted: with a few dozen queries one number can be chosen, and ten weights cannot.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from dsearch.attention.late_interaction import FEATURES
from dsearch.attention.retrieval.head import Head
from dsearch.engine import UNTRAINED, Collection
from dsearch.engine.search.queries import tokens_of
from dsearch.engine.snapshot import QueryTokens
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.lists import lists_of
from dsearch.training.finetune.second_stage import (
    STRENGTHS,
    WAYS,
    FitMethod,
    TrainedStage,
    stage_record,
    stage_with,
)
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.gate.held_out import HeldOut
from dsearch.training.relevant import ndcg_at_10
from dsearch.training.tune import MOST_QUERIES, TunedSearch

MIN_QUERIES = 20
OF_STRENGTH = (WAYS[0], *(FitMethod(strength=of) for of in STRENGTHS))


@dataclass(frozen=True, slots=True)
class StrengthChoice:
    """Choices of γ.

    Attributes:
        way: by all queries.
        left_out: for each query the number of the way that the other queries choose.
    """

    way: FitMethod
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
    if len(examples) < MIN_QUERIES:
        return None
    lists = lists_of(examples, tokens, head, range(len(examples)))
    ranked = [lists.ranked(terms_of(way)) for way in OF_STRENGTH]
    values = np.stack([ndcg_at_10(of, examples.relevant) for of in ranked])
    choice = chosen_strength(values)
    held_out = HeldOut(examples, examples.subset([]))
    crossed = np.stack([ranked[number][row] for row, number in enumerate(choice.left_out)])
    before, after = held_out.answers_to(ranked[0]), held_out.answers_to(crossed)
    report = judge(before, after, gate, queries=lists.queries, seed=seed)
    stage = stage_with(terms_of(choice.way))
    record = stage_record(examples, lists, base, choice.way, stage, report, seed, started)
    return TrainedStage(base, stage, choice.way, report, record)


def chosen_strength(values: Float[np.ndarray, "ways queries"]) -> StrengthChoice:
    """Choose γ by the measures of each way: by all queries, and for each query by the others.

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
    clear = gains[of_all].mean() > gains[of_all].std() / np.sqrt(count)
    way = OF_STRENGTH[of_all] if clear else WAYS[0]
    return StrengthChoice(way, np.where(means[at] > error, best, 0).tolist())


def terms_of(way: FitMethod) -> Float[torch.Tensor, " terms"]:
    """(γ, 0) of a way without features."""
    terms = torch.zeros(1 + len(FEATURES))
    terms[0] = way.strength
    return terms
