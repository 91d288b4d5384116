"""Query states of a layer: checks, and what is refused.

A layer in this process and one of a server refuse the same states: no tensor of numbers, one inside a
transform of `torch.func`, numbers that are not finite. A state of length 0 is a row of padding: with it every
document scores 0, and its gradient is 0.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.arrays import numbers_of
from dsearch.attention_options import LONGEST_STATE
from dsearch.errors import DimensionMismatch, InvalidRequest

NO_GRAPH = (
    "a search inside torch.export or torch.jit, which no index has: its candidates would be those of the "
    "example; export the networks around it, or use torch.compile, which leaves it as it is"
)
_SHORTEST = 1e-18  # squares of shorter states are no numbers of float32


def checked_states(states: Any) -> Float[Tensor, "*queries encoder_dim"]:
    """Return query states, those that are shorter than 1e-18 as zeros.

    Raises:
        InvalidRequest: another type, whole or complex numbers, numbers that are not finite, a state longer
            than a million, a transform of `torch.func`, or a graph of `torch.export` or `torch.jit`.
        DimensionMismatch: one query, or more than two dimensions of them.
    """
    if not isinstance(states, Tensor):
        raise InvalidRequest(
            f"query states of type {type(states).__name__}; give a tensor, such as torch.as_tensor(states)"
        )
    if states.layout != torch.strided or states.device.type == "meta":
        raise InvalidRequest(
            f"query states of layout {states.layout} on device {states.device}; give a dense tensor with "
            "numbers: states.to_dense()"
        )
    tracing = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    if torch.compiler.is_exporting() or tracing:
        raise InvalidRequest(NO_GRAPH)
    refuse_transforms(states)
    if not states.is_floating_point():
        raise InvalidRequest(f"query states of {states.dtype}; give floating-point numbers: states.float()")
    if states.ndim not in (2, 3):
        raise DimensionMismatch(
            f"query states of shape {list(states.shape)}; use [batch, encoder_dim] (states[None] for one "
            "query), or sequences of them, [batch, steps, encoder_dim]"
        )
    return states if torch.compiler.is_compiling() else bounded_states(states)


def bounded_states(states: Float[Tensor, "*queries encoder_dim"]) -> Float[Tensor, "*queries encoder_dim"]:
    """Return states of a length that can be scored, those that are shorter than 1e-18 as zeros.

    Raises:
        InvalidRequest: numbers that are not finite, or a state longer than a million; names the first one.
    """
    precision = torch.float64 if states.dtype == torch.float64 else torch.float32
    lengths = np.sqrt(numbers_of(states.detach().to(precision).square().sum(-1)))
    if (wrong := ~(lengths <= LONGEST_STATE)).any():  # NaN too
        at = np.argwhere(wrong)[0].tolist()
        length = float(lengths[tuple(at)])
        what = f"has length {length:.4g}" if isfinite(length) else "has NaN or infinity"
        raise InvalidRequest(
            f"query state {at} {what}; use finite numbers, of a length up to {LONGEST_STATE:g}, "
            "usually 1, or zeros for padding. NaN comes from the network below: "
            "torch.autograd.set_detect_anomaly(True) names the operation"
        )
    if not (short := lengths < _SHORTEST).any():
        return states
    return states.masked_fill(torch.as_tensor(short, device=states.device).unsqueeze(-1), 0.0)


def require_numbers(parameter: Tensor) -> None:
    """Refuse a layer whose parameters lie on the device meta.

    Raises:
        InvalidRequest.
    """
    if parameter.is_meta:
        raise InvalidRequest(
            "a layer on the device meta, where its parameters have no numbers; open it again, or call "
            "to_empty(device='cpu') and load a state_dict"
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
