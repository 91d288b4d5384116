"""Single-precision matrix products on a CPU, by the faster of the two libraries in torch.

torch multiplies float32 matrices with MKL, which does not use the widest instructions of processors by other
makers than Intel. oneDNN, which torch uses for convolutions and bfloat16, does: on an AMD EPYC it multiplies
64 queries with 5,183 keys of 384 numbers 2.1 times as fast, and likewise sums of values
(`scripts/bench/products.py`). Both round to float32 only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_ROUNDED_AT_ONCE = 1 << 22  # numbers in float32: 16 MB


def product(
    left: Float[Tensor, "*batch dim"], right: Float[Tensor, "rows dim"]
) -> Float[Tensor, "*batch rows"]:
    """`left @ right.T`.

    The weighted sums of values, `weights @ values`, are `product(weights, values.T)`: no copy is made.
    Rows in bfloat16 beside a `left` in float32 become float32 block by block; gradients reach `left` alone.
    """
    if right.dtype == torch.bfloat16 and left.dtype == torch.float32:
        return _WithRounded.apply(left, right)  # pyright: ignore
    return linear(left, right)


def linear(
    inputs: Float[Tensor, "*batch dim"],
    weight: Float[Tensor, "rows dim"],
    bias: Float[Tensor, " rows"] | None = None,
) -> Float[Tensor, "*batch rows"]:
    """`inputs @ weight.T + bias`.

    As torch does it where a gradient is wanted, where what is computed is written down for another machine
    (tracing, export), under autocast, and where oneDNN is not there or switched off.
    """
    if _ONEDNN is None or not (_plain(inputs) and _plain(weight)) or _otherwise():
        return nn.functional.linear(inputs, weight, bias)
    return _ONEDNN(inputs, weight, bias, "none", [], "")


class QuickLinear(nn.Linear):
    """torch's layer, whose product is `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """As torch's."""
        return linear(input, self.weight, self.bias)


def quicken(model: nn.Module) -> None:
    """Let the linear layers of a model multiply by `linear`; those of another class stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = QuickLinear


class _WithRounded(torch.autograd.Function):
    """`left @ right.T` with rows in bfloat16, of which one block at a time is in float32."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(right)
        result = left.new_empty(*left.shape[:-1], len(right))
        for part in _blocks(right):
            result[..., part] = linear(left, right[part].to(left))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        (right,) = ctx.saved_tensors
        of_left = gradient.new_zeros(*gradient.shape[:-1], right.shape[1])
        for part in _blocks(right):
            of_left += linear(gradient[..., part].contiguous(), right[part].to(gradient).T.contiguous())
        return of_left, None


def in_full_precision(device: str) -> AbstractContextManager[object]:
    """Products inside a caller's autocast as outside: scores tie and embeddings differ when they are rounded.

    Args:
        device: kind of the device, such as "cpu".
    """
    has_autocast = torch.amp.is_autocast_available(device)  # not of "meta"
    return (
        torch.autocast(device, enabled=False)
        if has_autocast and torch.is_autocast_enabled(device)
        else nullcontext()
    )


def _blocks(rows: Float[Tensor, "rows dim"]) -> Iterator[slice]:
    step = max(1, _ROUNDED_AT_ONCE // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        yield slice(start, start + step)


def _plain(matrix: Tensor) -> bool:
    wants_gradient = matrix.requires_grad and torch.is_grad_enabled()
    return (
        type(matrix) in (Tensor, nn.Parameter)
        and matrix.dtype == torch.float32
        and matrix.device.type == "cpu"
        and not wants_gradient
    )


def _otherwise() -> bool:
    return (
        not torch.backends.mkldnn.enabled
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    )


def _onednn() -> Callable[..., Tensor] | None:
    """x Wᵀ + b by oneDNN: what torch's compiler makes of linear layers; None in a torch without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    operators: Any = torch.ops.mkldnn
    try:
        return operators._linear_pointwise.default
    except AttributeError:
        return None


_ONEDNN = _onednn()
