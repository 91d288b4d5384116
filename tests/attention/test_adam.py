"""Adam takes the steps of torch's, goes on from its moments, and loads no compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from dsearch.attention.adam import Adam

NO_COMPILER = """
import sys, torch
from dsearch.attention.adam import Adam
weight = torch.ones(3, requires_grad=True)
optimizer = Adam([{"params": [weight], "lr": 0.1}], fused=True)
weight.sum().backward()
optimizer.step()
assert torch.allclose(weight, torch.full((3,), 0.9)), weight
assert "torch._dynamo" not in sys.modules
"""


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in ((4, 3), (3,), (2,))]


def give_gradients(some: list[Tensor], step: int) -> None:
    """The third has none in the first steps, as a part of a network that is not always used."""
    lost = sum((one * (step + 1)).sin().square().sum() for one in (some if step > 1 else some[:2]))
    assert isinstance(lost, Tensor)
    lost.backward()


@pytest.mark.parametrize("fused", [False, True])
def test_the_steps_are_those_of_torch(fused: bool) -> None:
    mine, theirs = parameters(), parameters()
    groups = [[0, 2], [1]]
    rates = (0.1, 0.03)
    adam, torchs = (
        kind(
            [{"params": [some[i] for i in of], "lr": lr} for of, lr in zip(groups, rates, strict=True)],
            fused=fused,
        )
        for kind, some in ((Adam, mine), (torch.optim.Adam, theirs))
    )
    for step in range(5):
        for group, other in zip(adam.groups, torchs.param_groups, strict=True):
            group["lr"] = other["lr"] = group["lr"] * 0.8
        adam.zero_grad()
        torchs.zero_grad()
        assert all(one.grad is None for one in mine)
        give_gradients(mine, step)
        give_gradients(theirs, step)
        adam.step()
        torchs.step()
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_it_goes_on_from_its_moments_which_are_copied() -> None:
    mine, again = parameters(), parameters()
    first = Adam([{"params": mine, "lr": 0.1}])
    give_gradients(mine, 3)
    first.step()
    with torch.no_grad():
        for one, other in zip(again, mine, strict=True):
            one.copy_(other)
    second = Adam([{"params": again, "lr": 0.1}])
    second.load_moments(first.moments())
    for some, adam in ((mine, first), (again, second)):
        adam.zero_grad()
        give_gradients(some, 4)
        adam.step()
    assert all(torch.equal(one, other) for one, other in zip(mine, again, strict=True))
    assert {float(of["step"]) for of in second.moments().values()} == {2.0}
    first.step()
    assert {float(of["step"]) for of in second.moments().values()} == {2.0}


def test_no_compiler_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", NO_COMPILER], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
