from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from dsearch.attention import entropy, masked_log_softmax, masked_softmax, temper
from dsearch.attention.arrays import unit

INF = math.inf

FUNCTIONS = [masked_softmax, masked_log_softmax, lambda x: temper(x, torch.tensor(2.0)), unit]


def test_by_hand():
    weights = masked_softmax(torch.tensor([0.0, math.log(3.0)]))
    assert weights.tolist() == pytest.approx([0.25, 0.75])


def test_without_a_mask_it_is_torchs_softmax():
    logits = torch.randn(3, 4, 5)
    torch.testing.assert_close(masked_softmax(logits, dim=1), logits.softmax(1))
    torch.testing.assert_close(masked_log_softmax(logits, dim=1), logits.log_softmax(1))


def test_masked_places_are_zero_and_the_rest_is_renormalised():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, False, True]])
    expected = torch.tensor([[1.0, 3.0]]).softmax(-1)
    weights = masked_softmax(logits, mask)
    assert weights[0, 1] == 0
    torch.testing.assert_close(weights[:, ::2], expected)
    torch.testing.assert_close(masked_softmax(torch.tensor([[1.0, -INF, 3.0]])), weights)


def test_a_mask_broadcasts():
    logits = torch.randn(2, 3, 4)
    mask = torch.tensor([True, True, False, True])
    torch.testing.assert_close(masked_softmax(logits, mask), masked_softmax(logits, mask.expand(2, 3, 4)))


@pytest.mark.parametrize("function", [masked_softmax, lambda x, m: masked_log_softmax(x, m, fill=0.0)])
@pytest.mark.parametrize(
    ("logits", "mask"),
    [
        ([[-INF, -INF]], [[True, True]]),
        ([[1.0, 2.0]], [[False, False]]),
        ([[1.0, -INF]], [[False, True]]),
    ],
)
def test_an_empty_slice_is_zero_in_value_and_gradient(function, logits, mask):
    logits = torch.tensor(logits, requires_grad=True)
    weights = function(logits, torch.tensor(mask))
    assert weights.tolist() == [[0.0, 0.0]]
    (weights * torch.tensor([[1.0, -2.0]])).sum().backward()
    assert logits.grad.tolist() == [[0.0, 0.0]]


def test_no_nan_is_made_on_the_way():
    """Nor are there any for anomaly detection to stumble over in somebody else's training."""
    logits = torch.full((1, 2), -INF, requires_grad=True)
    with torch.autograd.detect_anomaly():
        masked_softmax(logits).sum().backward()
        masked_log_softmax(logits, fill=0.0).sum().backward()


def test_an_empty_slice_beside_a_full_one_leaves_its_gradient_alone():
    logits = torch.tensor([[-INF, -INF], [0.0, 0.0]], requires_grad=True)
    masked_softmax(logits)[:, 0].sum().backward()
    assert logits.grad.tolist() == [[0.0, 0.0], [0.25, -0.25]]


def test_no_candidates():
    assert masked_softmax(torch.empty(2, 0)).shape == (2, 0)
    assert entropy(torch.empty(2, 0)).tolist() == [0.0, 0.0]


def test_huge_logits_do_not_overflow():
    weights = masked_softmax(torch.tensor([[1e4, -1e4, 1e4]], requires_grad=True))
    assert weights.tolist() == [[0.5, 0.0, 0.5]]
    assert masked_log_softmax(torch.tensor([1e4, -1e4])).tolist() == [0.0, -2e4]


def test_masked_logarithm_is_minus_infinity_or_what_is_asked_for():
    mask = torch.tensor([True, False])
    assert masked_log_softmax(torch.zeros(2), mask).tolist() == [0.0, -INF]
    assert masked_log_softmax(torch.zeros(2), mask, fill=0.0).tolist() == [0.0, 0.0]


def test_gradients(draw):
    logits, mask = draw(3, 5), torch.rand(3, 5) > 0.4
    mask[0] = False
    assert gradcheck(lambda x: masked_softmax(x, mask), logits)
    assert gradcheck(lambda x: masked_log_softmax(x, mask, fill=0.0), logits)
    assert gradcheck(lambda x: entropy(masked_softmax(x, mask)), logits)


def test_a_score_that_is_left_out_leaves_the_temperature_a_gradient():
    scores = torch.tensor([1.0, -math.inf, 3.0], requires_grad=True)
    temperature = torch.tensor(0.5, requires_grad=True)
    logits = temper(scores, temperature)
    assert logits.tolist() == [2.0, -math.inf, 6.0]
    logits.softmax(-1)[0].backward()
    assert temperature.grad.isfinite()
    assert scores.grad.isfinite().all()


def test_entropy_by_hand():
    weights = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]])
    for values in (weights, weights.numpy()):
        assert entropy(values).tolist() == pytest.approx([0.0, math.log(4.0), 0.0])
    with torch.no_grad():
        assert entropy(weights).tolist() == pytest.approx([0.0, math.log(4.0), 0.0])


def test_entropy_of_underflowed_weights_has_a_finite_gradient():
    logits = torch.tensor([[0.0, -1e4]], requires_grad=True)
    entropy(masked_softmax(logits)).sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_answering_gives_what_training_gives(function, draw):
    for logits in (draw(3, 5), draw(3, 5).masked_fill(torch.rand(3, 5) > 0.4, -INF), torch.zeros(3, 5)):
        if function is unit and logits.isinf().any():
            continue
        expected = function(logits)
        with torch.inference_mode():
            assert torch.equal(function(logits), expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_torch_func_maps_over_them(function, draw):
    logits = draw(3, 5)
    assert torch.allclose(torch.vmap(function)(logits), torch.stack([function(row) for row in logits]))
    assert torch.func.jacfwd(function)(logits[0]).shape == (5, 5)
