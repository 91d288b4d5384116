"""Query states that a layer refuses: no tensor of queries, or one inside a transform of `torch.func`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsearch.errors import DimensionMismatch, InvalidRequest


def check_states(states: Any) -> None:
    """Refuse query states that are no tensor [batch, encoder_dim] or [batch, steps, encoder_dim] of numbers.

    Raises:
        InvalidRequest: another type, whole or complex numbers, or a transform of `torch.func`.
        DimensionMismatch: one query, or more than two dimensions of them.
    """
    if not isinstance(states, Tensor):
        raise InvalidRequest(
            f"query states of type {type(states).__name__}; give a tensor, such as torch.as_tensor(states)"
        )
    refuse_transforms(states)
    if not states.is_floating_point():
        raise InvalidRequest(f"query states of {states.dtype}; give floating-point numbers: states.float()")
    if states.ndim not in (2, 3):
        raise DimensionMismatch(
            f"query states of shape {list(states.shape)}; use [batch, encoder_dim] (states[None] for one "
            "query), or sequences of them, [batch, steps, encoder_dim]"
        )


def refuse_transforms(states: Tensor) -> None:
    """Refuse query states inside `vmap`, `jacrev`, `jacfwd` or `torch.func.grad`, with what to use.

    Raises:
        InvalidRequest: such a tensor has no memory that an index could read; no index has a batching rule.
    """
    if torch.compiler.is_compiling():
        return
    try:
        states.data_ptr()
    except RuntimeError:
        raise InvalidRequest(
            "query states inside a transform of torch.func (vmap, jacrev, grad), which no index has; "
            "give many states as one batch, and use torch.autograd.grad or torch.autograd.functional.jacobian"
        ) from None
