"""The regression gate: a fall counts if it is above the tolerance and significant."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import InvalidRequest
from dsearch.training import Baseline, judge_regression

DRAW = np.random.default_rng(0)
VALUES = {f"q{n}": float(value) for n, value in enumerate(DRAW.random(80))}
NOISE = DRAW.normal(0, 0.05, 80)


def changed(by: float, noise: float = 1.0) -> Baseline:
    pairs = zip(VALUES.items(), NOISE - NOISE.mean(), strict=True)
    return Baseline("now", {id: value + by + noise * float(one) for (id, value), one in pairs})


BEFORE = Baseline("before", VALUES)


@pytest.mark.parametrize(
    ("by", "noise", "tolerated", "worse", "told"),
    [
        (0.0, 0.0, 0.005, False, "no fall of more than 0.005"),
        (0.0, 0.0, 0.0, False, "no fall of more than 0"),
        (0.05, 1.0, 0.005, False, "no fall of more than 0.005"),
        (-0.03, 1.0, 0.005, True, "a fall of more than 0.005, p = 0.0"),
        (-0.03, 1.0, 0.05, False, "no fall of more than 0.05"),
        (-0.01, 10.0, 0.005, False, "that may be chance"),
    ],
)
def test_a_regression_is_a_significant_fall_above_the_tolerance(
    by: float, noise: float, tolerated: float, worse: bool, told: str
) -> None:
    found = judge_regression(BEFORE, changed(by, noise), tolerated=tolerated)
    assert found.worse is worse
    assert told in found.reason
    assert found.now - found.before == pytest.approx(by, abs=1e-9)
    assert (found.p_value is None) == (found.now >= found.before)


def test_the_baseline_is_of_what_answers() -> None:
    """Systems are evaluated in an order that ends with it."""
    systems = {name: {"nDCG@10": {"q": at / 4}} for at, name in enumerate(("dense", "hybrid", "trained v3"))}
    assert Baseline.of(systems) == Baseline("trained v3", {"q": 0.5})


def test_few_queries_fail_no_build() -> None:
    few = {id: VALUES[id] for id in list(VALUES)[:5]}
    fallen = Baseline("now", dict.fromkeys(few, 0.0))
    assert not judge_regression(Baseline("before", few), fallen, tolerated=0.0).worse


def test_only_common_queries_are_compared() -> None:
    more = Baseline("now", {**VALUES, "new": 0.0})
    assert judge_regression(BEFORE, more, tolerated=0.0).queries == 80
    with pytest.raises(InvalidRequest, match="none of these queries; write a new one"):
        judge_regression(BEFORE, Baseline("now", {"other": 1.0}), tolerated=0.0)


def test_a_baseline_is_written_and_read_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    BEFORE.write(path)
    assert Baseline.read(path) == BEFORE
    assert len(path.read_text().splitlines()) > 80  # a query a line
    content = json.loads(path.read_text())
    for wrong in ("nonsense", "[]", "{}", json.dumps({**content, "values": [1]})):
        path.write_text(wrong)
        with pytest.raises(InvalidRequest, match="is not a baseline; write one with: dsearch evaluate"):
            Baseline.read(path)
    for other in ({"format": 2}, {"measure": "recall@10"}):
        path.write_text(json.dumps({**content, **other}))
        with pytest.raises(InvalidRequest, match="this release reads format 1 of nDCG@10"):
            Baseline.read(path)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Baseline.read(tmp_path / "none.json")


def test_the_named_risk_decides_how_sure_a_fall_must_be() -> None:
    """This fall has p = .1 or so: too much for a cautious user, enough for a bold one."""
    judged = {
        risk: judge_regression(BEFORE, changed(-0.03, 4.5), tolerated=0.0, risk=risk)
        for risk in ("cautious", "balanced", "bold")
    }
    assert 0.06 < (judged["bold"].p_value or 0) < 0.2
    assert {risk: of.worse for risk, of in judged.items()} == {
        "cautious": False,
        "balanced": False,
        "bold": True,
    }
    assert "> 0.025" in judged["cautious"].reason
    assert "> 0.05" in judged["balanced"].reason
    with pytest.raises(InvalidRequest, match="risk='none'; use one of cautious, balanced, bold"):
        judge_regression(BEFORE, BEFORE, tolerated=0.0, risk="none")
