"""Each comparison of a verdict with what is allowed, at equality: what is allowed is allowed in full."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.evaluation import Interval
from dsearch.training import Gate
from dsearch.training.evaluation import Baseline, judge_regression
from dsearch.training.finetune.feedback import TrustedSlice
from dsearch.training.finetune.values import _also_accuracy  # pyright: ignore[reportPrivateUsage]
from dsearch.training.gate.gate import GateReport, Slice
from dsearch.training.gate.held_out import is_clear
from dsearch.training.gate.selection import kept_checkpoint, kept_hop

GATE_MODULE = importlib.import_module("dsearch.training.gate.gate")
MARGIN = 0.25
GATE = Gate(alpha=0.125, margin=MARGIN, min_queries=12, harm=0.375)


def verdict(
    mean: float = 0.5, *, queries: int = 20, p_value: float = 0.0, fall: float = 0.0, harm: float = 0.0
) -> str:
    """By a mean change of all queries, and the fall and the probability of harm of a slice."""

    def interval(change: float) -> Interval:
        return Interval(change, change - 0.1, change + 0.1, 0.0)

    whole = Slice("all", queries, 0.25, 0.25 + mean, *[interval(mean)] * 2, 0.1)
    seen = Slice("seen", 10, 0.5, 0.5 - fall, *[interval(-fall)] * 2, 0.1, harm)
    unseen = Slice("unseen", 0, None, None, None)
    report = GateReport(GATE, [whole, seen, unseen], p_value, None, "cannot tell", "")
    return GATE_MODULE._decided(report).verdict


ABOVE = 2.0**-20


@pytest.mark.parametrize(
    ("at", "beyond", "verdicts"),
    [
        ({"p_value": 0.125}, {"p_value": 0.125 + ABOVE}, ("passed", "refused")),
        ({"harm": 0.375}, {"harm": 0.375 + ABOVE}, ("passed", "cannot tell")),
        ({"harm": 0.5, "fall": MARGIN}, {"harm": 0.5, "fall": MARGIN + ABOVE}, ("cannot tell", "refused")),
        ({"queries": 12}, {"queries": 11}, ("passed", "cannot tell")),
        ({"mean": ABOVE}, {"mean": 0.0}, ("passed", "refused")),
    ],
    ids=str,
)
def test_the_gate_allows_its_bounds(at: Any, beyond: Any, verdicts: tuple[str, str]) -> None:
    assert (verdict(**at), verdict(**beyond)) == verdicts


@pytest.mark.parametrize(("fall", "passes"), [(MARGIN, True), (MARGIN + ABOVE, False)])
def test_a_fall_of_the_margin_is_allowed(fall: float, passes: bool) -> None:
    """Of an accuracy; of rankings with what was never shown; of a baseline."""
    report = GateReport(GATE, [], 0.0, None, "passed", "")
    accuracy = _also_accuracy(report, ({"accuracy": 0.75}, {"accuracy": 0.75 - fall}))
    assert accuracy.passed is passes

    means = iter([0.75, 0.75 - fall])
    trusted = SimpleNamespace(
        displayed=[],
        _top=lambda *_: None,
        _answers=lambda _: SimpleNamespace(all=np.array([next(means)])),
    )
    assert inspect.unwrap(TrustedSlice.bounded)(trusted, report, None, None).passed is passes
    means = iter([0.75, 0.75 - fall])
    doubted = inspect.unwrap(TrustedSlice.bounded)(
        trusted, replace(report, verdict="cannot tell"), None, None
    )
    assert doubted.verdict == ("cannot tell" if passes else "refused")

    values = {f"q{i}": 0.75 for i in range(40)}
    worse = judge_regression(
        Baseline("before", values), Baseline("now", dict.fromkeys(values, 0.75 - fall)), tolerated=MARGIN
    )
    assert worse.worse is not passes


def test_a_refused_report_is_not_judged_again() -> None:
    report = GateReport(GATE, [], 0.0, None, "refused", "why")
    falls: Any = ({"accuracy": 1.0}, {"accuracy": 0.0})
    assert _also_accuracy(report, falls) is report
    assert _also_accuracy(replace(report, verdict="passed"), None).passed


def test_what_gains_nothing_is_not_chosen() -> None:
    """An earlier checkpoint, a hop, other weights of keywords, a second stage: each has to gain."""
    equal, seen = np.full(40, 0.5), np.arange(40) < 20
    assert kept_checkpoint(np.stack([equal] * 3), seen) == 2
    assert kept_hop({1.0: equal, 0.0: equal}, seen) == 0.0
    assert not is_clear(equal - equal)
    assert not is_clear(np.zeros(0))
    strength = importlib.import_module("dsearch.training.finetune.second_stage").chosen_strength
    none = strength(np.stack([equal] * 6))
    assert (none.method.strength, {*none.left_out}) == (0.0, {0})
