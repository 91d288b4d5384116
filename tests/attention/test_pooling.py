from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from dsearch.attention import POOLINGS, SCORES, attend, cone, hard, mix, normalise, pool, soft, uniform
from dsearch.attention.arrays import CONE, cone_logits
from dsearch.errors import InvalidRequest

quick = settings(max_examples=by_size(25, 250))
numbers = st.floats(-100, 100, width=32)


@given(
    alpha=st.lists(st.floats(0, 10, width=32), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
@quick
def test_non_negative_weights_stay_in_the_cone_of_the_values(alpha, seed):
    """A half-space through the origin that holds every value holds the pooled one too."""
    values = torch.randn(len(alpha), 3, generator=torch.Generator().manual_seed(seed))
    normal = torch.randn(3, generator=torch.Generator().manual_seed(seed + 1))
    values = torch.where((values @ normal).unsqueeze(-1) < 0, -values, values)
    assert pool(torch.tensor([alpha]), values)[0] @ normal >= -1e-3


@given(logits=st.lists(numbers, min_size=1, max_size=6), seed=st.integers(0, 1000))
@quick
def test_softmax_stays_in_the_hull_of_the_values(logits, seed):
    """In every direction the pooled value lies between the extreme values."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(logits), 3, generator=generator)
    direction = torch.randn(3, 16, generator=generator)
    for alpha in (soft(torch.tensor([logits])), normalise(torch.tensor([logits]).abs())):
        if alpha.sum() == 0:
            continue
        shadow, extremes = pool(alpha, values) @ direction, values @ direction
        assert (shadow <= extremes.amax(0) + 1e-4).all()
        assert (shadow >= extremes.amin(0) - 1e-4).all()


def test_general_weights_by_hand():
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert pool(torch.tensor([[2.0, 3.0]]), values).tolist() == [[2.0, 3.0]]
    assert pool(normalise(torch.tensor([[2.0, 6.0]])), values).tolist() == [[0.25, 0.75]]


def test_normalise_is_total_and_refuses_negative_weights():
    assert normalise(torch.zeros(1, 3)).tolist() == [[0.0, 0.0, 0.0]]
    assert normalise(torch.ones(1, 2), torch.tensor([[True, False]])).tolist() == [[1.0, 0.0]]
    with pytest.raises(InvalidRequest, match=r"a weight of -1; use weights of 0 and above"):
        normalise(torch.tensor([[-1.0, 2.0]]))


def test_one_hot_weights_look_up_and_equal_weights_average():
    logits, values = torch.tensor([[1.0, 3.0, 2.0]]), torch.randn(3, 4)
    assert torch.equal(pool(hard(logits), values)[0], values[1])
    torch.testing.assert_close(pool(uniform(logits), values)[0], values.mean(0))


def test_ties_break_by_row():
    assert hard(torch.tensor([[1.0, 2.0, 2.0]])).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_masks_empty_sets_and_minus_infinity(pooling):
    logits = torch.tensor([[5.0, 1.0, -math.inf], [-math.inf, -math.inf, -math.inf]])
    mask = torch.tensor([[False, True, True], [True, True, True]])
    weights = POOLINGS[pooling](logits, mask)
    assert (weights > 0).tolist() == [[False, True, False], [False, False, False]]
    assert pooling in CONE or weights[0, 1] == 1
    out = attend(torch.ones(2, 4), torch.ones(0, 4), torch.ones(0, 3), pooling=pooling)
    assert out.context.tolist() == [[0.0] * 3] * 2
    assert out.weights.shape == (2, 0)


@pytest.mark.parametrize("pooling", sorted(set(POOLINGS) - set(CONE)))
def test_weights_sum_to_one(pooling):
    weights = POOLINGS[pooling](torch.randn(4, 5, 6), None)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 5))


@pytest.mark.parametrize("masked", [False, True])
def test_scaled_dot_product_is_torchs(masked):
    queries, keys, values = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
    mask = torch.rand(2, 1, 5, 7) > 0.5 if masked else None
    if mask is not None:
        mask[..., 0] = True
    ours = attend(queries, keys, values, mask=mask).context
    reference = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    torch.testing.assert_close(ours, reference, atol=1e-6, rtol=0)


def test_values_default_to_keys():
    queries, keys = torch.randn(2, 3), torch.randn(4, 3)
    assert torch.equal(attend(queries, keys).context, attend(queries, keys, keys).context)


def test_temperature_divides_the_score():
    queries, keys = torch.randn(2, 3), torch.randn(4, 3)
    cold = attend(queries, keys, score="dot", temperature=1e-4)
    assert torch.equal(
        cold.weights.argmax(-1), attend(queries, keys, score="dot", pooling="hard").weights.argmax(-1)
    )
    torch.testing.assert_close(
        attend(queries, keys, score="dot", temperature=3**0.5).weights, attend(queries, keys).weights
    )


def test_duplicate_keys_share_their_weight():
    queries, keys, values = torch.randn(1, 3), torch.randn(2, 3), torch.randn(2, 2)
    doubled = attend(queries, keys[[0, 1, 1]], values[[0, 1, 1]], score="dot")
    assert doubled.weights[0, 1] == doubled.weights[0, 2]


def test_unknown_names_are_explained():
    with pytest.raises(InvalidRequest, match=r"pooling='max'; use one of soft, hard, uniform"):
        attend(Q := torch.ones(1, 2), Q, pooling="max")
    with pytest.raises(InvalidRequest, match=r"score='l2'; use one of dot"):
        attend(Q, Q, score="l2")


SMOOTH = sorted(set(SCORES) - {"exact_match", "boxcar"})


@pytest.mark.parametrize("score", SMOOTH)
def test_gradients_of_soft_pooling(score, draw):
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 3, 5) > 0.3
    mask[0, 0] = False
    assert gradcheck(
        lambda q, k, v, t: attend(q, k, v, score=score, mask=mask, temperature=t),
        (draw(2, 3, 4), draw(2, 5, 4), draw(2, 5, 2), temperature),
    )


def test_gradients_of_duplicated_keys(draw):
    keys = draw(3, 4)
    for score in SMOOTH:
        assert gradcheck(
            lambda q, k, s=score: attend(q, k[[0, 0, 1, 2]], score=s).context, (draw(2, 4), keys)
        )


@pytest.mark.parametrize("pooling", ["hard", "uniform"])
def test_gradients_of_values_under_hard_and_uniform_pooling(pooling, draw):
    queries, keys = draw(2, 3), draw(4, 3)
    assert gradcheck(lambda v: attend(queries, keys, v, pooling=pooling).context, draw(4, 2))


def test_weights_without_normalisation_by_hand():
    logits = torch.tensor([[math.log(2.0), 0.0, -1.0, -math.inf]])
    assert cone(logits, kind="exp")[0].tolist() == pytest.approx([2, 1, math.exp(-1), 0])
    assert cone(logits, kind="relu")[0].tolist() == pytest.approx([math.log(2), 0, 0, 0])
    assert cone(logits, kind="sigmoid")[0].tolist() == pytest.approx([2 / 3, 0.5, 1 / (1 + math.e), 0])


@pytest.mark.parametrize("kind", CONE)
def test_no_other_key_changes_a_weight_of_the_cone(kind):
    queries, keys = torch.randn(3, 4), torch.randn(6, 4)
    every, few = (attend(queries, of, pooling=kind).weights for of in (keys, keys[:2]))
    torch.testing.assert_close(every[:, :2], few)
    assert (every >= 0).all()
    assert torch.isfinite(attend(1e3 * queries, keys, pooling=kind).context).all()


@pytest.mark.parametrize("kind", CONE)
def test_arrays_and_tensors_have_the_same_weights(kind):
    logits = np.array([-np.inf, -500.0, -1.0, 0.0, 0.5, 90.0])
    expected = cone_logits(torch.as_tensor(logits), kind)
    assert np.asarray(cone_logits(logits, kind)) == pytest.approx(expected.numpy())


def test_a_kernel_without_its_denominator_is_a_sum_of_bumps():
    queries, keys, values = torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [5.0]])
    found = attend(queries, keys, values, score="gaussian", pooling="exp").context
    assert found.item() == pytest.approx(3 + 5 * math.exp(-2))


@pytest.mark.parametrize("kind", CONE)
@pytest.mark.parametrize("score", ["dot", "gaussian", "epanechnikov"])
def test_gradients_of_the_cone(score, kind, draw):
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 3, 5) > 0.3
    mask[0, 0] = False
    assert gradcheck(
        lambda q, k, v, t: attend(q, k, v, score=score, pooling=kind, mask=mask, temperature=t),
        (draw(2, 3, 4), draw(2, 5, 4), draw(2, 5, 2), temperature),
    )


def test_gradients_of_general_weights(draw):
    alpha = draw(2, 4).detach().abs().requires_grad_()
    assert gradcheck(lambda a, v: pool(normalise(a), v), (alpha, draw(4, 3)))


def test_single_and_double_precision_agree():
    queries, keys, values = torch.randn(4, 16), torch.randn(30, 16), torch.randn(30, 5)
    for score in SMOOTH:
        single = attend(queries, keys, values, score=score).context
        double = attend(queries.double(), keys.double(), values.double(), score=score).context
        torch.testing.assert_close(single, double.float(), rtol=1e-5, atol=1e-6)


def test_mixing_heads_after_the_softmax(draw):
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]])
    assert mix(weights, torch.tensor([0.5, 0.5])).tolist() == [[0.5, 0.25, 0.25]]
    one = torch.rand(4, 1, 7)
    assert torch.equal(mix(one, torch.ones(1)), one[:, 0])
    per_query = torch.tensor([[1.0, 0.0]])
    assert mix(weights, per_query).tolist() == [[1.0, 0.0, 0.0]]
    assert mix(torch.empty(2, 3, 0), torch.ones(3) / 3).shape == (2, 0)
    assert gradcheck(mix, (draw(2, 3, 4), draw(3)))
