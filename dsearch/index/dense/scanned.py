"""`ScannedKeys`: the thousands of keys of a query memory in 8 bits; a search compares all of them.

Codes have one unit for all keys, unlike those of the memory, whose rows have one each: so products of whole
numbers order the keys. Keys and queries are rounded; a search returns some keys more than it was asked for,
and the caller compares them exactly. 10,000 keys of 384 numbers are 4 MB, whose scan takes some .6 of the
time of 4-bit codes in lists with their best scored again, and misses none.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from jaxtyping import Float32, Int8, Int64

SPARE = 32  # keys beyond those that are asked for
_BLOCK = 8192  # keys that are numbers of full length together


class ScannedKeys:
    """Keys in 8 bits with a common unit; immutable, safe to search from many threads.

    Args:
        codes: keys as whole numbers.
        scales: the unit of each.
    """

    def __init__(self, codes: Int8[np.ndarray, "keys dim"], scales: Float32[np.ndarray, " keys"]):
        kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
        self._index: Any = faiss.IndexScalarQuantizer(codes.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        shares = (scales / (scales.max(initial=0.0) or 1.0)).astype(np.float32)
        for start in range(0, len(codes), _BLOCK):
            block = slice(start, start + _BLOCK)
            self._index.add(np.rint(codes[block] * shares[block, None]))

    def __len__(self) -> int:
        """Number of keys."""
        return int(self._index.ntotal)

    def __deepcopy__(self, _: Any) -> ScannedKeys:
        return self  # immutable

    def nearest(
        self, queries: Float32[np.ndarray, "batch dim"], count: int
    ) -> Int64[np.ndarray, "batch found"]:
        """Numbers of the `count` keys with the largest products, but for rounding, and of some more."""
        largest = np.abs(queries).max(axis=1, keepdims=True, initial=0.0)
        whole = np.rint(queries * (127 / np.where(largest > 0, largest, 1)))  # FAISS cuts fractions off
        most = min(count + SPARE, len(self))
        return self._index.search(whole.astype(np.float32), most)[1]
