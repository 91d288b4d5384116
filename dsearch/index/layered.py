"""Postings in layers, so that texts are added to many others at the cost of a few.

A layer is joined to the one below when that is not larger: n texts that come one by one make log₂ n layers at
most, and each of them is copied log₂ n times (the logarithmic method of Bentley & Saxe 1980, "Decomposable
searching problems I").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

Posting = tuple[Int64[np.ndarray, " holding"], Float64[np.ndarray, " holding"]]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Texts from `start` on; positions in its postings count from there."""

    start: int
    texts: int
    postings: Mapping[str, Posting]


class LayeredPostings(Mapping[str, Posting]):
    """term → (ascending positions of the texts that hold it, how often each does), of all layers together."""

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
        found = [(layer.postings[term], layer.start) for layer in self._layers if term in layer.postings]
        if not found:
            raise KeyError(term)
        if len(found) == 1:
            (positions, counts), start = found[0]
            return positions + start, counts
        return (
            np.concatenate([positions + start for (positions, _), start in found]),
            np.concatenate([counts for (_, counts), _ in found]),
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
