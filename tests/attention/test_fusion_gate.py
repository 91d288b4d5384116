"""The fusion gate: the constant at the start, bounded, exact gradients, and nothing without features."""

from __future__ import annotations

import math

import pytest
import torch

from dsearch.attention.fusion_gate import FEATURES, FusionGate, keyword_part
from dsearch.attention.head import Head
from dsearch.errors import InvalidRequest


def features(count: int) -> torch.Tensor:
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def opened(heads: int = 2, size: float = 1.0) -> FusionGate:
    gate = FusionGate(heads).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return gate


@pytest.mark.parametrize("heads", [1, 3])
def test_an_untrained_gate_is_the_constant_to_the_bit(heads: int) -> None:
    gated, constant = Head(8, heads=heads, fusion="gate"), Head(8, heads=heads)
    with torch.no_grad():
        gated.keyword_weight.fill_(0.7)
        constant.keyword_weight.fill_(0.7)
    weights = gated.keyword_weights(5, features(5).float())
    assert torch.equal(weights, constant.keyword_weights(5, None))
    assert gated.distance_from_identity().item() == 0


@pytest.mark.parametrize("fusion", ["constant", "gate"])
def test_weights_want_gradients_only_where_there_are_any(fusion: str) -> None:
    head = Head(8, heads=2, fusion=fusion)
    assert head.keyword_weights(3, features(3)).requires_grad
    with torch.inference_mode():
        assert not head.keyword_weights(3, features(3)).requires_grad


def test_factors_are_bounded_and_by_hand() -> None:
    gate = opened(size=3.0)
    found = gate(100 * features(50))
    assert ((found >= 0) & (found <= 2)).all()
    assert found.min() < 0.1
    assert found.max() > 1.9
    one = features(1)
    hidden = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in (gate.inner @ one[0] + gate.bias).tolist()]
    for head in range(2):
        along = sum(u * h for u, h in zip(gate.outer[head].tolist(), hidden, strict=True))
        assert gate(one)[0, head].item() == pytest.approx(2 / (1 + math.exp(-along)), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_features_that_are_not_finite_give_the_constant(bad: float) -> None:
    gate, asked = opened(), features(3)
    asked[1, 4] = bad
    found = gate(asked)
    assert found[1].tolist() == [1.0, 1.0]
    torch.testing.assert_close(found[[0, 2]], gate(asked[[0, 2]]))
    found.square().sum().backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in gate.parameters())


def test_gradients_are_exact() -> None:
    gate = opened()
    asked, names = features(4), [name for name, _ in gate.named_parameters()]

    def factors(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(gate, dict(zip(names, tensors, strict=True)), (asked,))

    given = tuple(one.detach().clone().requires_grad_() for one in gate.parameters())
    assert torch.autograd.gradcheck(factors, given)


def test_decay_pulls_to_the_constant() -> None:
    head = Head(8, heads=2, fusion="gate").double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
        for name, parameter in head.named_parameters():
            if name.startswith(("query_", "key_", "value_")):
                parameter.zero_()
    assert head.fusion_gate is not None
    optimiser = torch.optim.Adam(head.fusion_gate.parameters(), lr=0.02)
    for _ in range(500):
        optimiser.zero_grad()
        head.distance_from_identity().backward()
        optimiser.step()
    torch.testing.assert_close(
        head.keyword_weights(5, features(5)), head.keyword_weight.expand(5, -1), atol=1e-3, rtol=1e-3
    )


def test_keyword_parts_are_products() -> None:
    weights, scores = torch.tensor([[1.0, 2.0], [3.0, 0.5]]), torch.tensor([[0.2, 0.0, 1.0], [0.5, 0.1, 0.0]])
    found = keyword_part(weights, scores)
    torch.testing.assert_close(found[1, 0], 3.0 * scores[1])
    torch.testing.assert_close(found[0, 1], 2.0 * scores[0])


def test_a_gate_asks_for_features() -> None:
    with pytest.raises(InvalidRequest, match="needs the features of queries"):
        Head(8, fusion="gate").keyword_weights(3, None)
    with pytest.raises(InvalidRequest, match="fusion='deep'; use one of constant, gate"):
        Head(8, fusion="deep")


def test_shape_and_numbers_are_kept() -> None:
    head = Head(8, heads=2, fusion="gate", seed=4)
    assert Head(**head.config()).load_state_dict(head.state_dict())
    assert "fusion" not in Head(8).config()
    other = Head(8, heads=2, fusion="gate", seed=5)
    assert head.fusion_gate is not None
    assert other.fusion_gate is not None
    assert not torch.equal(head.fusion_gate.inner, other.fusion_gate.inner)
