"""Terms of a query, and their weights in a corpus.

    factor(t, q) = count(t, q) / Σ_{t' in q} count(t', q) · idf(t')

is the weight of a document's part(t, d) (`bm25.py`).

Decisions:
- A repeated query term counts as often as it is repeated, in numerator and denominator.
- A query term that no document of the generation contains counts in the denominator with df = 0, and in the
  numerator for a fresh row that contains it. So n, df and average_length alone determine every score: shards
  and fresh rows agree with the index.
- An identifier counts as its whole form and as its parts, each with its own idf, in numerator and
  denominator: a document with the whole form gets all of it, one with a part its share. A whole form that no
  document of the generation contains is left out of the query: its parts represent it (`readCsv` among
  documents with only `read_csv` scores like "read csv", not a third of that).
- A word of a query that may be in several languages counts as its terms in all of them that the generation
  contains, as its first term if it contains none. A document in one language mostly has one of them.
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
    """Corpus statistics that determine every score, beside a document's own words and the average length.

    Attributes:
        documents: n.
        frequencies: df of each term.
    """

    documents: int
    frequencies: Int64[np.ndarray, " terms"]


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """Distinct term of a query: `term_id` −1 = in no document; `factor` = its count / the query's Σ idf."""

    term: str
    term_id: int
    idf: float
    factor: np.float32


class QueryTerms:
    """Terms of queries, cached for the last ones because a search needs them at least twice.

    They do not depend on k1 or b, so indexes that differ only in these share one instance.

    Args:
        data: arrays with the tokenizer and the vocabulary.
        statistics: statistics of the whole corpus if `data` is only part of it; None for those of `data`.
    """

    def __init__(self, data: KeywordData, statistics: CorpusStatistics | None = None):
        self._tokenizer = data.tokenizer
        self._numbers = {symbol: number for number, symbol in enumerate(data.vocabulary)}
        self._documents = data.documents if statistics is None else statistics.documents
        self._offsets = data.offsets
        self._statistics = statistics
        self._terms_of: dict[str, list[QueryTerm]] = {}
        self._characters = 0

    @property
    def statistics(self) -> CorpusStatistics:
        """The corpus's n and df."""
        if self._statistics is not None:
            return self._statistics
        return CorpusStatistics(self._documents, np.diff(self._offsets))

    @property
    def remembered(self) -> int:
        """Number of cached queries."""
        return len(self._terms_of)

    def of(self, query: str) -> list[QueryTerm]:
        """Return the distinct terms of `query`, in its order."""
        terms = self._terms_of.get(query)
        if terms is None:
            if self._characters + len(query) > _REMEMBERED:
                self._terms_of, self._characters = {}, 0
            terms = self._terms_of[query] = self._cut(query)
            self._characters += len(query)
        return terms

    @property
    def documents(self) -> int:
        """Number of documents of the corpus."""
        return self._documents

    def number(self, symbol: str) -> int:
        """Return the id of a term or silent word in the vocabulary; −1 for one in no document."""
        return self._numbers.get(symbol, -1)

    def _cut(self, query: str) -> list[QueryTerm]:
        counts: Counter[str] = Counter()
        for word in self._tokenizer.query_words(query):
            whole_occurs = word.whole is None or word.whole in self._numbers
            terms = word.terms if whole_occurs else word.terms[1:]
            if word.variants:
                terms = [term for term in (*terms, *word.variants) if term in self._numbers] or terms
            counts.update(terms)
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
