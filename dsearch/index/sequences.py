"""The documents as sequences of symbols: where phrases are sought.

A document is its leaves (`words.py`) in order, 4 bytes each. A phrase is sought only in the documents that
hold all of its terms, so a look costs the lengths of these documents; a phrase of stop words alone costs a
pass over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64

_SYMBOLS_AT_A_TIME = 1 << 20


class Sequences:
    """symbols[starts[d] : starts[d + 1]] are the symbols of document d."""

    def __init__(
        self, starts: Int64[np.ndarray, " documents_plus_1"], symbols: Int32[np.ndarray, " symbols"]
    ):
        self.starts = starts
        self.symbols = symbols

    def holding(
        self, phrase: Sequence[int], candidates: Int[np.ndarray, " candidates"]
    ) -> Bool[np.ndarray, " candidates"]:
        """Whether each candidate (a document) holds the symbols of `phrase` side by side."""
        candidates = np.asarray(candidates, np.int64)
        found = np.zeros(len(candidates), bool)
        lengths = self.starts[candidates + 1] - self.starts[candidates]
        ends = np.cumsum(lengths)
        begin = 0
        while begin < len(candidates):  # as many documents as fit in a block, one at least
            done = int(ends[begin - 1]) if begin else 0
            stop = max(begin + 1, int(np.searchsorted(ends, done + _SYMBOLS_AT_A_TIME)))
            found[begin:stop] = self._holding(phrase, candidates[begin:stop], lengths[begin:stop])
            begin = stop
        return found

    def _holding(
        self,
        phrase: Sequence[int],
        candidates: Int64[np.ndarray, " block"],
        lengths: Int64[np.ndarray, " block"],
    ) -> Bool[np.ndarray, " block"]:
        owner = np.repeat(np.arange(len(candidates)), lengths)
        first = np.cumsum(lengths) - lengths
        at = np.arange(len(owner)) + (self.starts[candidates] - first)[owner]
        symbols = self.symbols[at]
        places = max(len(symbols) - len(phrase) + 1, 0)
        hit = owner[:places] == owner[len(phrase) - 1 :]  # a phrase does not run on into the next document
        for offset, symbol in enumerate(phrase):
            hit &= symbols[offset : offset + places] == symbol
        found = np.zeros(len(candidates), bool)
        found[owner[:places][hit]] = True
        return found


def holds(text: Sequence[str], phrase: Sequence[str]) -> bool:
    """Whether one text, given as symbols, holds the phrase: what `Sequences.holding` finds for many."""
    first, length = phrase[0], len(phrase)
    return any(
        text[start] == first and list(text[start : start + length]) == list(phrase)
        for start in range(len(text) - length + 1)
    )
