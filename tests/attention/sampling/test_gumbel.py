"""Gumbel top-k: what is drawn, how often, and the relaxation whose gradient it takes."""

from __future__ import annotations

import math

import pytest
import torch

from dsearch.attention.sampling.gumbel import gumbel_top_k, relaxed_top_k
from dsearch.errors import InvalidRequest


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_one_place_is_drawn_by_its_softmax_and_two_without_replacement() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    shares = logits.softmax(0)
    one = gumbel_top_k(logits.expand(20_000, 3), 1, generator=seeded()).mean(0)
    torch.testing.assert_close(one, shares, atol=0.015, rtol=0)
    two = gumbel_top_k(logits.expand(20_000, 3), 2, generator=seeded()).mean(0)
    left_out = [
        sum(shares[b] * shares[c] / (1 - shares[b]) for b, c in ((i, j), (j, i)))
        for i, j in ((1, 2), (0, 2), (0, 1))
    ]
    torch.testing.assert_close(two, 1 - torch.stack(left_out), atol=0.015, rtol=0)


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_exactly_k_places_are_one(k: int) -> None:
    drawn = gumbel_top_k(torch.zeros(50, 5), k, generator=seeded())
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    assert (drawn.sum(-1) == min(k, 5)).all()


def test_what_is_masked_or_impossible_is_never_drawn() -> None:
    logits = torch.tensor([0.0, -math.inf, 0.0, 5.0])
    mask = torch.tensor([True, True, True, False])
    drawn = gumbel_top_k(logits.expand(30, 4), 3, mask, generator=seeded())
    assert (drawn == torch.tensor([1.0, 0.0, 1.0, 0.0])).all()
    nothing = gumbel_top_k(torch.full((2, 3), -math.inf), 2, generator=seeded())
    assert not nothing.any()


def test_a_generator_decides_the_draw_and_no_temperature_does() -> None:
    logits = torch.randn(40, 6, generator=seeded(1))
    first = gumbel_top_k(logits, 2, generator=seeded())
    assert torch.equal(first, gumbel_top_k(logits, 2, generator=seeded()))
    assert torch.equal(first, gumbel_top_k(logits, 2, temperature=0.1, generator=seeded()))
    assert not torch.equal(first, gumbel_top_k(logits, 2, generator=seeded(2)))


def test_its_gradient_is_that_of_the_relaxation() -> None:
    def gradient(temperature: float) -> torch.Tensor:
        logits = torch.tensor([0.1, 0.7, -0.3], requires_grad=True)
        gumbel_top_k(logits, 2, temperature=temperature, generator=seeded())[0].backward()
        assert logits.grad is not None
        return logits.grad

    noise = torch.empty(3).exponential_(generator=seeded())
    for temperature in (1.0, 0.5):
        perturbed = (torch.tensor([0.1, 0.7, -0.3]) - noise.log()).requires_grad_()
        relaxed_top_k(perturbed, 2, temperature)[0].backward()
        torch.testing.assert_close(gradient(temperature), perturbed.grad)


def test_the_relaxation_is_k_softmaxes_of_what_is_left() -> None:
    logits = torch.tensor([0.5, 1.5, -1.0], dtype=torch.float64)
    first = (logits / 0.7).softmax(0)
    second = ((logits + (1 - first).log()) / 0.7).softmax(0)
    torch.testing.assert_close(relaxed_top_k(logits, 2, 0.7), first + second)
    torch.testing.assert_close(relaxed_top_k(logits, 1, 0.7), first)
    sharp = relaxed_top_k(logits, 2, 0.01)
    torch.testing.assert_close(sharp, torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(relaxed_top_k(logits, 9, 0.01).sum().item(), 3.0)


@pytest.mark.parametrize("ahead", [50.0, 100.0, 1e4])
def test_a_place_that_is_far_ahead_is_taken_once(ahead: float) -> None:
    logits = torch.tensor([ahead, 0.0, -3.0], requires_grad=True)
    relaxed = relaxed_top_k(logits, 2, 0.1)
    torch.testing.assert_close(relaxed, torch.tensor([1.0, 1.0, 0.0]))
    relaxed[1].backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_no_place_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="k=0; use 1 or more"):
        gumbel_top_k(torch.zeros(3), 0)
