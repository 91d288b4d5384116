"""Function transforms of `torch.func`, which cannot enter a search: an index has no batching rule."""

from __future__ import annotations

import torch
from torch import Tensor

from dsearch.errors import InvalidRequest


def refuse_transforms(states: Tensor) -> None:
    """Refuse query states inside `vmap`, `jacrev`, `jacfwd` or `torch.func.grad`, with what to use.

    Raises:
        InvalidRequest: such a tensor has no memory that an index could read.
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
