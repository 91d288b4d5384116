"""Every test starts from the same seed."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """The same seed, and one thread: on tensors this small more would only wait for each other."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def draw():
    """Normal float64 tensors that ask for gradients."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    return normal
