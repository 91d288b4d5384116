"""BM25 in Lucene's form: the arithmetic of one term, for a whole corpus and for single texts.

    idf(t)     = ln(1 + (n − df(t) + 0.5) / (df(t) + 0.5))
    part(t, d) = idf(t) · tf(t, d) / (tf(t, d) + k1 · (1 − b + b · length(d) / average_length))

Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework"; Lucene's idf and its form without the
constant factor (k1 + 1) as in Kamphuis et al. 2020, "Which BM25 Do You Mean?". All of it is computed in
float64 and in one order of operations, then rounded to float32: a text gets the same bits on either path.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64


def idf_of(document_frequency: int, documents: int) -> float:
    """Compute the idf of a term in `document_frequency` of `documents` documents; always above 0."""
    return math.log(1 + (documents - document_frequency + 0.5) / (document_frequency + 0.5))


def part_of(
    idf: float | Float64[np.ndarray, " postings"],
    counts: Float64[np.ndarray, " postings"],
    lengths: Int64[np.ndarray, " postings"],
    *,
    average_length: float,
    k1: float,
    b: float,
) -> Float32[np.ndarray, " postings"]:
    """Compute part(t, d) of postings from tf, document lengths and idf (one per posting, or one for all).

    If the average length is 0, every length counts as average.
    """
    relative = b * lengths / average_length if average_length else b
    return (idf * (counts / (k1 * ((1 - b) + relative) + counts))).astype(np.float32)


def columns_of_corpus(
    documents: list[list[int]], terms: int, *, k1: float, b: float
) -> tuple[
    Int64[np.ndarray, " terms_plus_1"], Int32[np.ndarray, " postings"], Float32[np.ndarray, " postings"]
]:
    """Compute part(t, d) of all terms in all documents, a column per term: (offsets, positions, parts).

    Args:
        documents: term ids of each document, repeated as often as they occur.
        terms: number of distinct terms; ids are 0 to terms − 1 and each occurs.
        k1: saturation.
        b: weight of the length.
    """
    if terms == 0:  # bm25s would average no lengths
        return np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    import bm25s  # brings scipy, for building only

    # float64: with float32 the last bit would depend on NumPy's promotion rules.
    scorer = bm25s.BM25(method="lucene", k1=k1, b=b, dtype="float64", int_dtype="int32")
    matrix = scorer.build_index_from_ids(list(range(terms)), documents, show_progress=False)
    return (
        np.asarray(matrix["indptr"], np.int64),
        np.asarray(matrix["indices"], np.int32),
        np.asarray(matrix["data"], np.float32),
    )
