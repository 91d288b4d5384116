"""`tune`: fit the four scalars of a search without projections: keyword weight, k1, b, hop strength.

A few dozen judged queries suffice. Every setting of a grid is scored by exact ranking. The scores of the
chosen setting are cross-validated: each fold is scored with the choice of the other folds. The grid includes
dense search alone (weight 0) and, but for ties, keyword search alone (the largest weight). If the
cross-validated choice scores below the better of the two, that one is used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64

from dsearch.attention.retrieval.head import START_KEYWORD_WEIGHT, Head
from dsearch.engine.models.training_record import query_statistics
from dsearch.errors import InvalidRequest, amount
from dsearch.training.candidate import JudgedCandidate
from dsearch.training.data.examples import Examples
from dsearch.training.gate.gate import MEASURE, Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, drawn_parts, is_clear
from dsearch.training.loop.loop import Observer
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import Relevant
from dsearch.types import Progress

KEYWORDS_ALONE = 30.0  # similarities are within ±1: so large a weight leaves them the ties
KEYWORD_WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, START_KEYWORD_WEIGHT, 1.3, 1.7, 2.5, 5.0, KEYWORDS_ALONE)
HOP_STRENGTHS = (0.25, 0.5, 1.0, 2.0, 3.0)
# k1 and b beside those of the index: 0.9 and 0.4 are Anserini's (Yang et al. 2018); with the other pair
# repeated words count less still, as single sentences want it.
WEIGHTINGS = ((0.9, 0.4), (0.5, 0.4))
MIN_QUERIES = 10
MOST_QUERIES = 400
_MOST_SCORES = 1 << 27  # queries times documents: beyond, fewer queries are drawn, so that seconds suffice
_FEWEST_DRAWN = 50
_HEADS_AT_ONCE = 4  # scored together; between them there is time to say how far it is
_FOLDS = 10  # what nine tenths of the queries choose is nearly what all of them do


class Setting(NamedTuple):
    """An untrained search; `bm25` is (k1, b), None for those of the index."""

    keyword_weight: float
    hop_strength: float
    bm25: tuple[float, float] | None = None

    def __str__(self) -> str:
        """In words."""
        bm25 = "" if self.bm25 is None else f"k1 {self.bm25[0]:g}, b {self.bm25[1]:g}, "
        return f"keyword weight {self.keyword_weight:g}, {bm25}hop strength {self.hop_strength:g}"


DEFAULT = Setting(START_KEYWORD_WEIGHT, 0.0)
DENSE = Setting(0.0, 0.0)
KEYWORD = Setting(KEYWORDS_ALONE, 0.0)
SCOPE = "tune"  # of its record
Values = Mapping[Setting, Float[np.ndarray, " queries"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedSearch(JudgedCandidate):
    """Chosen settings as an untrained head, with the report on the cross-validated answers.

    Attributes:
        setting: chosen setting.
        scores: mean nDCG@10 on the tuning queries of untuned, dense and keyword search, of the setting, and
            of settings chosen on other folds ("cross-validated").
    """

    setting: Setting
    scores: dict[str, float]


def tune(
    examples: Examples,
    *,
    gate: Gate | None = None,
    start: Setting = DEFAULT,
    seed: int = 0,
    observer: Observer | None = None,
) -> TunedSearch:
    """Choose keyword weight, k1 and b, and hop strength on judged queries; nothing is published.

    Args:
        examples: judged queries; if there are more than `MOST_QUERIES`, that many are sampled.
        gate: requirements of the gate. Four scalars cannot memorise a document, so all queries count as
            unseen.
        start: untuned head: the baseline of the gate, kept if no setting is better.
        seed: random seed of the sample and of the folds.
        observer: receives the number of settings that are scored (stage "settings").

    Raises:
        InvalidRequest: fewer than `MIN_QUERIES` queries.
    """
    trials = Trials.of(examples, start=start, seed=seed, observer=observer)
    choice = trials.choose()
    return trials.tuned(choice, trials.judged(choice, gate))


@dataclass(frozen=True, slots=True)
class ChosenSetting:
    """A setting, and the values that those have which the other folds would choose."""

    setting: Setting
    crossed: Float[np.ndarray, " queries"]


@dataclass(frozen=True, slots=True)
class Trials:
    """Every setting of the grid, scored on judged queries; a choice may use any part of these queries.

    Attributes:
        examples: judged queries.
        drawn: places of the scored queries, ascending.
        values: nDCG@10 of each setting on those.
        start: setting to keep if none is better.
        seed: random seed of the draw and of the folds.
        seconds: duration.
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
        observer: Observer | None = None,
    ) -> Trials:
        """Score the grid.

        Raises:
            InvalidRequest: fewer than `MIN_QUERIES` queries.
        """
        if len(examples) < MIN_QUERIES:
            raise InvalidRequest(
                f"{amount(len(examples), 'judged query')}; tuning needs at least {MIN_QUERIES}, better a "
                "few dozen"
            )
        started = time.monotonic()
        affordable = max(_FEWEST_DRAWN, _MOST_SCORES // max(1, examples.snapshot.positions))
        order = np.random.default_rng(seed).permutation(len(examples))
        drawn = np.sort(order[: min(MOST_QUERIES, affordable)])
        values = _values(examples.subset(drawn.tolist()), start, observer or Observer())
        return cls(examples, drawn, values, start, seed, time.monotonic() - started)

    def choose(self, without: Sequence[int] = ()) -> ChosenSetting:
        """The best setting by all queries but those `without`; the start where too few are left."""
        left = ~np.isin(self.drawn, np.asarray(without, np.int64))
        table = np.compress(left, np.stack(list(self.values.values())), axis=1)
        values = dict(zip(self.values, table, strict=True))
        queries = table.shape[1]
        if queries < MIN_QUERIES:
            return ChosenSetting(self.start, values[self.start])
        crossed = np.zeros(queries)
        for part in drawn_parts(queries, _FOLDS, self.seed, 1):
            others = np.compress(~part, table, axis=1)
            best = _best(dict(zip(values, others, strict=True)), others)
            crossed[part] = values[best][part]
        setting = _best(values, table)
        legs = [DENSE, *(setting for setting in values if setting[:2] == KEYWORD[:2])]
        leg = max(legs, key=lambda setting: values[setting].mean())
        for other in (leg, self.start):
            if crossed.mean() < values[other].mean():
                setting, crossed = other, values[other]
        return ChosenSetting(setting, crossed)

    def judged(self, choice: ChosenSetting, gate: Gate | None = None) -> GateReport:
        """Gate report of a choice by all queries: the cross-validated values against those of the start."""
        before, after = (Answers.of_scores(of) for of in (self.values[self.start], choice.crossed))
        return judge(before, after, gate, queries=self.drawn, seed=self.seed)

    def tuned(self, choice: ChosenSetting, gate: GateReport) -> TunedSearch:
        """Choice by all queries, with its gate report."""
        scores = {
            "untuned": float(self.values[self.start].mean()),
            "dense": float(self.values[DENSE].mean()),
            "keyword": float(self.values[KEYWORD].mean()),
            "tuned": float(self.values[choice.setting].mean()),
            "cross-validated": float(choice.crossed.mean()),
        }
        record = {
            "scope": SCOPE,
            "measure": MEASURE,
            **recorded(choice.setting),
            "scores": scores,
            "examples": len(self.drawn),
            "left_out": self.examples.left_out,
            "data_sha256": self.examples.digest,
            "training_queries": query_statistics(self.examples.states),
            "seed": self.seed,
            "gate": gate.to_dict(),
            "seconds": round(self.seconds, 2),
        }
        head = head_of(choice.setting, self.examples.states.shape[1])
        return TunedSearch(head=head, record=record, gate=gate, setting=choice.setting, scores=scores)


def setting_of(head: Head) -> Setting:
    """That of an untrained head."""
    # Rounded: as single precision 0.8 would not be the 0.8 of the grid.
    weight, strength = round(head.keyword_weight.mean().item(), 6), round(head.hop_strength.item(), 6)
    return Setting(weight, strength, head.keyword_weighting)


def head_of(setting: Setting, encoder_dim: int) -> Head:
    """The untrained head with this setting."""
    head = Head(encoder_dim)
    with torch.no_grad():
        head.keyword_weight.fill_(setting.keyword_weight)
        head.hop_strength.fill_(setting.hop_strength)
    if setting.bm25 is not None:
        head.weigh_keywords(*setting.bm25)
    return head.eval()


def recorded(setting: Setting) -> dict[str, Any]:
    """A setting as the record of a model has it."""
    k1, b = setting.bm25 or (None, None)
    return {"keyword_weight": setting.keyword_weight, "hop_strength": setting.hop_strength, "k1": k1, "b": b}


def setting_from(record: Mapping[str, Any]) -> Setting:
    """Read a setting that `recorded` wrote."""
    k1, b = record.get("k1"), record.get("b")  # records of before they could be chosen have neither
    bm25 = None if k1 is None or b is None else (k1, b)
    return Setting(record["keyword_weight"], record["hop_strength"], bm25)


def _values(
    examples: Examples, start: Setting, observer: Observer
) -> dict[Setting, Float[np.ndarray, " queries"]]:
    """nDCG@10 of every query with every setting that is tried."""
    started = time.monotonic()
    ranking, relevant = Ranking(examples), Relevant(examples.relevant)
    weightings = dict.fromkeys([None, *WEIGHTINGS, start.bm25])
    weights = dict.fromkeys([*KEYWORD_WEIGHTS, start.keyword_weight])
    strengths = sorted({0.0, *HOP_STRENGTHS, start.hop_strength})
    tried = {bm25: [weight for weight in weights if weight or bm25 is None] for bm25 in weightings}
    settings = sum(map(len, tried.values())) * len(strengths)
    values: dict[Setting, Float[np.ndarray, " queries"]] = {}
    dim = examples.states.shape[1]
    for bm25, several in tried.items():
        for some in (several[at : at + _HEADS_AT_ONCE] for at in range(0, len(several), _HEADS_AT_ONCE)):
            heads = [head_of(Setting(weight, 0.0, bm25), dim).settle() for weight in some]
            for weight, tops in zip(some, ranking.tops_of_alike(heads, strengths), strict=True):
                for strength, top in zip(strengths, tops, strict=True):
                    values[Setting(weight, strength, bm25)] = relevant.ndcg_at_10(top)
            elapsed_s = time.monotonic() - started
            observer.progress(Progress("settings", len(values), settings, elapsed_s))
    if start not in values:  # dense search, with k1 and b that have no part in it
        values[start] = values[start._replace(bm25=None)]
    return values


def _best(values: Values, table: Float[np.ndarray, "settings queries"]) -> Setting:
    """The setting with the highest mean; hops, and other k1 and b, only where they add more than their error.

    A hop costs a second search, and other k1 and b memory; and among many settings some look better by luck.

    Args:
        values: nDCG@10 of each setting.
        table: the same, stacked.
    """
    means = dict(zip(values, table.mean(axis=1).tolist(), strict=True))
    own = _best_of([setting for setting in values if setting.bm25 is None], values, means)
    other = [setting for setting in values if setting.bm25 is not None]
    if not other:
        return own
    best = _best_of(other, values, means)
    return best if is_clear(values[best] - values[own]) else own


def _best_of(settings: Sequence[Setting], values: Values, means: Mapping[Setting, float]) -> Setting:
    best = max(settings, key=means.__getitem__)
    if best.hop_strength == 0:
        return best
    plain = max((setting for setting in settings if setting.hop_strength == 0), key=means.__getitem__)
    return best if is_clear(values[best] - values[plain]) else plain
