"""Select the package's own GPU kernels: supported cards, and whether this machine can compile them.

The kernels are written in Triton, which comes with torch for CUDA on Linux. They are used on Hopper cards
(H100, H200), the only ones they were measured on. Everywhere else torch's own operators compute the same.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

HOPPER = 9
ALIGNMENT_BYTES = 16  # alignment of addresses and rows for the card's copy engine


def kernels_for(task: str, *matrices: Tensor) -> ModuleType | None:
    """Kernels of a task if they support these matrices, else None: torch's operators are used then.

    Args:
        task: "search" or "attention".
        matrices: on one card, of half precision and one type, of at least one row and column; rows one after
            another at aligned addresses.
    """
    first = matrices[0]
    same = all(m.device == first.device and m.dtype == first.dtype for m in matrices)
    if first.device.type != "cuda" or first.dtype not in (torch.bfloat16, torch.float16) or not same:
        return None
    if torch.compiler.is_compiling() or not all(_laid_out(m) for m in matrices):
        return None
    return _module(task) if _compiles(first.device) else None


@cache
def _module(task: str) -> ModuleType:
    return importlib.import_module(f"dsearch.attention.blockwise.triton_{task}")


@cache
def _compiles(device: torch.device) -> bool:
    """Compile and run a small kernel on a Hopper card; log the reason of a failure."""
    if torch.cuda.get_device_capability(device)[0] != HOPPER:
        return False
    if "dtype" not in torch.ops.aten.mm.overloads():
        return False  # torch before 2.8 has no float32 sums of half precision products
    try:
        with torch.cuda.device(device):
            _module("search").probe(device)
    except Exception as error:  # no or old Triton, no C compiler, unknown driver …
        _log.warning("kernels for this card are not used, torch's are: %s: %s", type(error).__name__, error)
        return False
    return True


def _laid_out(matrix: Tensor) -> bool:
    step = matrix.stride(0) * matrix.element_size()
    return (
        0 < matrix.shape[0] < 2**31
        and matrix.shape[1] > 0
        and matrix.stride(1) == 1
        and step % ALIGNMENT_BYTES == 0
        and step >= matrix.shape[1] * matrix.element_size()
        and matrix.data_ptr() % ALIGNMENT_BYTES == 0
    )
