"""`tune`: the two numbers of a search without any projection: keyword weight and hop strength.

A few dozen judged queries suffice. Every setting of a grid is scored by exact ranking; what is told of the
chosen one is cross-validated: each fold is scored with what the other folds would choose. The grid holds
dense search alone (weight 0) and, but for ties, keyword search alone (the largest weight); where what is
chosen on other folds ends below the better of the two, that one is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from dsearch.attention.head import START_KEYWORD_WEIGHT, Head
from dsearch.errors import InvalidRequest
from dsearch.training.examples import Examples
from dsearch.training.gate import MEASURE, Gate, GateReport, judge
from dsearch.training.holdout import Answers
from dsearch.training.ranking import Ranking, ndcg_at_10

KEYWORDS_ALONE = 30.0  # similarities are within ±1: so large a weight leaves them the ties
KEYWORD_WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, START_KEYWORD_WEIGHT, 1.3, 1.7, 2.5, 5.0, KEYWORDS_ALONE)
HOP_STRENGTHS = (0.25, 0.5, 1.0, 2.0, 3.0)
MIN_QUERIES = 10
MOST_QUERIES = 400
_FOLDS = 5
_WEIGHTS_WITH_HOPS = 4  # hops are tried with so many of the best weights

Setting = tuple[float, float]
"""(keyword weight, hop strength)"""
DEFAULT: Setting = (START_KEYWORD_WEIGHT, 0.0)
DENSE: Setting = (0.0, 0.0)
KEYWORD: Setting = (KEYWORDS_ALONE, 0.0)
OnSetting = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Chosen settings as a head, and what is known of them.

    Attributes:
        head: untrained but for keyword weight and hop strength.
        setting: both.
        scores: mean nDCG@10 on the tuning queries of untuned, dense and keyword search, of the setting, and
            of settings chosen on other folds ("cross-validated").
        gate: the cross-validated answers against those of untuned search.
        seconds: it took.
        record: all of this as JSON, for the model's file.
    """

    head: Head
    setting: Setting
    scores: dict[str, float]
    gate: GateReport
    seconds: float
    record: dict[str, Any]


def tune(
    examples: Examples, *, gate: Gate | None = None, seed: int = 0, on_setting: OnSetting | None = None
) -> Tuned:
    """Choose keyword weight and hop strength on judged queries; nothing is published.

    Args:
        examples: judged queries; of more than `MOST_QUERIES`, so many are drawn.
        gate: what is asked. Two numbers remember no document, so all queries count as unseen.
        seed: of the draw and of the folds.
        on_setting: told how many settings are scored, of how many.

    Raises:
        InvalidRequest: fewer than `MIN_QUERIES` queries.
    """
    if len(examples) < MIN_QUERIES:
        raise InvalidRequest(
            f"{len(examples)} judged queries; tuning needs at least {MIN_QUERIES}, better a few dozen"
        )
    started = time.monotonic()
    generator = np.random.default_rng(seed)
    drawn = np.sort(generator.permutation(len(examples))[:MOST_QUERIES])
    values = _values(examples.subset(drawn.tolist()), on_setting)
    fold = generator.permutation(len(drawn)) % min(_FOLDS, len(drawn))
    crossed = np.zeros(len(drawn))
    for number in range(fold.max() + 1):
        without = {setting: of[fold != number] for setting, of in values.items()}
        crossed[fold == number] = values[_best(without)][fold == number]
    setting = _best(values)
    leg = max((DENSE, KEYWORD), key=lambda one: values[one].mean())
    if crossed.mean() < values[leg].mean():
        setting, crossed = leg, values[leg]
    if crossed.mean() < values[DEFAULT].mean():
        setting, crossed = DEFAULT, values[DEFAULT]
    scores = {
        "untuned": float(values[DEFAULT].mean()),
        "dense": float(values[DENSE].mean()),
        "keyword": float(values[KEYWORD].mean()),
        "tuned": float(values[setting].mean()),
        "cross-validated": float(crossed.mean()),
    }
    gated = judge(_answers(values[DEFAULT]), _answers(crossed), gate, seed=seed)
    seconds = time.monotonic() - started
    record = {
        "scope": "tune",
        "measure": MEASURE,
        "keyword_weight": setting[0],
        "hop_strength": setting[1],
        "scores": scores,
        "examples": len(drawn),
        "left_out": examples.left_out,
        "data_sha256": examples.digest,
        "seed": seed,
        "gate": gated.to_dict(),
        "seconds": round(seconds, 2),
    }
    return Tuned(head_of(setting, examples.states.shape[1]), setting, scores, gated, seconds, record)


def head_of(setting: Setting, encoder_dim: int) -> Head:
    """The untrained head with these two numbers."""
    head = Head(encoder_dim)
    with torch.no_grad():
        head.keyword_weight.fill_(setting[0])
        head.hop_strength.fill_(setting[1])
    return head.eval()


def _values(examples: Examples, on_setting: OnSetting | None) -> dict[Setting, Float[np.ndarray, " queries"]]:
    """nDCG@10 of every query with every setting that is tried."""
    ranking = Ranking(examples)
    of = len(KEYWORD_WEIGHTS) + _WEIGHTS_WITH_HOPS * len(HOP_STRENGTHS)
    values: dict[Setting, Float[np.ndarray, " queries"]] = {}

    def score(settings: list[Setting]) -> None:
        for setting in settings:
            top = ranking.top(head_of(setting, examples.states.shape[1]), hop_strength=setting[1])
            values[setting] = ndcg_at_10(top, examples.relevant)
            if on_setting is not None:
                on_setting(len(values), of)

    score([(weight, 0.0) for weight in KEYWORD_WEIGHTS])
    good = sorted(KEYWORD_WEIGHTS, key=lambda weight: -values[weight, 0.0].mean())[:_WEIGHTS_WITH_HOPS]
    score([(weight, strength) for weight in good for strength in HOP_STRENGTHS])
    return values


def _best(values: dict[Setting, Float[np.ndarray, " queries"]]) -> Setting:
    """The setting with the highest mean, unless hops add less than their standard error: then without.

    A hop costs a second search; and among many settings some look better by luck.
    """
    best = max(values, key=lambda setting: values[setting].mean())
    if best[1] == 0:
        return best
    plain = max((setting for setting in values if setting[1] == 0), key=lambda one: values[one].mean())
    gain = values[best] - values[plain]
    return best if gain.mean() > gain.std() / math.sqrt(len(gain)) else plain


def _answers(values: Float[np.ndarray, " queries"]) -> Answers:
    return Answers(values, np.zeros(len(values), bool), values)
