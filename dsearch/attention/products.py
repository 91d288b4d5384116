"""`product`: a matrix product with many keys, by the quicker of the two libraries that torch brings.

torch multiplies float32 matrices on a processor by MKL, which leaves the widest instructions of processors
that are not Intel's unused. oneDNN, to which it leaves convolutions and bfloat16, uses them: on an AMD EPYC
it multiplies 64 queries with 5,183 keys of 384 numbers 2.1 times as fast, sums of values likewise
(`scripts/bench_products.py`). Both round to float32 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def product(
    left: Float[Tensor, "*batch dim"], right: Float[Tensor, "rows dim"]
) -> Float[Tensor, "*batch rows"]:
    """`left @ right.T`; where a gradient is wanted, or oneDNN is not there or switched off, as torch does it.

    The weighted sums of values, `weights @ values`, are `product(weights, values.T)`: no copy is made.
    """
    if _ONEDNN is None or not (_plain(left) and _plain(right) and torch.backends.mkldnn.enabled):
        return left @ right.mT
    return _ONEDNN(left, right, None, "none", [], "")


def _plain(matrix: Tensor) -> bool:
    wants_gradient = matrix.requires_grad and torch.is_grad_enabled()
    return matrix.dtype == torch.float32 and matrix.device.type == "cpu" and not wants_gradient


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
