"""A regression gate for the continuous integration of users: `Baseline`, and `judge_regression`.

The gate asks whether a new head is better than what answers. Here it is asked the other way round: whether
the answers of the baseline are better than those of now, by the same paired test. A regression is a fall of
the mean by more than the tolerance that is significant as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation.metrics import Values
from dsearch.training.gate.gate import MEASURE, Gate, judge
from dsearch.training.gate.held_out import Answers

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """Values of one system, query by query.

    Attributes:
        system: name of the system, such as "trained v3".
        values: query id → nDCG@10.
    """

    system: str
    values: dict[str, float]

    @classmethod
    def of(cls, systems: Mapping[str, Values]) -> Baseline:
        """The system that answers: the last one that was evaluated."""
        name = list(systems)[-1]
        return cls(name, dict(systems[name][MEASURE]))

    def write(self, path: Path) -> None:
        """Write it as JSON, one query a line, so that changes can be seen in a diff."""
        content = {"format": FORMAT, "measure": MEASURE, "system": self.system, "values": self.values}
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read what `write` wrote.

        Raises:
            InvalidRequest: there is no such file, or it is not a baseline.
        """
        make = f"write one with: dsearch evaluate … --save-baseline {path}"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (content["format"], content["measure"]) != (FORMAT, MEASURE):
                raise InvalidRequest(
                    f"{path} has format {content['format']!r} and measure {content['measure']!r}; this "
                    f"release reads format {FORMAT} of {MEASURE}: {make}"
                )
            return cls(str(content["system"]), {str(id): float(of) for id, of in content["values"].items()})
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read ({error.strerror}); {make}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{path} is not a baseline; {make}") from error


@dataclass(frozen=True, slots=True)
class Regression:
    """Answers of now against the baseline's.

    Attributes:
        worse: whether this is a regression.
        reason: why, or why not, in words.
        queries: number of queries that both have.
        before, now: their means.
        tolerated: fall of the mean that is no regression.
        p_value: of the fall, one-sided; None where nothing fell.
    """

    worse: bool
    reason: str
    queries: int
    before: float
    now: float
    tolerated: float
    p_value: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def judge_regression(
    baseline: Baseline, now: Baseline, *, tolerated: float, risk: str = "balanced", seed: int = 0
) -> Regression:
    """Compare two evaluations, on the queries that both have.

    Args:
        baseline: evaluation to hold against.
        now: evaluation of what answers now.
        tolerated: fall of mean nDCG@10 that is no regression.
        risk: whose α the fall has to reach.
        seed: random seed of the resampling.

    Raises:
        InvalidRequest: no query in common; tolerance out of range.
    """
    gate = Gate.of_risk(risk, margin=tolerated)
    queries = [id for id in baseline.values if id in now.values]
    if not queries:
        raise InvalidRequest("the baseline has none of these queries; write a new one of this data")

    def answers(of: Baseline) -> Answers:
        values = np.array([of.values[id] for id in queries])
        return Answers(values, np.ones(len(queries), bool), np.full(len(queries), np.nan))

    report = judge(answers(now), answers(baseline), gate, need_slices=False, seed=seed)
    before, after = answers(baseline).all.mean(), answers(now).all.mean()
    fall, p_value = float(before - after), report.p_value if before > after else None
    moved = f"nDCG@10 {before:.4f} → {after:.4f} on {amount(len(queries), 'query')}"
    if fall <= tolerated:
        reason = f"{moved}: no fall of more than {tolerated:g}"
    elif report.passed:
        reason = f"{moved}: a fall of more than {tolerated:g}, p = {p_value:.4f} ≤ {gate.alpha:g}"
    else:
        reason = (
            f"{moved}: a fall of more than {tolerated:g} that may be chance (p = {p_value:.3f} > "
            f"{gate.alpha:g}, or fewer than {amount(gate.min_queries, 'query')})"
        )
    worse = bool(fall > tolerated and report.passed)
    return Regression(worse, reason, len(queries), float(before), float(after), tolerated, p_value)
