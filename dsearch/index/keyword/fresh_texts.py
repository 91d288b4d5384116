"""Tokenized texts that are not in an index, so that many queries can be scored against them.

Postings are kept in layers, so that adding a few texts to many costs little.

A layer is merged into the one below if that is not larger: n texts added one by one form at most log₂ n
layers, and each is copied log₂ n times (the logarithmic method of Bentley & Saxe 1980, "Decomposable
searching problems I").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, Int, Int64

from dsearch.index.keyword.data import holds
from dsearch.index.keyword.query import Phrase
from dsearch.index.keyword.tokenizer import Tokenizer

_NOWHERE = np.zeros(0, np.int64), np.zeros(0)


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Texts by term, created by `TokenizedTexts.of(tokenizer, texts)`; positions count from 0 in their order.

    Attributes:
        tokenizer: their tokenizer.
        lengths: number of terms in each text.
        postings: term → (ascending positions of the texts that contain it, its count in each).
        leaves: each text as a sequence of symbols, for phrases (`Word.leaves`).
    """

    tokenizer: Tokenizer
    lengths: Int64[np.ndarray, " texts"]
    postings: Mapping[str, tuple[Int64[np.ndarray, " holding"], Float64[np.ndarray, " holding"]]] = field(
        repr=False
    )
    leaves: list[list[str]] = field(repr=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizedTexts:
        """Cut `texts` with `tokenizer`."""
        lengths: list[int] = []
        leaves: list[list[str]] = []
        holders: dict[str, tuple[list[int], list[int]]] = {}
        for position, words in enumerate(tokenizer.words(texts)):
            counts_here = Counter(term for word in words for term in word.terms)
            lengths.append(counts_here.total())
            leaves.append([leaf for word in words for leaf in word.leaves])
            for term, count in counts_here.items():
                positions, counts = holders.setdefault(term, ([], []))
                positions.append(position)
                counts.append(count)
        postings = {
            term: (np.array(positions, np.int64), np.array(counts, np.float64))
            for term, (positions, counts) in holders.items()
        }
        return cls(tokenizer, np.array(lengths, np.int64), postings, leaves)

    def extended(self, texts: Iterable[str]) -> TokenizedTexts:
        """These and further texts behind them, at little more than the cost of the further ones."""
        more = TokenizedTexts.of(self.tokenizer, texts)
        return TokenizedTexts(
            self.tokenizer,
            np.concatenate([self.lengths, more.lengths]),
            LayeredPostings.of(self.postings, len(self)).over(more.postings, len(more)),
            [*self.leaves, *more.leaves],
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def occurrences(
        self, term: str, at: Int[np.ndarray, " candidates"] | None = None
    ) -> tuple[Int64[np.ndarray, " holding"], Float64[np.ndarray, " holding"], Int64[np.ndarray, " holding"]]:
        """Positions of the texts that contain `term`, ascending, its count in each, and their lengths.

        With `at`, only the texts numbered `at` are searched, and positions are places in it; the cost is a
        binary search for each.
        """
        holders, counts = self.postings.get(term, _NOWHERE)
        if at is None or len(holders) == 0:
            return holders, counts, self.lengths[holders]
        places = np.minimum(np.searchsorted(holders, at), len(holders) - 1)
        matches = np.flatnonzero(holders[places] == at)
        postings = places[matches]
        return matches, counts[postings], self.lengths[holders[postings]]

    def holding(self, phrase: Phrase) -> Bool[np.ndarray, " texts"]:
        """Mask of the texts that contain `phrase`."""
        holding = np.ones(len(self), bool)
        for term in phrase.terms:
            has_term = np.zeros(len(self), bool)
            has_term[self.postings.get(term, _NOWHERE)[0]] = True
            holding &= has_term
        if phrase.leaves:
            for position in np.flatnonzero(holding):
                holding[position] = holds(self.leaves[position], phrase.leaves)
        return holding


Posting = tuple[Int64[np.ndarray, " holding"], Float64[np.ndarray, " holding"]]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Texts from `start` on; positions in its postings count from `start`."""

    start: int
    texts: int
    postings: Mapping[str, Posting]


class LayeredPostings(Mapping[str, Posting]):
    """Mapping of all layers: term → (ascending positions of the texts that contain it, its count in each)."""

    def __init__(self, layers: tuple[_Layer, ...]):
        self._layers = layers

    @classmethod
    def of(cls, postings: Mapping[str, Posting], texts: int) -> LayeredPostings:
        """One layer of postings of so many texts, or those layers that they are."""
        if isinstance(postings, LayeredPostings):
            return postings
        return cls((_Layer(0, texts, postings),) if texts else ())

    def over(self, postings: Mapping[str, Posting], texts: int) -> LayeredPostings:
        """With the postings of so many more texts."""
        if texts == 0:
            return self
        below = list(self._layers)
        start = below[-1].start + below[-1].texts if below else 0
        top = _Layer(start, texts, postings)
        while below and below[-1].texts <= top.texts:
            top = _joined(below.pop(), top)
        return LayeredPostings((*below, top))

    def __getitem__(self, term: str) -> Posting:
        layers = [(layer.postings[term], layer.start) for layer in self._layers if term in layer.postings]
        if not layers:
            raise KeyError(term)
        if len(layers) == 1:
            (positions, counts), start = layers[0]
            return positions + start, counts
        return (
            np.concatenate([positions + start for (positions, _), start in layers]),
            np.concatenate([counts for (_, counts), _ in layers]),
        )

    def __contains__(self, term: object) -> bool:
        return any(term in layer.postings for layer in self._layers)

    def __iter__(self) -> Iterator[str]:
        return iter({term: None for layer in self._layers for term in layer.postings})

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _joined(low: _Layer, high: _Layer) -> _Layer:
    postings, offset = dict(low.postings), high.start - low.start
    for term, (positions, counts) in high.postings.items():
        before = postings.get(term)
        later = positions + offset
        postings[term] = (
            (later, counts)
            if before is None
            else (np.concatenate([before[0], later]), np.concatenate([before[1], counts]))
        )
    return _Layer(low.start, low.texts + high.texts, postings)
