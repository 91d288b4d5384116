"""Batches of texts of similar length, in an order that makes the first batches representative of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, Int64


def length_sorted_batches(
    lengths: Int[np.ndarray, " texts"], batch_size: int, *, tokens: int | None = None, seed: int = 0
) -> Iterator[Int64[np.ndarray, " batch"]]:
    """Positions of texts, batch by batch; each position once.

    A batch is padded to its longest text, so it has texts of similar length. The order of batches is random
    (by `seed`): with the long ones last, estimates of the remaining time would be too short.

    Args:
        lengths: of the texts, in tokens.
        batch_size: texts of a batch at most.
        tokens: padded tokens of a batch at most, if it has more than one text; None for any number.
        seed: of the order.
    """
    order = np.argsort(lengths, kind="stable").astype(np.int64)
    ends = [len(order)]  # from the longest texts down
    while ends[-1] > 0:
        longest = max(1, int(lengths[order[ends[-1] - 1]]))
        texts = batch_size if tokens is None else min(batch_size, max(1, tokens // longest))
        ends.append(max(0, ends[-1] - texts))
    batches = [slice(start, end) for end, start in itertools.pairwise(ends)]
    if len(batches) > 1:
        np.random.default_rng(seed).shuffle(batches)
    for batch in batches:
        yield order[batch]
