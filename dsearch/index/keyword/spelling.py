"""Misspelt words of a query: the most similar term of an index, by character bigrams.

    similarity(s, t) = 2 |B(s) ∩ B(t)| / (|B(s)| + |B(t)|)     B: bigrams of the term between two marks (Dice)

Only words that no document has are replaced, by one term each; of equal similarity the more frequent one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64

SHORTEST = 4  # characters; shorter words are like too many others
LEAST_SIMILARITY = 0.6


class Spelling:
    """Terms of an index by their bigrams.

    Args:
        terms: the terms, by id.
        frequencies: number of documents with each.
    """

    def __init__(self, terms: Sequence[str], frequencies: Int64[np.ndarray, " terms"]):
        self._terms, self._frequencies = terms, frequencies
        self._distinct = frozenset(terms)
        self._sizes = np.zeros(len(terms), np.int64)
        holding: dict[str, list[int]] = {}
        for number, term in enumerate(terms):
            bigrams = _bigrams(term)
            self._sizes[number] = len(bigrams)
            for bigram in bigrams:
                holding.setdefault(bigram, []).append(number)
        self._holding = {bigram: np.array(numbers) for bigram, numbers in holding.items()}

    def __contains__(self, term: str) -> bool:
        """True if a document has the term."""
        return term in self._distinct

    def nearest(self, forms: Iterable[str]) -> str | None:
        """Return the term most similar to a form of a word; None if none is similar enough."""
        best = np.full(len(self._terms), LEAST_SIMILARITY)
        for form in forms:
            bigrams = _bigrams(form)
            common = np.zeros(len(self._terms), np.int64)
            for bigram in bigrams:
                if (numbers := self._holding.get(bigram)) is not None:
                    common[numbers] += 1
            best = np.maximum(best, 2 * common / (self._sizes + len(bigrams)))
        similar = np.flatnonzero((best == best.max(initial=0.0)) & (best > LEAST_SIMILARITY))
        if not len(similar):
            return None
        return self._terms[int(similar[self._frequencies[similar].argmax()])]


def _bigrams(term: str) -> frozenset[str]:
    marked = f"\x02{term}\x03"
    return frozenset(marked[at : at + 2] for at in range(len(marked) - 1))
