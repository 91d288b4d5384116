"""Drawn tensors, gradients of every output, and comparisons of them."""

from __future__ import annotations

import math

import torch

CPU = torch.device("cpu")
F64 = torch.float64


def drawn(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = F64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


def gradients(outputs, inputs):
    """Gradients of a loss that weighs every output differently, those of −inf left out."""
    loss = sum(
        (
            out.masked_fill(out == -math.inf, 0.0) * torch.linspace(-1, 2, out.numel()).to(out).view_as(out)
        ).sum()
        for out in outputs
    )
    return torch.autograd.grad(loss, inputs, materialize_grads=True)


def compare(ours, reference, **tolerance):
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
