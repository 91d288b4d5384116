"""Indexes over the keys of a query memory: all of them in 8 bits, or lists of 4-bit codes of very many.

A memory of fewer than `INDEXED_FROM` rows compares all of them in full length. An index is built when a
version is loaded, in some .02 s for 10,000 rows and a second for 20,000, and never changed: rows that are
inserted later are compared beside it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float32, Int8, Int64

from dsearch.attention.arrays import numbers_of
from dsearch.attention.memory_rows import NearestKeys
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.index import DenseIndex
from dsearch.index.dense.scanned import ScannedKeys

Kind = TypeVar("Kind", bound=HeadFormulas)

INDEXED_FROM = 512
LENDERS_FROM = 4096  # judged documents: many are compared with at once, as matrices
LISTS_FROM = 20_000  # with 40,000 keys lists take two thirds of the time, and miss some
# Of about √n lists. On synthetic keys they hold .9993 of the attention with 100,000 rows
# (`scripts/bench/memory.py`).
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
        return self._index.nearest(queries, count, PARAMETERS)


def index_keys(head: Kind) -> Kind:
    """Give the memory of a head, if it has many rows, its indexes; return the head."""
    memory = head.memory
    if memory is None:
        return head
    if len(memory) >= INDEXED_FROM:
        memory.index = _index(numbers_of(memory.keys), numbers_of(memory.key_scales))
    if memory.documents >= LENDERS_FROM:
        memory.lenders = IndexedKeys(numbers_of(memory.codes), numbers_of(memory.scales))
    return head


def _index(codes: Int8[np.ndarray, "keys dim"], scales: Float32[np.ndarray, " keys"]) -> NearestKeys:
    kind = IndexedKeys if len(codes) >= LISTS_FROM else ScannedKeys
    return kind(codes, scales)
