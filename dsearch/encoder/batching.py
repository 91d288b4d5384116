"""Batches of texts of similar length, in an order that makes the first batches representative of the rest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, Int64


def length_sorted_batches(
    lengths: Int[np.ndarray, " texts"], batch_size: int, *, seed: int = 0
) -> Iterator[Int64[np.ndarray, " batch"]]:
    """Positions of texts, batch by batch; each position once.

    A batch is padded to its longest text, so it has texts of similar length. The order of batches is random
    (by `seed`): with the long ones last, estimates of the remaining time would be too short.
    """
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    starts = np.arange(0, len(order), batch_size)
    if len(starts) > 1:
        np.random.default_rng(seed).shuffle(starts)
    for start in starts:
        yield order[start : start + batch_size]
