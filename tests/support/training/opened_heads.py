"""Small heads away from the identity, unit vectors and batches: what objectives are checked with."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.training.losses.objectives import Batch


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


def batch_of(head: Head, corpus: torch.Tensor, *, with_keywords: bool = True) -> Batch:
    """Four queries over twenty documents or more, with all that any objective learns from."""
    return Batch(
        head=head,
        states=unit(4, corpus.shape[1]),
        keyword=torch.rand(4, len(corpus), dtype=torch.float64) if with_keywords else None,
        corpus=corpus,
        relevant=torch.tensor([[3, 5], [9, 0], [7, 19], [2, 0]]),
        target=torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64),
        judged=torch.tensor([2, 3, 5, 7, 9, 11, 19]),
        scored=torch.tensor([[3, 1], [4, 0], [7, 8], [2, 6]]),
        teacher=torch.tensor([[3.0, 1.0], [1.0, 0.0], [1.0, 5.0], [2.0, 2.0]], dtype=torch.float64),
        mask=torch.tensor([[True, True], [True, False], [True, True], [True, True]]),
    )


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
