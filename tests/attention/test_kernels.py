"""Kernels by hand: values, edges, broadcasting and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from dsearch.attention.scores import boxcar, epanechnikov, gaussian

QUERIES = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
KEYS = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
SQUARED = [[0.0, 25.0, 4.0], [25.0, 0.0, 13.0]]
KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "gaussian": gaussian,
    "epanechnikov": epanechnikov,
    "boxcar": boxcar,
}


def by_hand(name: str, squared: float, width: float) -> float:
    u = math.sqrt(squared) / width
    if name == "gaussian":
        return -(u**2) / 2
    if u >= 1:
        return -math.inf
    return math.log(1 - u**2) if name == "epanechnikov" else 0.0


@pytest.mark.parametrize("width", [0.5, 2.0, 4.0, 5.0, 5.001])
@pytest.mark.parametrize("name", KERNELS)
def test_each_is_the_logarithm_of_its_kernel(name: str, width: float) -> None:
    expected = [[by_hand(name, squared, width) for squared in line] for line in SQUARED]
    found = KERNELS[name](QUERIES, KEYS, width)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    of_tensor = KERNELS[name](QUERIES, KEYS, torch.tensor(width, dtype=torch.float64))
    torch.testing.assert_close(of_tensor, found)


@pytest.mark.parametrize("name", KERNELS)
def test_a_width_of_one_is_the_default(name: str) -> None:
    assert torch.equal(KERNELS[name](QUERIES, KEYS * 0.1), KERNELS[name](QUERIES, KEYS * 0.1, 1.0))
