"""Keyword scores: BM25 in Lucene's form, divided by the sum of the query terms' idf.

    b(q, d) = Σ_{t in q} part(t, d) / Σ_{t in q} idf(t)        in [0, 1)

part and idf are those of `data.py`; `query.py` defines the terms of a query. k1 and b keep their names
from the literature; b(q, d) of the guide `architecture` is called score.

Decisions:
- A query without terms scores 0 everywhere, never NaN.
- Summation runs in float32 over the query's distinct terms in the order of the query, on every path, so that
  `search`, `scores`, `scores_at`, `scores_of_texts` and `explain` agree to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, Int64

from dsearch.errors import InvalidRequest, amount
from dsearch.index.exact import best_above
from dsearch.index.keyword.data import KeywordData, part_of, reweighed
from dsearch.index.keyword.fresh_texts import TokenizedTexts
from dsearch.index.keyword.query import (
    SHORTEST,
    CorpusStatistics,
    ParsedQuery,
    Phrase,
    QueryTerm,
    QueryTerms,
    Spelling,
    highlights,
    matching,
)
from dsearch.index.keyword.tokenizer import SPLITTERS, Tokenizer, normal_form
from dsearch.index.validation import checked_exclude, checked_k

# On SciFact's 809 training claims nDCG@10 is .696 for k1 1.5 and 1.2 (b 0.75), .695 for 0.9 and 0.4, .692 for
# k1 2.0: flat, so bm25s' defaults.
K1 = 1.5
B = 0.75

_WEIGHED = 2  # cached weightings, one for each model in use


class KeywordIndex:
    """BM25 over the documents of one generation: immutable, safe to read from many threads.

    Positions count from 0 in the order of the texts. Create one with `build` or `load`.

    Attributes:
        tokenizer: tokenizer of documents and queries.
        k1: saturation of repeated terms, > 0.
        b: weight of a document's length, 0 to 1.
        average_length: mean number of terms in a document, 0 for an empty index.

    Args:
        data: its arrays.
        terms: query terms with the statistics of a larger corpus or of another index; None for its own.
    """

    def __init__(self, data: KeywordData, terms: QueryTerms | None = None):
        self.tokenizer = data.tokenizer
        self.k1 = data.k1
        self.b = data.b
        self.average_length = data.average_length
        self._data = data
        self._terms = QueryTerms(data) if terms is None else terms
        self._built = self  # for a reweighed index, the original
        self._weighed: dict[tuple[float, float], KeywordIndex] = {}

    @classmethod
    def build(
        cls, texts: Iterable[str], *, tokenizer: Tokenizer | None = None, k1: float = K1, b: float = B
    ) -> KeywordIndex:
        """Index `texts`, which may be a stream and may be empty; equal texts give equal files.

        Raises:
            InvalidRequest: k1 ≤ 0 or b outside 0 to 1.
        """
        return cls(KeywordData.of(texts, tokenizer or Tokenizer(), k1=k1, b=b))

    def __len__(self) -> int:
        """The number of documents."""
        return self._data.documents

    @property
    def statistics(self) -> CorpusStatistics:
        """Corpus statistics that a query's scores depend on: n and df."""
        return self._terms.statistics

    def part(self, start: int, stop: int) -> KeywordIndex:
        """Return the documents at positions `start` to `stop` − 1 as a separate index with equal scores."""
        return KeywordIndex(self._data.part(start, stop), self._terms)

    def of_corpus(self, statistics: CorpusStatistics) -> KeywordIndex:
        """Score these documents as part of a corpus; a loaded index that `part` created needs its statistics.

        Raises:
            InvalidRequest: statistics of another vocabulary.
        """
        if len(statistics.frequencies) != self._data.terms:
            raise InvalidRequest(
                f"frequencies of {amount(len(statistics.frequencies), 'term')}; this index has "
                f"{self._data.terms}"
            )
        return KeywordIndex(self._data, QueryTerms(self._data, statistics))

    def weighed(self, weighting: tuple[float, float] | None) -> KeywordIndex:
        """Return an index of the same texts with this (k1, b); None stands for the built ones.

        The first call costs a pass over all postings and 4 bytes of memory for each; the result is cached.

        Raises:
            InvalidRequest: k1 ≤ 0, b outside 0 to 1, or an index built with b = 1.
        """
        built = self._built
        if weighting is None or weighting == (built.k1, built.b):
            return built
        index = built._weighed.get(weighting)
        if index is None:
            corpus, (k1, b) = built.statistics, weighting
            data = reweighed(
                built._data, k1=k1, b=b, documents=corpus.documents, frequencies=corpus.frequencies
            )
            index = KeywordIndex(data, built._terms)  # idf and counts do not depend on k1 and b
            index._built = built
            if len(built._weighed) >= _WEIGHED:
                built._weighed.clear()
            built._weighed[weighting] = index
        return index

    def search(
        self, queries: Sequence[str], k: int, exclude: Bool[np.ndarray, " documents"] | None = None
    ) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
        """Return the k best documents of each query: (scores, positions), ties by ascending position.

        Only documents that contain a query term are returned (score > 0); the rest of a row is score 0,
        position −1. k may exceed the number of documents. Documents where `exclude` is true are skipped.

        Raises:
            InvalidRequest: k < 1, or `exclude` is not one boolean per document.
        """
        checked_k(k)
        exclude = checked_exclude(exclude, len(self))
        scores = np.zeros((len(queries), k), np.float32)
        positions = np.full((len(queries), k), -1, np.int64)
        for row, query in enumerate(queries):
            full = self._full(query)
            if exclude is not None:
                full[exclude] = 0
            best = best_above(full, k)
            scores[row, : len(best)] = full[best]
            positions[row, : len(best)] = best
        return scores, positions

    def scores(self, queries: Sequence[str]) -> Float32[np.ndarray, "batch documents"]:
        """The score of every document for every query; memory is batch × documents × 4 bytes."""
        scores = np.zeros((len(queries), len(self)), np.float32)
        for row, query in enumerate(queries):
            self._full(query, out=scores[row])
        return scores

    def scores_at(
        self, query: str, positions: Int[np.ndarray, " candidates"]
    ) -> Float32[np.ndarray, " candidates"]:
        """Scores of the documents at `positions` (any order, repeats allowed); 0 where a position is −1.

        The cost is a binary search per query term and candidate, logarithmic in the size of the corpus.

        Raises:
            InvalidRequest: a position outside −1 to documents − 1.
        """
        positions = np.asarray(positions)
        if positions.size and not (positions.min() >= -1 and positions.max() < len(self)):
            bad = positions[(positions < -1) | (positions >= len(self))][0]
            raise InvalidRequest(f"position {bad}; use 0 to {len(self) - 1}, or -1 for none")
        scores = np.zeros(positions.shape, np.float32)
        for term in self._terms.of(query):
            holders, parts = self._column(term.term_id)
            if len(holders) == 0:
                continue
            # In the column's type: a mixed search would copy the whole column.
            at = np.minimum(np.searchsorted(holders, positions.astype(holders.dtype)), len(holders) - 1)
            scores += np.where(holders[at] == positions, parts[at] * term.factor, np.float32(0))
        return scores

    def scores_of_texts(
        self,
        query: str,
        texts: Sequence[str] | TokenizedTexts,
        at: Int[np.ndarray, " candidates"] | None = None,
    ) -> Float32[np.ndarray, " scored"]:
        """Scores of texts that are not in the index, with its statistics (n, df, average length).

        With `at`, only the texts numbered `at` are scored, by a binary search per query term and candidate.

        Scores equal those of the index for the same text. Tokenize texts that are scored more than once
        beforehand, with `TokenizedTexts.of(index.tokenizer, texts)`.

        Raises:
            InvalidRequest: the texts were cut by another tokenizer.
        """
        if not isinstance(texts, TokenizedTexts):
            texts = TokenizedTexts.of(self.tokenizer, texts)
        self._check_cut(texts)
        scores = np.zeros(len(texts) if at is None else len(at), np.float32)
        for term in self._terms.of(query):
            if at is None:
                holders, parts = self._fresh_parts(term, texts)
                scores[holders] += parts * term.factor
            else:
                of_at, parts = self._fresh_parts(term, texts, at)
                scores[of_at] += parts * term.factor
        return scores

    def explain(self, query: str, position: int) -> dict[str, float]:
        """Return the part of each (stemmed) query term in a document's score; the parts sum to it.

        Terms that the document does not contain are left out.

        Raises:
            InvalidRequest: no such position.
        """
        if not 0 <= position < len(self):
            raise InvalidRequest(f"position {position}; use 0 to {len(self) - 1}")
        return self._shares(query, position, lambda term: self._column(term.term_id))

    def explain_text(self, query: str, text: str | TokenizedTexts, number: int = 0) -> dict[str, float]:
        """Explain a text that is not in the index, or text number `text` of tokenised ones."""
        texts = TokenizedTexts.of(self.tokenizer, [text]) if isinstance(text, str) else text
        return self._shares(query, number, lambda term: self._fresh_parts(term, texts))

    def matching(self, query: ParsedQuery) -> Bool[np.ndarray, " documents"] | None:
        """Mask of the documents with all required and no excluded phrase of `query`; None = all match.

        The cost is the postings of the phrases' terms and, for phrases of more than one word, the lengths of
        the documents that contain all their terms.
        """
        return matching(query, self.tokenizer, self._holding)

    def matching_texts(self, query: ParsedQuery, texts: TokenizedTexts) -> Bool[np.ndarray, " texts"] | None:
        """Mask like `matching`, for texts that are not in the index.

        Raises:
            InvalidRequest: the texts were cut by another tokenizer.
        """
        self._check_cut(texts)
        return matching(query, self.tokenizer, texts.holding)

    def highlights(self, query: str, text: str) -> list[tuple[int, int]]:
        """Stretches of `text` that match terms of `query`; see `highlights`."""
        return highlights(self.tokenizer, query, text)

    @cached_property
    def _spelling(self) -> Spelling:
        terms = self._data.vocabulary[: self._data.terms]
        return Spelling(terms, np.asarray(self.statistics.frequencies))

    def respelt(self, query: str, newer: TokenizedTexts) -> str:
        """Return a query with each word that no document has replaced by the most similar term of one.

        Args:
            query: its words.
            newer: texts that are not in the index, whose words stay too.
        """
        spelling, tokenizer = self._built._spelling, self.tokenizer

        def word_of(match: re.Match[str]) -> str:
            word = match[0]
            terms = [term for term in next(tokenizer.terms([word])) if len(term) >= SHORTEST]
            if not terms or any(term in spelling for term in terms):
                return word
            if len(newer) and self.scores_of_texts(word, newer).any():
                return word
            nearest = spelling.nearest([word.lower(), *terms])
            if nearest is None:
                return word
            # A stem may have another stem itself; with the ending of the misspelt word it has not.
            forms = (nearest, nearest + word.lower().removeprefix(terms[0]))
            return next((form for form in forms if next(tokenizer.terms([form])) == [nearest]), word)

        return SPLITTERS[tokenizer.splitter].words.sub(word_of, normal_form(query))

    def idf(self, word: str) -> float:
        """The largest idf of a word's terms; 0 for a word that is no term."""
        return max((term.idf for term in self._terms.of(word)), default=0.0)

    def settings(self) -> dict[str, Any]:
        """Everything except arrays and vocabulary, as JSON."""
        return self._data.settings()

    def save(self, folder: Path) -> None:
        """Write the files named in `KEYWORD_FILES` into `folder`, created if missing."""
        self._data.save(folder)

    @classmethod
    def load(cls, folder: Path, *, mmap: bool = False) -> KeywordIndex:
        """Read what `save` wrote; with `mmap` postings and sequences stay on disk until they are used.

        Raises:
            CorruptData: a file is missing or inconsistent.
            UnsupportedFormat: this release, or this PyStemmer, tokenises differently.
        """
        return cls(KeywordData.load(folder, mmap=mmap))

    def _shares(
        self, query: str, position: int, column: Callable[[QueryTerm], tuple[np.ndarray, np.ndarray]]
    ) -> dict[str, float]:
        shares: dict[str, float] = {}
        for term in self._terms.of(query):
            holders, parts = column(term)
            at = int(np.searchsorted(holders, position))
            if at < len(holders) and holders[at] == position:
                shares[term.term] = float(parts[at] * term.factor)
        return shares

    def _column(self, term_id: int) -> tuple[Int32[np.ndarray, " holding"], Float32[np.ndarray, " holding"]]:
        start, stop = (0, 0) if term_id < 0 else self._data.offsets[term_id : term_id + 2]
        return self._data.positions[start:stop], self._data.parts[start:stop]

    def _holding(self, phrase: Phrase) -> Bool[np.ndarray, " documents"]:
        holding = np.zeros(len(self), bool)
        columns = [self._column(self._terms.number(term))[0] for term in phrase.terms]
        if not columns:
            candidates = np.arange(len(self))
        else:
            columns.sort(key=len)
            candidates = columns[0]
            for column in columns[1:]:
                candidates = np.intersect1d(candidates, column, assume_unique=True)
        if phrase.leaves:
            symbols = [self._terms.number(leaf) for leaf in phrase.leaves]
            candidates = candidates[self._data.sequences.holding(symbols, candidates)]
        holding[candidates] = True
        return holding

    def _check_cut(self, texts: TokenizedTexts) -> None:
        if texts.tokenizer != self.tokenizer:
            raise InvalidRequest(
                f"texts cut with {texts.tokenizer}; this index needs {self.tokenizer}: cut them again"
            )

    def _fresh_parts(
        self, term: QueryTerm, texts: TokenizedTexts, at: Int[np.ndarray, " candidates"] | None = None
    ) -> tuple[Int64[np.ndarray, " holding"], Float32[np.ndarray, " holding"]]:
        """Compute `_column` for texts that are not in the index; with `at`, for these text numbers."""
        holders, counts, lengths = texts.occurrences(term.term, at)
        if len(holders) == 0:  # most terms are in none of a few fresh texts
            return holders, np.zeros(0, np.float32)
        return holders, part_of(
            term.idf, counts, lengths, average_length=self.average_length, k1=self.k1, b=self.b
        )

    def _full(
        self, query: str, out: Float32[np.ndarray, " documents"] | None = None
    ) -> Float32[np.ndarray, " documents"]:
        """Add the scores of all documents to `out`, which starts as zeros."""
        scores = np.zeros(len(self), np.float32) if out is None else out
        for term in self._terms.of(query):
            holders, parts = self._column(term.term_id)
            scores[holders] += parts * term.factor  # each document occurs once in a column
        return scores
