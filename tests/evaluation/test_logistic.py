"""The logistic fit: its formula, its optimum, and evidence that does not vary."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dsearch.errors import InvalidRequest
from dsearch.evaluation.confidence import Logistic, fit_logistic


def test_the_probability_is_that_of_standardised_evidence() -> None:
    fitted = Logistic([1.0, -2.0], [2.0, 0.5], [0.3, -0.7], 0.1)
    rows = np.array([[3.0, -1.0], [1.0, -2.0]])
    logit = 0.3 * (3 - 1) / 2 - 0.7 * (-1 + 2) / 0.5 + 0.1
    expected = [1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(-0.1))]
    assert fitted(rows).tolist() == pytest.approx(expected)
    wider = np.column_stack([rows, [100.0, 100.0]])  # evidence that a later release adds
    assert fitted(wider).tolist() == pytest.approx(expected)


def test_certain_probabilities_stay_finite() -> None:
    fitted = Logistic([0.0], [1.0], [1.0], 0.0)
    low, high = fitted(np.array([[-1e9], [1e9]]))
    assert 0 < low < 1e-12
    assert 1 - 1e-12 < high < 1


def test_the_fit_is_where_the_penalised_gradient_is_zero() -> None:
    """Weights are penalised by half their square and the constant is not."""
    generator = np.random.default_rng(0)
    rows = np.column_stack([5 + 3 * generator.normal(size=60), generator.normal(size=60), np.full(60, 4.0)])
    positive = rows[:, 0] + generator.normal(size=60) > 5
    fitted = fit_logistic(rows, positive)
    np.testing.assert_allclose(fitted.mean, rows.mean(0))
    np.testing.assert_allclose(fitted.scale, [*rows[:, :2].std(0), 1.0])
    away = positive - fitted(rows)
    standard = (rows - fitted.mean) / fitted.scale
    np.testing.assert_allclose(standard.T @ away, fitted.weights, atol=1e-4)
    assert away.sum() == pytest.approx(0, abs=1e-4)
    assert fitted.weights[2] == 0
    assert fitted.weights[0] > abs(fitted.weights[1])


@pytest.mark.parametrize(("positive", "right"), [([True, True], 2), ([False, False], 0)])
def test_one_kind_alone_is_refused(positive: list[bool], right: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"{right} of 2 queries are right; give some of both kinds"):
        fit_logistic(np.zeros((2, 1)), np.array(positive))


def test_rounding_is_no_evidence() -> None:
    """A column that varies by its rounding alone would otherwise be blown up to whole deviations."""
    positive = np.arange(40) % 2 == 0
    fitted = fit_logistic((0.3 + 1e-9 * positive)[:, None], positive)
    assert fitted.scale == [1.0]
    assert fitted(np.array([[0.3], [0.3 + 1e-9]])) == pytest.approx([0.5, 0.5])
