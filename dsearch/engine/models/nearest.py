"""`IndexedKeys`: FAISS over the many keys of a query memory, in 4 bits and in lists, rescored in 8 bits.

A memory of fewer than `INDEXED_FROM` rows compares all of them. The index is built when a version is loaded,
in a second for 20,000 rows, and never changed: rows that are inserted later are compared beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int8, Int64

from dsearch.index import DenseIndex

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head

INDEXED_FROM = 4096
# Of about √n lists. On synthetic keys they hold .9996 of the attention with 10,000 rows and .9993 with
# 100,000; 32 lists of 8-bit keys held .933 with 10,000 (`scripts/bench/memory.py`).
PARAMETERS = {"nprobe": 96, "k_factor": 4}


class IndexedKeys:
    """The nearest of many keys; the candidates of a search are compared exactly afterwards.

    Args:
        codes: keys as whole numbers.
        scales: the unit of each.
    """

    def __init__(self, codes: Int8[np.ndarray, "keys dim"], scales: Float32[np.ndarray, " keys"]):
        self._index = DenseIndex.build(codes * scales[:, None], "IVFPQ")

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._index)

    def __deepcopy__(self, _: Any) -> IndexedKeys:
        return self  # immutable

    def nearest(
        self, queries: Float32[np.ndarray, "batch encoder_dim"], count: int
    ) -> Int64[np.ndarray, "batch near"]:
        """Numbers of the keys with the largest products, −1 behind."""
        return self._index.search(queries, count, parameters=PARAMETERS)[1]


def index_keys(head: Head) -> Head:
    """Give the memory of a head, if it has many rows, its indexes; return the head."""
    memory = head.memory
    if memory is None:
        return head
    if len(memory) >= INDEXED_FROM:
        memory.index = IndexedKeys(memory.keys.numpy(), memory.key_scales.numpy())
    if memory.documents >= INDEXED_FROM:
        memory.lenders = IndexedKeys(memory.codes.numpy(), memory.scales.numpy())
    return head
