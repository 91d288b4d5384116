"""Gates of channels and shares of heads, written out; neither changes anything at its start."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, normalize

from dsearch.attention.excitation import HeadExcitation, SqueezeExcite


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def opened(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for at, parameter in enumerate(module.parameters()):
            parameter += drawn(*parameter.shape, seed=at + 5)
    return module


def test_at_the_start_nothing_is_moved() -> None:
    values, logits = drawn(2, 4, 8), torch.tensor([0.5, -1.0, 0.0])
    gated = SqueezeExcite(8, 3)(drawn(2, 3), values)
    assert torch.equal(gated.values, values)
    assert (gated.gate == 1).all()
    shares = HeadExcitation(6, 3)(drawn(2, 3, 6), logits)
    torch.testing.assert_close(shares, logits.softmax(-1).expand(2, 3))


@pytest.mark.parametrize("masked", [False, True])
def test_the_gate_is_of_the_candidates_mean_and_the_query(masked: bool) -> None:
    module = opened(SqueezeExcite(8, 3))
    queries, values = drawn(2, 3), drawn(2, 4, 8, seed=1)
    mask = torch.tensor([[True, True, False, True], [False, True, True, False]]) if masked else None
    gated = module(queries, values, mask)
    for at in range(2):
        inside = values[at] if mask is None else values[at][mask[at]]
        hidden = torch.relu(module.reduce(torch.cat([inside.mean(0), queries[at]])))
        gate = 2 * torch.sigmoid(module.expand(hidden))
        torch.testing.assert_close(gated.gate[at], gate)
        torch.testing.assert_close(gated.values[at], values[at] * gate)


def test_shares_of_heads_follow_the_mean_of_their_queries() -> None:
    module = opened(HeadExcitation(6, 3, width=5))
    folded, logits = drawn(2, 3, 6), torch.tensor([0.5, -1.0, 0.0])
    squeezed = normalize(folded.mean(1), dim=-1)
    expected = (logits + gelu(squeezed @ module.squeeze.T) @ module.excite.T).softmax(-1)
    torch.testing.assert_close(module(folded, logits), expected, atol=1e-5, rtol=1e-5)


def test_sizes_and_the_seed() -> None:
    assert SqueezeExcite(8, 3).reduce.out_features == 2
    assert SqueezeExcite(8, 3, reduction=2).reduce.out_features == 4
    assert SqueezeExcite(3, 3).reduce.out_features == 1  # one at least
    assert SqueezeExcite(8, 3).reduce.in_features == 11
    assert HeadExcitation(6, 3).squeeze.shape == (16, 6)
    assert torch.equal(HeadExcitation(6, 3).squeeze, HeadExcitation(6, 3, seed=0).squeeze)
    assert not torch.equal(HeadExcitation(6, 3, seed=1).squeeze, HeadExcitation(6, 3).squeeze)
