"""Covered mass against sums written out."""

from __future__ import annotations

import math

import torch

from dsearch.attention.retrieval.coverage import covered_mass

INSIDE = torch.tensor([[1.0, 0.5, -math.inf], [0.0, -1.0, 2.0]], dtype=torch.float64)


def test_the_exact_share() -> None:
    outside = torch.tensor([2.0, 0.25], dtype=torch.float64)
    inside = INSIDE.exp().sum(-1)
    share = covered_mass(INSIDE, (inside + outside).log())
    torch.testing.assert_close(share, inside / (inside + outside))


def test_a_share_is_at_most_one_and_one_of_nothing() -> None:
    assert covered_mass(INSIDE, INSIDE.logsumexp(-1) - 1e-9).tolist() == [1.0, 1.0]
    nothing = torch.full((2,), -math.inf, dtype=torch.float64)
    assert covered_mass(torch.full_like(INSIDE, -math.inf), nothing).tolist() == [1.0, 1.0]
