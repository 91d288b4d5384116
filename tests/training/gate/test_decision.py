"""Adjusted p-values, posteriors and power: by hand, and as properties."""

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
    on_common_queries,
    posterior,
    rounded,
    sign_flip_p_value,
    step_down_p_values,
)
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.gate.held_out import Answers

FAST = settings(max_examples=30, deadline=None)


def jumps(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Changes of nDCG@10: most queries keep theirs, some jump, either way alike."""
    moved = generator.random(shape) < 0.3
    return np.where(moved, generator.normal(0, 0.25, shape), 0.0)


@FAST
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(5, 60), st.floats(-0.05, 0.1))
def test_adjusted_p_values_are_never_below_the_raw_ones(
    seed: int, candidates: int, queries: int, gain: float
) -> None:
    differences = jumps(np.random.default_rng(seed), (candidates, queries)) + gain
    raw = [sign_flip_p_value(row, samples=500) for row in differences]
    weights = np.random.default_rng(seed).dirichlet(np.ones(candidates)).tolist()
    for shares in (None, weights):
        adjusted = step_down_p_values(differences, raw, weights=shares, samples=500)
        assert all(a >= r for a, r in zip(adjusted, raw, strict=True))
        assert max(adjusted) <= 1.0
        order = np.argsort(np.array(raw) / (np.ones(candidates) if shares is None else shares), kind="stable")
        assert np.all(np.diff(np.array(adjusted)[order]) >= 0)
    # Bonferroni's inequality: sharing the signs can only help.
    first = int(np.argmin(raw))
    assert step_down_p_values(differences, raw, samples=500)[first] <= min(
        1.0, candidates * raw[first] + 0.02
    )


@FAST
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(5, 60))
def test_identical_candidates_pay_nothing(seed: int, candidates: int, queries: int) -> None:
    one = jumps(np.random.default_rng(seed), (queries,)) + 0.03
    raw = sign_flip_p_value(one, samples=500)
    differences = np.tile(one, (candidates, 1))
    for weights in (None, [0.8, *[0.2] * (candidates - 1)]):
        adjusted = step_down_p_values(differences, [raw] * candidates, weights=weights, samples=500)
        assert adjusted == [raw] * candidates


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


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_two_null_candidates_err_as_often_as_alpha(correlation: float) -> None:
    """Whether any of both has an adjusted p of at most .05, .2, .5: so often, whatever their correlation."""
    generator = np.random.default_rng(1)
    trials, lowest = 400, []
    for trial in range(trials):
        first, other = jumps(generator, (2, 80))
        second = np.where(generator.random(80) < correlation, first, other)
        differences = np.stack([first, second])
        raw = [sign_flip_p_value(row, samples=400, seed=trial) for row in differences]
        adjusted = step_down_p_values(differences, raw, weights=(0.8, 0.2), samples=400, seed=trial)
        lowest.append(min(adjusted))
    for alpha in (0.05, 0.2, 0.5):
        error = 2.6 * math.sqrt(alpha * (1 - alpha) / trials)  # beyond by chance: 1 in 200
        assert np.mean(np.array(lowest) <= alpha) == pytest.approx(alpha, abs=error)


def test_two_candidates_by_hand() -> None:
    """Two queries, four sign patterns: (1, 1) and (1, −1) have sums 2, 0, 0, −2 and 0, 2, −2, 0."""
    differences = np.array([[1.0, 1.0], [1.0, -1.0]])
    raw = [sign_flip_p_value(row) for row in differences]
    assert raw == pytest.approx([0.25, 0.75], abs=0.02)
    first, second = step_down_p_values(differences, raw)
    assert first == pytest.approx(0.5, abs=0.02)  # the sum of one of both is 2 in two patterns of four
    assert second == pytest.approx(0.75, abs=0.02)


def test_candidates_on_different_queries_share_signs_where_both_were_judged() -> None:
    rows, every = on_common_queries(
        [(np.array([1.0, 2.0]), np.array([7, 3])), (np.array([5.0, 6.0]), np.array([3, 4]))]
    )
    np.testing.assert_array_equal(rows, [[2.0, np.nan, 1.0], [5.0, 6.0, np.nan]])
    np.testing.assert_array_equal(every, [3, 4, 7])
    generator = np.random.default_rng(0)
    one = jumps(generator, (60,)) + 0.04
    raw = sign_flip_p_value(one)
    apart, _ = on_common_queries([(one, np.arange(60)), (one, np.arange(60, 120))])
    assert step_down_p_values(apart, [raw, 1.0])[0] == pytest.approx(1 - (1 - raw) ** 2, abs=0.01)
    assert step_down_p_values(np.zeros((2, 5)), [1.0, 1.0]) == [1.0, 1.0]


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
