"""The terms of a query, and what each of them weighs in a corpus.

    factor(t, q) = count(t, q) / Σ_{t' in q} count(t', q) · idf(t')

is what a document's part(t, d) (`bm25.py`) is multiplied with.

Decisions:
- A term that a query repeats counts as often as it is repeated, above and below the line.
- A query term that no document of the generation holds counts below the line with df = 0, and above it for a
  fresh row that holds it. So n, df and average_length alone fix every score: shards and fresh rows agree with
  the index.
- An identifier counts as its whole form and as its parts, each with its own idf, above and below the line: a
  document with the whole form gets all of it, one with a part its share. A whole form that no document of the
  generation holds is left out of the query: its parts stand for it (`readCsv` among documents that only know
  `read_csv` scores as "read csv" does, not a third of that).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from dsearch.index.keyword.bm25 import idf_of
from dsearch.index.keyword.data import KeywordData

_REMEMBERED = 1 << 20  # characters of queries; their terms are some thirty times the size


@dataclass(frozen=True, slots=True, eq=False)
class CorpusStatistics:
    """What fixes every score beside a document's own words and the average length.

    Attributes:
        documents: n.
        frequencies: df of each term.
    """

    documents: int
    frequencies: Int64[np.ndarray, " terms"]


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """A distinct term of a query: `term_id` −1 = in no document; `factor` = its count / the query's Σ idf."""

    term: str
    term_id: int
    idf: float
    factor: np.float32


class QueryTerms:
    """The terms of queries, those of the last ones remembered: a search looks at one two times or more.

    Neither k1 nor b counts here, so indexes that differ in these share one.

    Args:
        data: whose tokenizer and vocabulary are used.
        statistics: of the whole corpus, where `data` is only part of it; those of `data` when None.
    """

    def __init__(self, data: KeywordData, statistics: CorpusStatistics | None = None):
        self._tokenizer = data.tokenizer
        self._numbers = {symbol: number for number, symbol in enumerate(data.vocabulary)}
        self._documents = data.documents if statistics is None else statistics.documents
        self._offsets = data.offsets
        self._statistics = statistics
        self._known: dict[str, list[QueryTerm]] = {}
        self._characters = 0

    @property
    def statistics(self) -> CorpusStatistics:
        """The corpus's n and df."""
        if self._statistics is not None:
            return self._statistics
        return CorpusStatistics(self._documents, np.diff(self._offsets))

    @property
    def remembered(self) -> int:
        """The number of queries whose terms are known."""
        return len(self._known)

    def of(self, query: str) -> list[QueryTerm]:
        """The distinct terms of `query`, in its order."""
        known = self._known.get(query)
        if known is None:
            if self._characters + len(query) > _REMEMBERED:
                self._known, self._characters = {}, 0
            known = self._known[query] = self._cut(query)
            self._characters += len(query)
        return known

    @property
    def documents(self) -> int:
        """n of the corpus."""
        return self._documents

    def number(self, symbol: str) -> int:
        """The place of a term or silent word in the vocabulary, −1 for one that no document holds."""
        return self._numbers.get(symbol, -1)

    def _cut(self, query: str) -> list[QueryTerm]:
        counts: Counter[str] = Counter()
        for word in next(self._tokenizer.words([query])):
            known = word.whole is None or word.whole in self._numbers
            counts.update(word.terms if known else word.terms[1:])
        ids = [self.number(term) for term in counts]
        idfs = [idf_of(self._frequency(term_id), self._documents) for term_id in ids]
        divisor = sum(count * idf for count, idf in zip(counts.values(), idfs, strict=True))
        return [
            QueryTerm(term, term_id, idf, np.float32(count / divisor))
            for (term, count), term_id, idf in zip(counts.items(), ids, idfs, strict=True)
        ]

    def _frequency(self, term_id: int) -> int:
        if term_id < 0:
            return 0
        if self._statistics is not None:
            return int(self._statistics.frequencies[term_id])
        return int(self._offsets[term_id + 1] - self._offsets[term_id])
