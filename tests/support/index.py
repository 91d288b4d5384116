"""Keys as a dense index stores them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

from dsearch.index import DenseIndex


def stored_keys(index: DenseIndex, start: int, stop: int) -> Float32[np.ndarray, "range key_dim"]:
    """The stored keys from `start` up to `stop`: exact for Flat, rounded for other kinds."""
    return index._stored.reconstruct_n(start, stop - start)
