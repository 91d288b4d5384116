"""The choice model ends in a minimum of its loss, by steps that know its slope and curvature."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.training.finetune.stage_fit import _Choice, fit_choice  # pyright: ignore[reportPrivateUsage]


def drawn(seed: int, *, scores_tell: float = 0.3, inputs_tell: float = 0.3) -> tuple[np.ndarray, ...]:
    """Scores, inputs, presence and targets of 40 queries; a third of them lack two of 8 candidates."""
    chance = np.random.default_rng(seed)
    target = np.eye(8)[chance.integers(6, size=40)]
    present = np.ones((40, 8), bool)
    present[::3, 6:] = False
    scores = chance.normal(size=(40, 8)) + scores_tell * target
    inputs = chance.normal(size=(40, 8, 3)) * present[..., None]
    inputs[..., 0] += inputs_tell * target
    return scores, inputs, present, target


def test_slope_and_curvature_are_those_of_differences() -> None:
    scores, inputs, present, target = drawn(0)
    model = _Choice(scores, inputs, present, target, 0.1)
    point, small = np.array([0.3, -0.2, 0.1, 0.4]), 1e-5
    slope, curvature = model.derivatives(point)
    for at in range(4):
        step = np.eye(4)[at] * small
        rise = (model.loss(point + step) - model.loss(point - step)) / (2 * small)
        assert slope[at] == pytest.approx(rise, abs=1e-8)
        bend = (model.derivatives(point + step)[0] - model.derivatives(point - step)[0]) / (2 * small)
        np.testing.assert_allclose(curvature[at], bend, atol=1e-7)


def test_the_loss_is_the_cross_entropy_and_the_ridge() -> None:
    scores = np.log([[0.5, 0.25, 0.25], [0.5, 0.5, 7.0]])
    inputs = np.array([[[1.0], [0.0], [0.0]], [[0.0], [0.0], [0.0]]])
    present = np.array([[True, True, True], [True, True, False]])
    target = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    model = _Choice(scores, inputs, present, target, 0.5)
    assert model.loss(np.zeros(2)) == pytest.approx(np.log(2))
    assert model.loss(np.array([np.log(2), 0.0])) == pytest.approx(
        (np.log(3 / 2) + np.log(2)) / 2 + 0.5 * np.log(2) ** 2
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tell", [(1.0, 1.0), (0.3, 0.0), (0.0, 0.5)])
def test_no_point_beside_the_end_is_lower(seed: int, tell: tuple[float, float]) -> None:
    scores, inputs, present, target = drawn(seed, scores_tell=tell[0], inputs_tell=tell[1])
    weights = fit_choice(scores, inputs, present, target, 0.05)
    model = _Choice(scores, inputs, present, target, 0.05)

    def lowest(weights: np.ndarray) -> float:
        """With the best steepness."""
        return min(model.loss(np.append(weights, log)) for log in np.linspace(-12, 3, 751))

    at_end = lowest(weights)
    assert at_end <= lowest(np.zeros(3)) + 1e-9
    for direction in np.concatenate([np.eye(3), -np.eye(3)]):
        assert lowest(weights + 0.05 * direction) > at_end - 1e-6


def test_what_breaks_the_last_ties_keeps_a_weight() -> None:
    """With it no judgement is missed, and there is no minimum: the fit ends before the weight is nothing."""
    target = np.eye(4)[np.arange(40) % 4]
    scores = 5 * (target + np.roll(target, 1, axis=1))
    weights = fit_choice(scores, target[..., None], np.ones((40, 4), bool), target, 0.1)
    assert 1e-4 < weights[0] < 0.1


def test_what_scores_tell_by_themselves_needs_no_weight_and_overflows_nothing() -> None:
    target = np.eye(4)[np.arange(40) % 4]
    inputs = np.random.default_rng(0).normal(size=(40, 4, 2))
    weights = fit_choice(5 * target, inputs, np.ones((40, 4), bool), target, 0.1)
    assert np.abs(weights).max() < 0.05
    weights = fit_choice(-5 * target, inputs, np.ones((40, 4), bool), target, 0.1)
    assert np.isfinite(weights).all()
