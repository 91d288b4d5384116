"""Fit a query memory: choose γ, τ, c and λ on judged queries, each answered without its own row.

The memory (attention/recall.py) needs no training: its rows are the judged queries. Four numbers
are chosen, beside the setting of the tuned search, on up to `MOST_QUERIES` queries. What they give is
cross-validated: each fold is scored with the choice of the other folds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers
from dsearch.training.memory_values import GRID, MemorySetting, MemoryValues, memory_of, values_of_memories
from dsearch.training.tune import ChosenSetting, Setting, Trials, TunedSearch, head_of

SCOPE = "memory"  # of its record
_FOLDS = 10
_FEWEST = 20  # queries: with fewer, a slice says too little to choose by
_FIRMNESS = 0.1  # nDCG@10, summed over the queries, of a squared distance of 1 (guide decisions)


class ChosenMemory(NamedTuple):
    """A tuned setting, and the memory beside it; None: the search is better without."""

    setting: Setting
    memory: MemorySetting | None


@dataclass(frozen=True, slots=True)
class MemoryTrials:
    """Every memory of the grid beside the settings that tuning chooses, scored on the queries of `trials`.

    Attributes:
        trials: the tuned searches.
        values: of each setting with each memory, and without one.
        seen: True if another query of the examples judged a relevant document.
    """

    trials: Trials
    values: dict[tuple[Setting, MemorySetting | None], MemoryValues]
    seen: Bool[np.ndarray, " drawn"]

    @classmethod
    def of(cls, trials: Trials) -> MemoryTrials:
        """Score the grid."""
        examples = trials.examples.subset(trials.drawn.tolist())
        settings = [*dict.fromkeys([trials.start, trials.choose().setting, *_by_folds(trials)])]
        values = values_of_memories(trials.examples, trials.drawn, settings)
        times: dict[int, int] = {}
        for at in np.concatenate([at for at, _ in trials.examples.relevant]).tolist():
            times[at] = times.get(at, 0) + 1
        seen = [any(times[at] > 1 for at in of.tolist()) for of, _ in examples.relevant]
        return cls(trials, values, np.array(seen, bool))

    def choose(self, without: Sequence[int] = ()) -> ChosenMemory:
        """The best memory by all queries but those `without`, beside the setting that they choose."""
        trials = self.trials
        setting = self._scored_setting(trials.choose(without).setting)
        others = np.flatnonzero(~np.isin(trials.drawn, np.asarray(without, np.int64)))
        if len(others) < _FEWEST:
            return ChosenMemory(setting, None)
        best, gain = self._best(setting, others)
        # Among many memories some look better by luck.
        clear = gain > 0 and self._rise(setting, best, others) > 0
        return ChosenMemory(setting, best if clear else None)

    def for_head(self) -> MemorySetting:
        """The memory to serve a trained head with, where folds chose one: the best by all queries."""
        chosen = self.choose()
        every = np.arange(len(self.trials.drawn))
        return chosen.memory or self._best(chosen.setting, every)[0]

    def crossed(self) -> tuple[ChosenMemory, Answers, Answers]:
        """The choice by all queries, the answers of the start, and each fold's by what the others choose."""
        trials = self.trials
        fold = np.random.default_rng([trials.seed, 2]).permutation(len(trials.drawn)) % _FOLDS
        every = np.zeros((2, len(fold)))
        plain = np.zeros(len(fold))
        for number in range(min(_FOLDS, len(fold))):
            mine = np.flatnonzero(fold == number)
            of_fold = self.choose(trials.drawn[mine].tolist())
            every[:, mine] = self.values[of_fold].subset(mine)
            plain[mine] = self.values[of_fold.setting, None].all[mine]
        chosen = self.choose()
        if every[0].mean() < plain.mean():  # what the folds choose is worse than none
            chosen = chosen._replace(memory=None)
        before = self.values[trials.start, None]
        return chosen, self._answers(before), self._answers(MemoryValues(every[0], every[1]))

    def judged(self, gate: Gate | None = None) -> tuple[ChosenMemory, GateReport]:
        """The choice by all queries, and the gate's report on what folds chose for one another."""
        chosen, before, after = self.crossed()
        return chosen, judge(before, after, gate, queries=self.trials.drawn, seed=self.trials.seed)

    def searched(self, chosen: ChosenMemory, gate: GateReport) -> TunedSearch:
        """The tuned search with its memory, as a candidate."""
        assert chosen.memory is not None
        trials = self.trials
        tuned = trials.tuned(ChosenSetting(chosen.setting, trials.values[chosen.setting]), gate)
        head = head_of(chosen.setting, trials.examples.states.shape[1])
        head.memory = memory_of(trials.examples, chosen.memory)
        values, start = self.values[chosen], self.values[trials.start, None]
        record: dict[str, Any] = {
            **tuned.record,
            "scope": SCOPE,
            "examples": len(trials.examples),
            "scores": {
                "untuned": float(start.all.mean()),
                "dense": tuned.scores["dense"],
                "keyword": tuned.scores["keyword"],
                "tuned": float(self.values[chosen.setting, None].all.mean()),
                "memory": float(values.all.mean()),
            },
        }
        return TunedSearch(head.eval(), chosen.setting, record["scores"], gate, tuned.seconds, record)

    def _best(self, setting: Setting, others: Int64[np.ndarray, " others"]) -> tuple[MemorySetting, float]:
        """The memory that gains most, and its gain: on all documents and on hidden ones together."""
        plain = self.values[setting, None].subset(others)
        unseen = ~np.isnan(plain.unseen)

        def gain(memory: MemorySetting) -> float:
            values = self.values[setting, memory].subset(others)
            whole = float((values.all - plain.all).mean())
            if unseen.sum() < _FEWEST:
                return whole
            return whole + float((values.unseen - plain.unseen)[unseen].mean())

        best = max(GRID, key=lambda memory: gain(memory) - _doubt(memory) / len(others))
        return best, gain(best)

    def _rise(self, setting: Setting, memory: MemorySetting, others: Int64[np.ndarray, " others"]) -> float:
        """The mean gain on all documents, less its standard error."""
        values, plain = (self.values[setting, of].subset(others).all for of in (memory, None))
        rise = values - plain
        return float(rise.mean() - rise.std() / np.sqrt(len(rise)))

    def _scored_setting(self, setting: Setting) -> Setting:
        """The setting, or the choice of all queries where no fold of these trials chose it."""
        return setting if (setting, None) in self.values else self.trials.choose().setting

    def _answers(self, values: MemoryValues) -> Answers:
        return Answers(values.all, self.seen, values.unseen)


def _doubt(memory: MemorySetting) -> float:
    """Price of a memory's squared distance from the middle of the grid."""
    strength, temperature, null_level, lending = memory
    steps = (
        math.log2(strength / 0.4),
        (temperature - 0.05) / 0.04,
        (null_level - 0.5) / 0.4,
        (lending - 0.5) / 0.5,
    )
    return _FIRMNESS * sum(step**2 for step in steps)


def _by_folds(trials: Trials) -> Iterator[Setting]:
    fold = np.random.default_rng([trials.seed, 2]).permutation(len(trials.drawn)) % _FOLDS
    for number in range(min(_FOLDS, len(fold))):
        yield trials.choose(trials.drawn[fold == number].tolist()).setting
