"""Posteriors, the probability of noise, and power: by hand, and as properties."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsearch.jobs import RISKS
from dsearch.training.gate.decision import (
    FLAT,
    SLICE_PRIOR,
    WHOLE_PRIOR,
    Decision,
    Normal,
    deviation_of,
    further_for_significance,
    further_for_slice,
    noise_after,
    posterior,
    rounded,
    sign_flip_p_value,
)
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.gate.held_out import Answers

FAST = settings(max_examples=30, deadline=None)


def jumps(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Changes of nDCG@10: most queries keep theirs, some jump, either way alike."""
    moved = generator.random(shape) < 0.3
    return np.where(moved, generator.normal(0, 0.25, shape), 0.0)


@FAST
@given(st.integers(0, 10_000), st.integers(10, 80), st.floats(0.0, 0.2), st.floats(0.001, 0.1))
def test_more_evidence_is_never_worse(seed: int, queries: int, gain: float, more: float) -> None:
    """A larger gain on each query: lower p, higher probability of a gain, and lower of harm."""
    changes = jumps(np.random.default_rng(seed), (queries,))
    before = np.full(queries, 0.5)
    seen = np.arange(queries) % 2 == 0

    def report(by: float) -> tuple[float, float, float, float]:
        after = before + changes + by
        unseen = np.where(seen, np.nan, after)
        found = judge(
            Answers(before, seen, np.where(seen, np.nan, before)), Answers(after, seen, unseen), samples=500
        )
        harm = found.slice("unseen").harm
        assert found.decision is not None
        assert harm is not None
        assert found.p_value is not None
        assert found.decision.low <= found.decision.expected <= found.decision.high
        return found.p_value, harm, -found.decision.helps, -found.decision.expected

    assert all(b <= a + 1e-9 for a, b in zip(report(gain), report(gain + more), strict=True))


def test_the_probability_of_noise_by_hand() -> None:
    """s²/n = .01²; N(.02; 0, .01²) is e⁻² / .01, N(.02; .02, .01² + .02²) is 1 / √.0005: odds of .3026."""
    prior = Normal(0.02, 0.02)
    odds = math.exp(-2) / 0.01 * math.sqrt(0.0005)
    assert noise_after(prior, 0.5, 0.02, 0.1, 100) == pytest.approx(odds / (1 + odds), abs=1e-9)
    assert noise_after(prior, 0.1, 0.02, 0.1, 100) == pytest.approx(odds / (9 + odds), abs=1e-9)
    assert noise_after(prior, 0.0, -0.5, 0.1, 100) < 1e-6
    assert 0 <= noise_after(prior, 0.5, 0.0, 0.0, 100) <= 1


@FAST
@given(st.floats(0.001, 0.5), st.floats(0.01, 0.3), st.integers(10, 400), st.floats(0.0, 0.2))
def test_a_gain_speaks_against_noise(noise: float, deviation: float, queries: int, gain: float) -> None:
    prior = Normal(0.012, 0.025)
    found = [noise_after(prior, noise, of, deviation, queries) for of in (gain, gain + 0.01)]
    assert 1 >= found[0] >= found[1] - 1e-12 >= -1e-12


def test_the_posterior_by_hand() -> None:
    """Precision 100/.1² + 1/.02² = 12,500; mean (−.05·10,000 + .01·2,500)/12,500 = −.038."""
    found = posterior(-0.05, 0.1, 100, Normal(0.01, 0.02))
    assert found.mean == pytest.approx(-0.038)
    assert found.deviation == pytest.approx(12_500**-0.5)
    assert found.below(-0.038) == 0.5
    assert found.below(-0.02) == pytest.approx(0.978, abs=1e-3)  # Φ(.018 · √12,500) = Φ(2.01)
    assert found.quantile(0.05) == pytest.approx(-0.038 - 1.645 * 12_500**-0.5, abs=1e-5)
    flat = posterior(0.03, 0.1, 100, FLAT)
    assert (flat.mean, flat.deviation) == (pytest.approx(0.03), pytest.approx(0.01))
    assert (posterior(0.1, 0.0, 3, FLAT).below(0.0), posterior(-0.1, 0.0, 3, FLAT).below(0.0)) == (0.0, 1.0)


def test_few_queries_have_a_typical_deviation() -> None:
    assert deviation_of(np.array([0.2]), WHOLE_PRIOR) == pytest.approx(0.15)
    assert deviation_of(np.zeros(9), WHOLE_PRIOR) == pytest.approx(0.15 * math.sqrt(0.5))
    many = np.random.default_rng(0).normal(0, 0.3, 2000)
    assert deviation_of(many, WHOLE_PRIOR) == pytest.approx(0.3, abs=0.01)
    assert deviation_of(np.array([1.0, 3.0]), FLAT) == pytest.approx(math.sqrt(2))


def test_a_slice_without_queries_is_judged_by_the_prior() -> None:
    """It is within the bounds of every risk; a stricter gate would want to see such queries."""
    assert 0.03 < SLICE_PRIOR.below(-0.02) < 0.05
    before, seen = np.full(60, 0.5), np.ones(60, bool)
    pair = (Answers(before, seen, np.full(60, np.nan)), Answers(before + 0.1, seen, np.full(60, np.nan)))
    for risk in RISKS:
        assert judge(*pair, Gate.of_risk(risk)).passed
    report = judge(*pair, Gate(harm=0.01))
    assert report.verdict == "cannot tell"
    assert report.reason.startswith("no held-out query is about unseen documents; the probability is 0.04")
    assert judge(*pair, Gate(harm=0.01), need_slices=False).passed


def test_further_queries_by_hand() -> None:
    """((1.645 + .842) · .12 / .03)² = 98.9 queries in all."""
    assert further_for_significance(0.03, 0.12, 40, 0.05) == 59
    assert further_for_significance(0.01, 0.12, 40, 0.05) == 860  # of 891
    assert further_for_significance(0.0, 0.12, 40, 0.05) is None
    assert further_for_significance(1e-6, 0.12, 40, 0.05) is None
    assert [rounded(n) for n in (0.2, 12.0, 121.0, 1_234.0, 1e6)] == [1, 12, 130, 1_300, None]
    assert further_for_slice(-0.05, 0.1, 27, SLICE_PRIOR, 0.02, 0.1) is None
    further = further_for_slice(-0.01, 0.15, 40, SLICE_PRIOR, 0.02, 0.01)
    assert further is not None
    assert posterior(-0.01, 0.15, 40 + further, SLICE_PRIOR).below(-0.02) <= 0.01
    assert posterior(-0.01, 0.15, 40 + further // 2, SLICE_PRIOR).below(-0.02) > 0.01


def test_so_many_further_queries_settle_it_four_times_in_five() -> None:
    generator, passed, queries = np.random.default_rng(0), 0, 40
    further = further_for_significance(0.03, 0.12, queries, 0.05)
    assert further is not None
    for seed in range(300):
        changes = generator.normal(0.03, 0.12, queries + further)
        passed += sign_flip_p_value(changes, samples=500, seed=seed) <= 0.05
    assert passed / 300 == pytest.approx(0.8, abs=0.07)


def test_a_decision_in_words_and_as_json() -> None:
    decision = Decision(0.0123, -0.008, 0.03, 0.91, 120)
    assert decision.to_text() == (
        "9 in 10 that it helps: expected +0.0123, at worst -0.0080; "
        "about 120 more judged queries would settle it"
    )
    assert json.loads(json.dumps(decision.to_dict()))["text"] == decision.to_text()
    assert "settle" not in Decision(0.1, 0.05, 0.15, 1.0).to_text()
