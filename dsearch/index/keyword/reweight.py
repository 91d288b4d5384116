"""Change k1 and b of a built keyword index without tokenizing the texts again.

An index stores only part(t, d). Term frequencies follow from it: with K(d) = k1 (1 − b + b L(d)/L̄),

    r(t, d) = part / (idf − part) = tf(t, d) / K(d)        Σ_t r(t, d) = L(d) / K(d)

and the sum gives L(d), hence K(d), hence every tf, which are whole numbers. An index of any release can be
reweighed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Float64, Int64

from dsearch.errors import InvalidRequest
from dsearch.index.keyword.bm25 import idf_of, part_of
from dsearch.index.keyword.data import KeywordData, checked_weighting

_POSTINGS_AT_A_TIME = 1 << 21


def reweighed(
    data: KeywordData, *, k1: float, b: float, documents: int, frequencies: Int64[np.ndarray, " terms"]
) -> KeywordData:
    """Recompute the parts of `data` for this k1 and b, as `KeywordData.of` computes them from the texts.

    Args:
        data: built index with b below 1; with b = 1 only proportions could be recovered.
        k1: saturation, above 0.
        b: weight of the length, 0 to 1.
        documents: number of documents of the corpus, of which `data` may be a part.
        frequencies: document frequency of each term in the corpus.

    Raises:
        InvalidRequest: k1 or b out of range, or the index was built with b = 1.
    """
    checked_weighting(k1, b)
    if data.b == 1:
        raise InvalidRequest("an index built with b = 1 does not tell how often terms occur; rebuild it")
    idf = _idf(documents, frequencies)
    lengths = _lengths(data, idf)
    parts = np.empty(len(data.parts), np.float32)
    for block, holders, of_term, counts in _counted(data, idf, lengths):
        parts[block] = part_of(
            of_term, counts, lengths[holders], average_length=data.average_length, k1=k1, b=b
        )
    return replace(data, k1=k1, b=b, parts=parts)


def _idf(documents: int, frequencies: Int64[np.ndarray, " terms"]) -> Float64[np.ndarray, " terms"]:
    distinct, of_term = np.unique(frequencies, return_inverse=True)
    return np.array([idf_of(int(frequency), documents) for frequency in distinct], np.float64)[of_term]


def _lengths(data: KeywordData, idf: Float64[np.ndarray, " terms"]) -> Int64[np.ndarray, " documents"]:
    """Compute L(d) from the sum of r, then as the sum of the rounded tf."""
    relative = np.zeros(data.documents)
    for _, holders, of_term, parts in _blocks(data, idf):
        relative += np.bincount(holders, parts / (of_term - parts), data.documents)
    average = data.average_length or 1.0
    saturated = data.k1 * relative
    estimated = saturated * (1 - data.b) / np.maximum(1 - saturated * data.b / average, 1e-12)
    lengths = np.zeros(data.documents)
    for _, holders, _, counts in _counted(data, idf, estimated):
        lengths += np.bincount(holders, counts, data.documents)
    return lengths.astype(np.int64)


def _counted(
    data: KeywordData, idf: Float64[np.ndarray, " terms"], lengths: np.ndarray
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """The postings in blocks: (which, documents, idf, tf)."""
    relative = lengths / data.average_length if data.average_length else np.ones(data.documents)
    scale = data.k1 * ((1 - data.b) + data.b * relative)
    for block, holders, of_term, parts in _blocks(data, idf):
        yield block, holders, of_term, np.rint(parts / (of_term - parts) * scale[holders])


def _blocks(
    data: KeywordData, idf: Float64[np.ndarray, " terms"]
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """The postings in blocks: (which, documents, idf, parts)."""
    for first in range(0, len(data.parts), _POSTINGS_AT_A_TIME):
        block = slice(first, min(first + _POSTINGS_AT_A_TIME, len(data.parts)))
        terms = np.searchsorted(data.offsets, np.arange(block.start, block.stop), side="right") - 1
        yield block, data.positions[block], idf[terms], data.parts[block].astype(np.float64)
