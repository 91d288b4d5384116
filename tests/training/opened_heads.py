"""Small heads away from the identity, and unit vectors to ask them: what objectives are checked with."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from dsearch.attention.head import Head


def unit(*shape: int) -> torch.Tensor:
    """Vectors of length 1, along the last dimension."""
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def opened_head(encoder_dim: int, heads: int) -> Head:
    """A head in double precision, every parameter of which was moved."""
    head = Head(encoder_dim, heads=heads, rank=3).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return head


def both_ways(module: ModuleType) -> Callable[..., str]:
    """A fixture: what is computed plainly while that fits into memory, and in blocks where it does not."""

    @pytest.fixture(params=["plain", "blocked"])
    def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        if request.param == "blocked":
            monkeypatch.setattr(module, "_PLAIN_LOGITS", 0)
        return request.param

    return way


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Equal numbers in every run."""
    torch.manual_seed(0)
