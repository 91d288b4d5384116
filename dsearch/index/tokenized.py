"""Texts that are not in an index, cut once, so that many queries can be scored against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, Int, Int64

from dsearch.index.layered import LayeredPostings
from dsearch.index.phrases import Phrase
from dsearch.index.sequences import holds
from dsearch.index.tokenize import Tokenizer

_NOWHERE = np.zeros(0, np.int64), np.zeros(0)


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Texts by term. Made by `TokenizedTexts.of(tokenizer, texts)`; positions count from 0 in their order.

    Attributes:
        tokenizer: what cut them.
        lengths: number of terms in each text.
        postings: term → (ascending positions of the texts that hold it, how often each holds it).
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
        """Which texts hold `term`, ascending, how often each does, and their lengths.

        Of the texts numbered `at` alone, where given, and then by places in it; costs a binary search each.
        """
        holders, counts = self.postings.get(term, _NOWHERE)
        if at is None or len(holders) == 0:
            return holders, counts, self.lengths[holders]
        places = np.minimum(np.searchsorted(holders, at), len(holders) - 1)
        found = np.flatnonzero(holders[places] == at)
        held = places[found]
        return found, counts[held], self.lengths[holders[held]]

    def holding(self, phrase: Phrase) -> Bool[np.ndarray, " texts"]:
        """Which texts hold `phrase`."""
        holding = np.ones(len(self), bool)
        for term in phrase.terms:
            has_term = np.zeros(len(self), bool)
            has_term[self.postings.get(term, _NOWHERE)[0]] = True
            holding &= has_term
        if phrase.leaves:
            for position in np.flatnonzero(holding):
                holding[position] = holds(self.leaves[position], phrase.leaves)
        return holding
