"""Covered mass, exact and estimated, against sums written out."""

from __future__ import annotations

import math

import pytest
import torch

from dsearch.attention.retrieval.coverage import covered_mass, estimate_covered_mass, sample_rest
from dsearch.errors import InvalidRequest

INSIDE = torch.tensor([[1.0, 0.5, -math.inf], [0.0, -1.0, 2.0]], dtype=torch.float64)
DRAWN = torch.tensor([[-1.0, -2.0, 0.0], [0.5, 0.0, -0.5]], dtype=torch.float64)


def test_the_exact_share() -> None:
    outside = torch.tensor([2.0, 0.25], dtype=torch.float64)
    inside = INSIDE.exp().sum(-1)
    share = covered_mass(INSIDE, (inside + outside).log())
    torch.testing.assert_close(share, inside / (inside + outside))


def test_a_share_is_at_most_one_and_one_of_nothing() -> None:
    assert covered_mass(INSIDE, INSIDE.logsumexp(-1) - 1e-9).tolist() == [1.0, 1.0]
    nothing = torch.full((2,), -math.inf, dtype=torch.float64)
    assert covered_mass(torch.full_like(INSIDE, -math.inf), nothing).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("shift", [0.0, 900.0], ids=["small", "large logits"])
@pytest.mark.parametrize("rest", [50, torch.tensor([50, 7])], ids=["a number", "one a query"])
def test_the_estimate_and_its_standard_error(rest: int | torch.Tensor, shift: float) -> None:
    found = estimate_covered_mass(INSIDE + shift, DRAWN + shift, rest)
    for at in range(2):
        number = int(torch.as_tensor(rest).expand(2)[at])
        inside, drawn = float(INSIDE[at].exp().sum()), DRAWN[at].exp()
        outside = number * float(drawn.mean())
        error = inside / (inside + outside) ** 2 * number * float(drawn.std()) / math.sqrt(3)
        assert float(found.estimate[at]) == pytest.approx(inside / (inside + outside))
        assert float(found.standard_error[at]) == pytest.approx(error)


def test_nothing_at_all_is_covered_without_an_error() -> None:
    none = torch.full((1, 3), -math.inf, dtype=torch.float64)
    found = estimate_covered_mass(none, none, 0)
    assert (found.estimate.item(), found.standard_error.item()) == (1.0, 0.0)


def test_one_sample_has_no_standard_error() -> None:
    with pytest.raises(InvalidRequest, match=r"1 sample\(s\); a standard error needs 2 or more"):
        estimate_covered_mass(INSIDE, DRAWN[:, :1], 50)
    estimate_covered_mass(INSIDE, DRAWN[:, :2], 50)


def test_samples_are_of_all_the_rest_and_of_no_candidate() -> None:
    candidates = torch.tensor([[0, 3, 9], [5, -1, 4], [-1, -1, -1]])
    rows, rest = sample_rest(candidates, 10, 600, torch.Generator().manual_seed(0))
    assert rest.tolist() == [7, 8, 10]
    left = [{1, 2, 4, 5, 6, 7, 8}, {0, 1, 2, 3, 6, 7, 8, 9}, set(range(10))]
    assert [set(line.tolist()) for line in rows] == left
    for line in rows:
        assert torch.bincount(line).max() < 2 * 600 / 7  # uniform: no row takes another's place
    again, _ = sample_rest(candidates, 10, 600, torch.Generator().manual_seed(0))
    assert torch.equal(rows, again)


def test_without_a_rest_there_is_no_sample() -> None:
    rows, rest = sample_rest(torch.tensor([[2, 0, 1], [0, -1, 1]]), 3, 4)
    assert rest.tolist() == [0, 1]
    assert rows.tolist() == [[-1] * 4, [2] * 4]
