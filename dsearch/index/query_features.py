"""What the words of a query say of it before anything is searched: numbers for a fusion gate.

They are of the words and of the corpus' n and df alone, so that every shard, every state of fresh rows and
every process has the same; and idf is told as its share of the largest that the corpus can have, so that
corpora of different sizes compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from dsearch.index.bm25 import idf_of
from dsearch.index.query_terms import QueryTerm
from dsearch.index.tokenize import Word

_LONG = 32  # terms of a query whose length counts as 1
_MOST = 4.0  # no feature is further from what is usual: a gate knows nothing beyond what it was taught

# Each with what is usual and how much queries differ, by the training queries of SciFact and squad-sentences,
# so that what comes out is around 0 and of the order of 1. They are part of what a stored model means: a
# change to any of these needs a model format of its own.
FEATURES: dict[str, tuple[float, float]] = {
    "length": (0.63, 0.2),  # log(1 + distinct terms) / log(1 + 32)
    "unknown": (0.02, 0.2),  # share of terms that no document of the generation holds
    "mean_idf": (0.45, 0.1),  # of the others, as a share of the idf of a term that no document holds
    "least_idf": (0.25, 0.1),
    "most_idf": (0.7, 0.1),
    "identifiers": (0.02, 0.2),  # share of words that are cut into parts
    "digits": (0.05, 0.2),  # share of terms with a digit
}


def features_of(
    words: Sequence[Word], terms: Sequence[QueryTerm], documents: int
) -> Float32[np.ndarray, " features"]:
    """The features of a query, in the order of `FEATURES`; NaN, all of them, where it has no terms.

    Args:
        words: of the query.
        terms: that it has in the corpus.
        documents: n of the corpus.
    """
    if not terms:
        return np.full(len(FEATURES), np.nan, np.float32)
    known = [term.idf for term in terms if term.term_id >= 0]
    largest = idf_of(0, documents)
    idfs = [idf / largest for idf in known] or [1.0]
    counted = [word for word in words if word.terms]
    raw = {
        "length": math.log1p(len(terms)) / math.log1p(_LONG),
        "unknown": 1 - len(known) / len(terms),
        "mean_idf": sum(idfs) / len(idfs),
        "least_idf": min(idfs),
        "most_idf": max(idfs),
        "identifiers": sum(word.whole is not None for word in counted) / len(counted),
        "digits": sum(any(map(str.isdigit, term.term)) for term in terms) / len(terms),
    }
    scaled = [(raw[name] - usual) / spread for name, (usual, spread) in FEATURES.items()]
    return np.clip(np.array(scaled, np.float32), -_MOST, _MOST)
