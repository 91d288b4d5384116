"""Kernel regression written out: mean, spread, and the loss that leaves each point out."""

from __future__ import annotations

import math

import pytest
import torch

from dsearch.attention.regression import NadarayaWatson, predict
from dsearch.errors import InvalidRequest

KEYS = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
VALUES = torch.tensor([[1.0, 0.0], [2.0, 10.0], [6.0, 20.0]], dtype=torch.float64)


def test_mean_and_spread_of_weighted_values() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    found = predict(weights, VALUES)
    assert found.mean.tolist() == [[2.5, 7.5], [2.0, 10.0], [0.0, 0.0]]
    first = math.sqrt(0.5 * 1.5**2 + 0.25 * 0.5**2 + 0.25 * 3.5**2)
    second = math.sqrt(0.5 * 7.5**2 + 0.25 * 2.5**2 + 0.25 * 12.5**2)
    assert found.spread[0].tolist() == pytest.approx([first, second])
    assert found.spread[1:].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_certain_prediction_has_a_finite_gradient() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    predict(weights, VALUES).spread.sum().backward()
    assert weights.grad is not None
    assert weights.grad.isfinite().all()


@pytest.mark.parametrize("width", [0.5, 1.0, 4.0])
def test_it_is_the_kernels_average(width: float) -> None:
    query = 0.5
    kernel = torch.exp(-0.5 * ((query - KEYS[:, 0]) / width) ** 2)
    expected = (kernel[:, None] * VALUES).sum(0) / kernel.sum()
    model = NadarayaWatson("gaussian", width).double()
    found = model(torch.tensor([[query]], dtype=torch.float64), KEYS, VALUES)
    torch.testing.assert_close(found.context[0], expected)
    torch.testing.assert_close(found.weights[0], kernel / kernel.sum())


def test_far_from_every_key_it_is_the_mean_of_all() -> None:
    model = NadarayaWatson("epanechnikov", 1.0).double()
    found = model(torch.tensor([[100.0]], dtype=torch.float64), KEYS, VALUES)
    assert found.context.tolist() == [[3.0, 10.0]]
    assert not found.weights.any()


def test_what_is_masked_has_no_part() -> None:
    model = NadarayaWatson(width=1.0).double()
    mask = torch.tensor([[True, False, False]])
    found = model(torch.tensor([[2.9]], dtype=torch.float64), KEYS, VALUES, mask)
    torch.testing.assert_close(found.context[0], VALUES[0])


def test_the_loss_predicts_each_point_from_all_others() -> None:
    model = NadarayaWatson("gaussian", 1.5).double()
    total = 0.0
    for at in range(3):
        others = [place for place in range(3) if place != at]
        found = model(KEYS[at : at + 1], KEYS[others], VALUES[others]).context[0]
        total += (found - VALUES[at]).square().sum().item()
    loss = model.leave_one_out_loss(KEYS, VALUES)
    assert loss.item() == pytest.approx(total / 6)
    loss.backward()
    assert model.score.log_width.grad is not None
    assert model.score.log_width.grad != 0


def test_kernels_and_widths_that_there_are_not() -> None:
    assert NadarayaWatson().score.kernel == "gaussian"
    assert NadarayaWatson().score.width.item() == 1.0
    with pytest.raises(InvalidRequest, match="kernel='cosine'; use one of gaussian, epanechnikov, boxcar"):
        NadarayaWatson("cosine")
    with pytest.raises(InvalidRequest, match="width=0; use a number above 0"):
        NadarayaWatson(width=0)
