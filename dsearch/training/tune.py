"""`tune`: fit the four scalars of a search without projections: keyword weight, k1, b, hop strength.

A few dozen judged queries suffice. Every setting of a grid is scored by exact ranking. The chosen one has the
highest mean, less a price for its distance from the default search, which n queries outweigh as they can:

    θ̂ = argmax_θ  Σ_q AP(q, θ) − λ |θ − θ₀|²

θ: log₂ of the keyword weight, hop strength, log₂ of k1, and b, each in steps; θ₀: the default search; λ:
`_FIRMNESS`. With few queries the best of a grid is mostly luck; so weights move as far as judgements say, and
neither keywords nor embeddings are dropped on fewer than `_FEWEST_FOR_LEG` queries. The evidence is
cross-validated: each query is answered by what all others choose.
"""

from __future__ import annotations

import math
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
from dsearch.training.gate.decision import Belief, belief_of
from dsearch.training.gate.gate import MEASURE, Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers
from dsearch.training.gate.noise import probability_of_noise
from dsearch.training.loop.loop import Observer
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import EVIDENCE_DEPTH, Relevant
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
_FIRMNESS = 0.05  # average precision, summed over the queries, of a squared distance of 1 (guide `decisions`)
_LEAST_WEIGHT = 0.05  # that of search by embeddings only, as a distance
_FEWEST_FOR_LEG = 300  # queries on which one of keywords and embeddings may be dropped


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
    noise = probability_of_noise(examples, head_of(start, examples.states.shape[1]), seed=seed)
    return trials.tuned(choice, trials.judged(choice, gate, belief_of("tuned", len(examples), noise)))


class ChosenSetting(NamedTuple):
    """A setting, and the answers to each query by the setting that the others choose."""

    setting: Setting
    crossed: Answers


@dataclass(frozen=True, slots=True)
class Trials:
    """Every setting of the grid, scored on judged queries; a choice may use any part of these queries.

    Attributes:
        examples: judged queries.
        drawn: places of the scored queries, ascending.
        values: nDCG@10 of each setting on those.
        precisions: average precision, likewise.
        start: setting to keep if none is better.
        seed: random seed of the draw.
        seconds: duration.
    """

    examples: Examples
    drawn: Int64[np.ndarray, " drawn"]
    values: Values
    precisions: Values
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
        return cls(examples, drawn, *values, start, seed, time.monotonic() - started)

    def choose(self, without: Sequence[int] = ()) -> ChosenSetting:
        """The best setting by all queries but those `without`; the start where too few are left."""
        left = np.flatnonzero(~np.isin(self.drawn, np.asarray(without, np.int64)))
        table = np.stack([row[left] for row in self.precisions.values()])
        settings = [*self.precisions]
        start = np.full(len(left), settings.index(self.start))
        if len(left) < MIN_QUERIES:
            return ChosenSetting(self.start, self._answers(start, left))
        weighting = self.examples.snapshot.keyword
        prices = _FIRMNESS * distances(
            settings, (weighting.k1, weighting.b), legs=len(left) >= _FEWEST_FOR_LEG
        )
        sums = table.sum(axis=1) - prices
        by_others = (sums[:, None] - table).argmax(axis=0)
        crossed = self._answers(by_others, left)
        if crossed.evidence.mean() < table[start[0]].mean():
            return ChosenSetting(self.start, self._answers(start, left))
        return ChosenSetting(settings[int(sums.argmax())], crossed)

    def _answers(
        self, chosen: Int64[np.ndarray, " queries"], queries: Int64[np.ndarray, " queries"]
    ) -> Answers:
        """Answers to some of the drawn queries by these settings; four scalars memorise no document."""
        values, precisions = (
            np.stack([*of.values()])[chosen, queries] for of in (self.values, self.precisions)
        )
        return Answers(values, np.zeros(len(queries), bool), values, precisions, precisions)

    def judged(
        self, choice: ChosenSetting, gate: Gate | None = None, belief: Belief | None = None
    ) -> GateReport:
        """Gate report of a choice by all queries: the cross-validated answers against those of the start."""
        start = np.full(len(self.drawn), [*self.values].index(self.start))
        before = self._answers(start, np.arange(len(self.drawn)))
        return judge(before, choice.crossed, gate, belief=belief, seed=self.seed)

    def tuned(self, choice: ChosenSetting, gate: GateReport) -> TunedSearch:
        """Choice by all queries, with its gate report."""
        scores = {
            "untuned": float(self.values[self.start].mean()),
            "dense": float(self.values[DENSE].mean()),
            "keyword": float(self.values[KEYWORD].mean()),
            "tuned": float(self.values[choice.setting].mean()),
            "cross-validated": float(choice.crossed.all.mean()),
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


def distances(
    settings: Sequence[Setting], bm25: tuple[float, float], *, legs: bool
) -> Float[np.ndarray, " settings"]:
    """Squared distance of each setting from the default search, in steps.

    Args:
        settings: settings to measure.
        bm25: k1 and b of the index.
        legs: False: infinite for searches by keywords or by embeddings only.
    """
    squared: list[float] = []
    for weight, hop, weighting in settings:
        leg = weight in (0.0, KEYWORDS_ALONE)
        k1, b = weighting or bm25
        steps = (
            math.log2(min(max(weight, _LEAST_WEIGHT), KEYWORDS_ALONE) / START_KEYWORD_WEIGHT),
            hop / 0.5,
            math.log2(max(k1, 0.1) / max(bm25[0], 0.1)),
            (b - bm25[1]) / 0.35,
        )
        squared.append(math.inf if leg and not legs else sum(step**2 for step in steps))
    return np.array(squared)


def _values(examples: Examples, start: Setting, observer: Observer) -> tuple[Values, Values]:
    """nDCG@10 and average precision of every query with every setting that is tried."""
    started = time.monotonic()
    ranking, relevant = Ranking(examples), Relevant(examples.relevant)
    weightings = dict.fromkeys([None, *WEIGHTINGS, start.bm25])
    weights = dict.fromkeys([*KEYWORD_WEIGHTS, start.keyword_weight])
    strengths = sorted({0.0, *HOP_STRENGTHS, start.hop_strength})
    tried = {bm25: [weight for weight in weights if weight or bm25 is None] for bm25 in weightings}
    settings = sum(map(len, tried.values())) * len(strengths)
    values: dict[Setting, Float[np.ndarray, " queries"]] = {}
    precisions: dict[Setting, Float[np.ndarray, " queries"]] = {}
    dim = examples.states.shape[1]
    for bm25, several in tried.items():
        for some in (several[at : at + _HEADS_AT_ONCE] for at in range(0, len(several), _HEADS_AT_ONCE)):
            heads = [head_of(Setting(weight, 0.0, bm25), dim).settle() for weight in some]
            ranked = ranking.tops_of_alike(heads, strengths, EVIDENCE_DEPTH)
            for weight, tops in zip(some, ranked, strict=True):
                for strength, top in zip(strengths, tops, strict=True):
                    setting = Setting(weight, strength, bm25)
                    values[setting] = relevant.ndcg_at_10(top)
                    precisions[setting] = relevant.average_precision(top)
            elapsed_s = time.monotonic() - started
            observer.progress(Progress("settings", len(values), settings, elapsed_s))
    if start not in values:  # dense search, with k1 and b that have no part in it
        for of in (values, precisions):
            of[start] = of[start._replace(bm25=None)]
    return values, precisions
