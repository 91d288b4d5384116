"""`tune`: the two numbers of a search without any projection: keyword weight and hop strength.

A few dozen judged queries suffice. Every setting of a grid is scored by exact ranking; what is told of the
chosen one is cross-validated: each fold is scored with what the other folds would choose. The grid holds
dense search alone (weight 0) and, but for ties, keyword search alone (the largest weight); where what is
chosen on other folds ends below the better of the two, that one is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64

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
_MOST_SCORES = 1 << 27  # queries times documents: beyond, fewer queries are drawn, so that seconds suffice
_FEWEST_DRAWN = 50
_FOLDS = 10  # what nine tenths of the queries choose is nearly what all of them do

Setting = tuple[float, float]
"""(keyword weight, hop strength)"""
DEFAULT: Setting = (START_KEYWORD_WEIGHT, 0.0)
DENSE: Setting = (0.0, 0.0)
KEYWORD: Setting = (KEYWORDS_ALONE, 0.0)
OnSetting = Callable[[int, int], None]
Values = Mapping[Setting, Float[np.ndarray, " queries"]]


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
    examples: Examples,
    *,
    gate: Gate | None = None,
    start: Setting = DEFAULT,
    seed: int = 0,
    on_setting: OnSetting | None = None,
) -> Tuned:
    """Choose keyword weight and hop strength on judged queries; nothing is published.

    Args:
        examples: judged queries; of more than `MOST_QUERIES`, so many are drawn.
        gate: what is asked. Two numbers remember no document, so all queries count as unseen.
        start: what is untuned: what the gate compares with, and what stays where nothing does better.
        seed: of the draw and of the folds.
        on_setting: told how many settings are scored, of how many.

    Raises:
        InvalidRequest: fewer than `MIN_QUERIES` queries.
    """
    trials = Trials.of(examples, start=start, seed=seed, on_setting=on_setting)
    choice = trials.choose()
    return trials.tuned(choice, trials.judged(choice, gate))


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting, and the values that those have which the other folds would choose."""

    setting: Setting
    crossed: Float[np.ndarray, " queries"]


@dataclass(frozen=True, slots=True)
class Trials:
    """Every setting of the grid, scored on judged queries; of any part of them one can be chosen.

    Attributes:
        examples: the judged queries.
        drawn: which of them were scored, ascending.
        values: nDCG@10 of each setting on those.
        start: what stays where nothing does better.
        seed: of the draw and of folds.
        seconds: it took.
    """

    examples: Examples
    drawn: Int64[np.ndarray, " drawn"]
    values: Values
    start: Setting
    seed: int
    seconds: float

    @classmethod
    def of(
        cls,
        examples: Examples,
        *,
        start: Setting = DEFAULT,
        seed: int = 0,
        on_setting: OnSetting | None = None,
    ) -> Trials:
        """Score the grid.

        Raises:
            InvalidRequest: fewer than `MIN_QUERIES` queries.
        """
        if len(examples) < MIN_QUERIES:
            raise InvalidRequest(
                f"{len(examples)} judged queries; tuning needs at least {MIN_QUERIES}, better a few dozen"
            )
        started = time.monotonic()
        affordable = max(_FEWEST_DRAWN, _MOST_SCORES // max(1, examples.snapshot.positions))
        order = np.random.default_rng(seed).permutation(len(examples))
        drawn = np.sort(order[: min(MOST_QUERIES, affordable)])
        values = _values(examples.subset(drawn.tolist()), start, on_setting)
        return cls(examples, drawn, values, start, seed, time.monotonic() - started)

    def choose(self, without: Sequence[int] = ()) -> Choice:
        """The best setting by all queries but those `without`; the start where too few are left."""
        kept = np.flatnonzero(~np.isin(self.drawn, np.asarray(without, np.int64)))
        values = {setting: of[kept] for setting, of in self.values.items()}
        if len(kept) < MIN_QUERIES:
            return Choice(self.start, values[self.start])
        fold = np.random.default_rng([self.seed, 1]).permutation(len(kept)) % min(_FOLDS, len(kept))
        crossed = np.zeros(len(kept))
        for number in range(fold.max() + 1):
            others = {setting: of[fold != number] for setting, of in values.items()}
            crossed[fold == number] = values[_best(others)][fold == number]
        setting = _best(values)
        leg = max((DENSE, KEYWORD), key=lambda one: values[one].mean())
        for other in (leg, self.start):
            if crossed.mean() < values[other].mean():
                setting, crossed = other, values[other]
        return Choice(setting, crossed)

    def judged(self, choice: Choice, gate: Gate | None = None) -> GateReport:
        """What the gate says of a choice by all queries: the cross-validated values against the start's."""
        return judge(_answers(self.values[self.start]), _answers(choice.crossed), gate, seed=self.seed)

    def tuned(self, choice: Choice, gate: GateReport) -> Tuned:
        """A choice by all queries, with what a gate says of it."""
        scores = {
            "untuned": float(self.values[self.start].mean()),
            "dense": float(self.values[DENSE].mean()),
            "keyword": float(self.values[KEYWORD].mean()),
            "tuned": float(self.values[choice.setting].mean()),
            "cross-validated": float(choice.crossed.mean()),
        }
        record = {
            "scope": "tune",
            "measure": MEASURE,
            "keyword_weight": choice.setting[0],
            "hop_strength": choice.setting[1],
            "scores": scores,
            "examples": len(self.drawn),
            "left_out": self.examples.left_out,
            "data_sha256": self.examples.digest,
            "seed": self.seed,
            "gate": gate.to_dict(),
            "seconds": round(self.seconds, 2),
        }
        head = head_of(choice.setting, self.examples.states.shape[1])
        return Tuned(head, choice.setting, scores, gate, self.seconds, record)


def setting_of(head: Head) -> Setting:
    """The two numbers of an untrained head."""
    # Rounded: as single precision 0.8 would not be the 0.8 of the grid.
    return round(head.keyword_weight.mean().item(), 6), round(head.hop_strength.item(), 6)


def head_of(setting: Setting, encoder_dim: int) -> Head:
    """The untrained head with these two numbers."""
    head = Head(encoder_dim)
    with torch.no_grad():
        head.keyword_weight.fill_(setting[0])
        head.hop_strength.fill_(setting[1])
    return head.eval()


def _values(
    examples: Examples, start: Setting, on_setting: OnSetting | None
) -> dict[Setting, Float[np.ndarray, " queries"]]:
    """nDCG@10 of every query with every setting that is tried."""
    ranking = Ranking(examples)
    weights = list(dict.fromkeys([*KEYWORD_WEIGHTS, start[0]]))
    strengths = sorted({0.0, *HOP_STRENGTHS, start[1]})
    values: dict[Setting, Float[np.ndarray, " queries"]] = {}
    for weight in weights:
        tops = ranking.tops(head_of((weight, 0.0), examples.states.shape[1]), strengths)
        for strength, top in zip(strengths, tops, strict=True):
            values[weight, strength] = ndcg_at_10(top, examples.relevant)
        if on_setting is not None:
            on_setting(len(values), len(weights) * len(strengths))
    return values


def _best(values: Values) -> Setting:
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
