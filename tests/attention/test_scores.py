from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from dsearch.attention import (
    SCORES,
    AdditiveScore,
    GeneralScore,
    KernelScore,
    additive,
    attend,
    boxcar,
    cosine,
    dot,
    epanechnikov,
    exact_match,
    gaussian,
    general,
    masked_softmax,
    scaled_dot_product,
    score_named,
    unit,
)
from dsearch.attention.scores import squared_distance
from dsearch.errors import DimensionMismatch, InvalidRequest

Q = torch.tensor([[3.0, 4.0]])
K = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])


def test_by_hand():
    assert dot(Q, K).tolist() == [[3.0, 8.0, 25.0]]
    assert scaled_dot_product(Q, K).tolist()[0] == pytest.approx([3 / 2**0.5, 8 / 2**0.5, 25 / 2**0.5])
    assert cosine(Q, K).tolist()[0] == pytest.approx([0.6, 0.8, 1.0])
    assert general(Q, K, torch.tensor([[0.0, 1.0], [1.0, 0.0]])).tolist() == [[4.0, 6.0, 24.0]]
    assert additive(Q, K).tolist()[0] == pytest.approx(
        [math.tanh(4) + math.tanh(4), math.tanh(3) + math.tanh(6), math.tanh(6) + math.tanh(8)]
    )
    assert gaussian(Q, K, 2.0).tolist()[0] == pytest.approx([-20 / 8, -13 / 8, 0.0])
    assert epanechnikov(Q, K, 4.0).tolist()[0] == pytest.approx([-math.inf, math.log(3 / 16), 0.0])
    assert boxcar(Q, K, 4.0).tolist() == [[-math.inf, 0.0, 0.0]]
    assert exact_match(Q, K).tolist() == [[-math.inf, -math.inf, 0.0]]
    assert exact_match(Q, torch.tensor([[3.0, 0.0]])).tolist() == [[-math.inf]]  # half of it matches


@pytest.mark.parametrize("name", SCORES)
def test_one_interface_for_all(name):
    score = score_named(name)
    queries, keys = torch.randn(2, 1, 3, 4), torch.randn(5, 6, 4)
    out = score(queries, keys)
    assert out.shape == (2, 5, 3, 6)
    torch.testing.assert_close(out[1, 2], score(queries[1, 0], keys[2]))
    assert score(queries, keys[:, :0]).shape == (2, 5, 3, 0)


@pytest.mark.parametrize("name", SCORES)
def test_unequal_dimensions_are_refused(name, unchecked):
    with pytest.raises(DimensionMismatch):
        SCORES[name](torch.ones(1, 3), torch.ones(1, 4))


def test_unequal_dimensions_are_explained(unchecked):
    with pytest.raises(DimensionMismatch, match=r"dimension 3, keys of 4.*AdditiveScore"):
        general(torch.ones(1, 3), torch.ones(1, 4))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"score='dott'; use one of dot, scaled_dot_product, cosine"):
        score_named("dott")


@pytest.mark.parametrize("name", ["dot", "scaled_dot_product", "cosine", "general", "additive", "gaussian"])
def test_gradients(name, draw):
    assert gradcheck(SCORES[name], (draw(2, 3, 4), draw(2, 5, 4)))


def test_gradients_of_parameters(draw):
    queries, keys = draw(3, 4), draw(5, 2)
    assert gradcheck(general, (queries, keys, draw(4, 2)))
    assert gradcheck(additive, (queries, keys, draw(6, 4), draw(6, 2), draw(6)))
    width = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(gaussian, (draw(3, 2), keys, width))


def test_gradients_of_epanechnikov_within_its_support(draw):
    width = torch.tensor(50.0, dtype=torch.float64, requires_grad=True)
    assert gradcheck(epanechnikov, (draw(3, 2), draw(4, 2), width))


def test_gradients_where_epanechnikov_masks(draw):
    queries, keys = draw(3, 2), draw(6, 2)
    width = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    scores = epanechnikov(queries, keys, width)
    assert (scores == -math.inf).any()
    assert (scores > -math.inf).any()
    assert gradcheck(lambda q, k, w: masked_softmax(epanechnikov(q, k, w)), (queries, keys, width))


