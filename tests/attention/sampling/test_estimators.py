"""Estimates of the corpus softmax from candidates and a sample, against sums written out."""

from __future__ import annotations

import math

import pytest
import torch

from dsearch.attention.sampling.estimators import sampled_attention, sampled_log_partition

INSIDE = torch.tensor([[1.0, 0.5, -math.inf], [0.0, -1.0, 2.0]], dtype=torch.float64)
DRAWN = torch.tensor([[-1.0, -2.0], [0.5, 0.0]], dtype=torch.float64)
NOTHING = torch.full((2, 3), -math.inf, dtype=torch.float64)


@pytest.mark.parametrize("rest", [10, torch.tensor([10, 4])], ids=["a number", "one a query"])
def test_each_drawn_row_stands_for_its_share_of_the_rest(rest: int | torch.Tensor) -> None:
    size = torch.as_tensor(rest, dtype=torch.float64).expand(2)
    expected = (INSIDE.exp().sum(-1) + size / 2 * DRAWN.exp().sum(-1)).log()
    torch.testing.assert_close(sampled_log_partition(INSIDE, DRAWN, rest), expected)


def test_without_samples_it_is_the_bare_top() -> None:
    torch.testing.assert_close(sampled_log_partition(INSIDE, DRAWN[:, :0], 10), INSIDE.logsumexp(-1))


def test_an_empty_corpus_has_no_mass() -> None:
    assert sampled_log_partition(NOTHING, DRAWN[:, :0], 0).tolist() == [-math.inf] * 2
    assert sampled_log_partition(NOTHING[:, :0], DRAWN[:, :0], 0).tolist() == [-math.inf] * 2
    assert sampled_log_partition(NOTHING, DRAWN, torch.tensor([0, 4])).isfinite().tolist() == [False, True]
    values = torch.ones(2, 3, 4, dtype=torch.float64)
    empty = sampled_attention(NOTHING, values, DRAWN[:, :0], values[:, :0], 0)
    assert not empty.weights.any()
    assert not empty.context.any()


def test_gradients_of_an_empty_query_are_zeros() -> None:
    logits = NOTHING.clone().requires_grad_()
    partition = sampled_log_partition(logits, DRAWN[:, :0], 0)
    partition.masked_fill(partition == -math.inf, 0.0).sum().backward()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_attention_pools_candidates_and_sample_by_corrected_weights() -> None:
    values = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = sampled_attention(INSIDE, values[:, :3], DRAWN, values[:, 3:], 10)
    expected = torch.cat([INSIDE, DRAWN + math.log(10 / 2)], -1).softmax(-1)
    torch.testing.assert_close(found.weights, expected)
    torch.testing.assert_close(found.context, (expected[:, None] @ values)[:, 0])
    torch.testing.assert_close(found.log_partition, sampled_log_partition(INSIDE, DRAWN, 10))
