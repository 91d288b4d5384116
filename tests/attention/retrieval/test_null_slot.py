"""The null slot against its definition, its optimum, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.attention import fit_null_slot, mix, null_weights, slot_evidence
from dsearch.attention.arrays import masked_softmax


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_with_slope_one_it_is_a_further_key_in_the_softmax() -> None:
    raw, temperature = torch.randn(3, 1, 7, dtype=torch.float64), 0.3
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    level = torch.tensor(1.7, dtype=torch.float64)
    nothing = null_weights(
        torch.stack([level, torch.ones_like(level)]), raw, mask, temperature, torch.ones(1)
    )
    logits = torch.cat([raw / temperature, level.expand(3, 1, 1)], dim=-1)
    whole = masked_softmax(logits, torch.cat([mask, torch.ones(3, 1, dtype=torch.bool)], 1)[:, None])
    torch.testing.assert_close(nothing, whole[:, 0, -1])
    documents = masked_softmax(raw / temperature, mask[:, None]) * (1 - nothing)[:, None, None]
    torch.testing.assert_close(documents, whole[..., :-1])


def test_only_the_ten_best_count_however_many_are_asked_for() -> None:
    raw = torch.randn(2, 3, 40)
    mixture, slot = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([2.0, 0.7])
    every = torch.ones(2, 40, dtype=torch.bool)
    weights = null_weights(slot, raw, every, 0.1, mixture)
    by_hand = (raw.topk(10, -1).values / 0.1).logsumexp(-1) @ mixture
    torch.testing.assert_close(slot_evidence(raw, every, 0.1, mixture), by_hand)
    # The candidates that any head has among its ten best, and no others.
    needed = torch.zeros_like(every)
    for head in range(3):
        needed.scatter_(1, raw[:, head].topk(10, -1).indices, torch.ones(2, 10, dtype=torch.bool))
    torch.testing.assert_close(null_weights(slot, raw, needed, 0.1, mixture), weights)


def test_where_nothing_was_found_nothing_fits() -> None:
    slot = torch.tensor([-5.0, 1.0], requires_grad=True)
    raw = torch.zeros(2, 1, 3, requires_grad=True)
    weights = null_weights(slot, raw, torch.tensor([[True, False, False], [False] * 3]), 1.0, torch.ones(1))
    assert weights[1] == 1
    assert weights[0] < 0.01
    weights.sum().backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()
    empty = null_weights(slot, torch.zeros(2, 1, 0), torch.zeros(2, 0, dtype=torch.bool), 1.0, torch.ones(1))
    assert empty.tolist() == [1.0, 1.0]


def test_gradients_agree_with_finite_differences() -> None:
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[0, 3:] = False

    def weights(slot: torch.Tensor, raw: torch.Tensor, temperature: torch.Tensor, mixture: torch.Tensor):
        nothing = null_weights(slot, raw, mask, temperature, mixture.softmax(-1))
        head_weights = masked_softmax(raw / temperature, mask[:, None]) * (1 - nothing)[:, None, None]
        return nothing, mix(head_weights, mixture.softmax(-1))

    inputs = (
        torch.tensor([0.5, 0.8], dtype=torch.float64, requires_grad=True),
        torch.randn(3, 2, 12, dtype=torch.float64, requires_grad=True),
        torch.tensor(0.4, dtype=torch.float64, requires_grad=True),
        torch.randn(2, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(weights, inputs)


def test_the_fit_finds_the_slot_that_made_the_data() -> None:
    evidence = 10 + 3 * torch.randn(20_000, dtype=torch.float64)
    level, slope = 4.0, 0.6
    drawn = torch.rand(20_000, dtype=torch.float64) < torch.sigmoid(level - slope * evidence)
    found = fit_null_slot(evidence, drawn)
    assert found[0] == pytest.approx(level, abs=0.25)
    assert found[1] == pytest.approx(slope, abs=0.03)
    # At the optimum the mean of what is said is the mean of what is (calibration in the large).
    said = torch.sigmoid(found[0] - found[1] * evidence).mean().item()
    assert said == pytest.approx(drawn.double().mean().item(), abs=1e-3)


def test_queries_told_apart_without_a_mistake_have_a_finite_slope() -> None:
    evidence = torch.tensor([1.0, 2.0, 3.0, 10.0, 11.0, 12.0])
    level, slope = fit_null_slot(evidence, torch.tensor([True] * 3 + [False] * 3))
    assert np.isfinite([level, slope]).all()
    assert 0 < slope < 10
    same = fit_null_slot(torch.ones(6), torch.tensor([True] * 2 + [False] * 4))
    assert np.isfinite(same).all()


def test_the_fit_is_the_optimum_of_platts_targets() -> None:
    """Targets (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2) (Platt 1999); there the gradient is 0."""
    evidence = torch.tensor([1.0, 2.0, 4.0, 3.0, 5.0, 7.0, 8.0, 6.0], dtype=torch.float64)
    wrong = torch.tensor([True, True, True, False, False, False, False, False])
    level, slope = fit_null_slot(evidence, wrong)
    target = torch.where(wrong, torch.tensor((3 + 1) / (3 + 2)), torch.tensor(1 / (5 + 2)))
    away = torch.sigmoid(level - slope * evidence) - target
    assert away.sum().item() == pytest.approx(0, abs=1e-6)
    assert (away * evidence).sum().item() == pytest.approx(0, abs=1e-6)
