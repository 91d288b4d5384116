"""Calibration error and AUROC by hand, by definition, and where they are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.errors import InvalidRequest
from dsearch.evaluation.calibration import (
    answerability,
    auroc,
    debiased_calibration_error,
    expected_calibration_error,
)


def test_by_hand() -> None:
    weights = np.array([0.1, 0.2, 0.8, 0.9])
    wrong = np.array([False, True, True, True])
    assert auroc(weights, wrong) == 1.0
    assert expected_calibration_error(weights, wrong, bins=2) == pytest.approx((0.35 + 0.15) / 2)
    assert auroc(np.array([0.5, 0.5, 0.5, 0.2]), wrong) == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert expected_calibration_error(np.zeros(0), np.zeros(0, bool)) == 0


def test_what_chance_adds_is_taken_out_by_hand() -> None:
    """Two of four at .9: (.5 - .9)^2 less .5 * .5 / 3."""
    likely, right = np.full(4, 0.9), np.array([True, True, False, False])
    found = debiased_calibration_error(likely, right, bins=1)
    assert found == pytest.approx(np.sqrt(0.16 - 0.25 / 3))


@settings(max_examples=by_size(25, 250))
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs(pairs: list[tuple[int, bool]]) -> None:
    scores, wrong = np.array([float(score) for score, _ in pairs]), np.array([flag for _, flag in pairs])
    if wrong.all() or not wrong.any():
        with pytest.raises(InvalidRequest, match="give some of both"):
            auroc(scores, wrong)
        return
    difference = scores[wrong][:, None] - scores[~wrong]
    expected = ((difference > 0) + 0.5 * (difference == 0)).mean()
    assert auroc(scores, wrong) == pytest.approx(expected)
    assert auroc(-scores, wrong) == pytest.approx(1 - expected)


def test_probabilities_that_are_right_have_a_small_error_and_others_a_large_one() -> None:
    generator = np.random.default_rng(0)
    weights = generator.uniform(size=20_000)
    wrong = generator.uniform(size=20_000) < weights
    assert expected_calibration_error(weights, wrong) < 0.02
    assert expected_calibration_error(weights**3, wrong) > 0.15
    assert auroc(weights**3, wrong) == pytest.approx(auroc(weights, wrong))


def test_the_report_says_what_there_is() -> None:
    weights, wrong = np.array([0.1, 0.9]), np.array([False, True])
    told = answerability(weights, wrong)
    assert (told.answerable, told.unanswerable, told.auroc) == (1, 1, 1.0)
    assert "expected calibration error 0.1000" in told.to_text()
    without = answerability(weights, wrong, slot=False)
    assert without.calibration_error is None
    assert "no null slot" in without.to_text()