def test_the_edge_of_epanechnikov_is_outside_and_has_no_nan():
    key = torch.tensor([[1.0], [0.5]], requires_grad=True)
    weights = masked_softmax(epanechnikov(torch.zeros(1, 1), key))
    assert weights.tolist() == [[0.0, 1.0]]
    weights[0, 1].backward()
    assert key.grad.tolist() == [[0.0], [0.0]]


def test_exact_match_and_boxcar_have_no_gradient(draw):
    assert not exact_match(draw(1, 2), draw(3, 2)).requires_grad
    assert not boxcar(draw(1, 2), draw(3, 2)).requires_grad


def test_distances_do_not_cancel_far_from_the_origin():
    far = 1e3 + torch.rand(50, 8)
    assert squared_distance(far, far).diagonal().tolist() == [0.0] * 50
    near = far + 0.01 * torch.randn(50, 8)
    exact = (far.double() - near.double()).square().sum(-1).float()
    torch.testing.assert_close(squared_distance(far, near).diagonal(), exact, rtol=1e-5, atol=0)


def test_equal_vectors_have_gradient_zero(draw):
    key = draw(1, 3)
    squared_distance(key.detach().clone(), key).backward()
    assert key.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_a_zero_vector_has_cosine_zero_and_no_gradient():
    zero = torch.zeros(1, 2, requires_grad=True)
    scores = cosine(zero, K)
    assert scores.tolist() == [[0.0, 0.0, 0.0]]
    scores.sum().backward()
    assert zero.grad.tolist() == [[0.0, 0.0]]


def test_unit_vectors_have_length_one():
    torch.testing.assert_close(unit(Q), Q / 5)


def test_additive_projects_each_side_once():
    """m + n products, not m · n: the pairs meet after the projections only."""
    from torch.utils.flop_counter import FlopCounterMode

    m, n, d, hidden = 7, 11, 5, 3
    score = AdditiveScore(d, d, hidden)
    with FlopCounterMode(display=False) as flops:
        score(torch.randn(m, d), torch.randn(n, d))
    assert flops.get_total_flops() <= 2 * (m + n) * d * hidden + 2 * m * n * hidden


def test_additive_equals_the_unfactored_form():
    score = AdditiveScore(3, 4, 5)
    queries, keys = torch.randn(2, 3), torch.randn(6, 4)
    together = torch.cat([score.query_weight, score.key_weight], 1)
    for i, j in [(0, 0), (1, 5)]:
        pair = torch.cat([queries[i], keys[j]])
        expected = score.vector @ torch.tanh(together @ pair)
        torch.testing.assert_close(score(queries, keys)[i, j], expected)


def test_general_starts_as_the_inner_product_and_learns():
    assert GeneralScore(2, 3).weight.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    score = GeneralScore(2)
    assert torch.equal(score(Q, K), dot(Q, K))
    score(Q, K).sum().backward()
    assert score.weight.grad.abs().sum() > 0


def test_a_learned_width_starts_where_told_and_stays_positive():
    score = KernelScore("gaussian", 2.0)
    torch.testing.assert_close(score(Q, K), gaussian(Q, K, 2.0))
    with torch.no_grad():
        score.log_width -= 100
    assert score.width > 0


def test_a_kernels_width_must_be_positive_and_its_name_known():
    with pytest.raises(InvalidRequest, match=r"width=0.0; use a number above 0"):
        KernelScore(width=0.0)
    with pytest.raises(InvalidRequest, match=r"kernel='tophat'; use one of gaussian, epanechnikov, boxcar"):
        KernelScore("tophat")


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("gaussian", lambda u: torch.exp(-u.square() / 2)),
        ("epanechnikov", lambda u: (1 - u.square()).clamp_min(0)),
        ("boxcar", lambda u: (u < 1).to(u.dtype)),
    ],
)
def test_softmax_over_a_kernel_is_the_kernel_normalised(name, kernel):
    queries, keys = torch.rand(4, 1).double(), torch.rand(9, 1).double()
    expected = kernel((queries - keys.T).abs())
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(attend(queries, keys, score=name).weights, expected)
