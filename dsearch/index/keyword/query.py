"""Keyword queries: the syntax of the search box, and the weights of a query's terms.

    rank "beam search" +python -java -"garbage collector"

Nothing here is an error: a lone quote or sign is an ordinary character, because people paste text. A minus
before a digit is a number, and a sign inside a word (state-of-the-art, C++) is part of the text.

Required and excluded phrases of a `ParsedQuery` are matched against built documents and fresh texts alike.

A phrase matches where its leaves stand side by side in the text; stems are compared, stop words too. If it
contains an identifier, the whole form must occur too: "csv.DictReader" does not match "csv dict reader",
"dict reader" matches both. A phrase of one word requires that word's term alone, a phrase without a word
requires nothing.

    factor(t, q) = count(t, q) / Σ_{t' in q} count(t', q) · idf(t')

is the weight of a query's term, beside a document's part(t, d) (`data.py`). Decisions:
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

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from dsearch.index.keyword.data import KeywordData, idf_of
from dsearch.index.keyword.tokenizer import TokenizedWord, Tokenizer

_ITEM = re.compile(r'(?<!\S)([+-]?)["“”]([^"“”]*)["“”](?=[\s.,;:!?)]|$)|(?<!\S)([+-])(?=[^\W\d])(\S+)')
_MARK = re.compile(r'["“”+-]')  # without one there is no item


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """Query, parsed by `parse_query`.

    Attributes:
        text: text to score and encode: all but the excluded terms, without quotes and signs.
        required: phrases (of one word or more) that a document must contain.
        excluded: phrases that a document must not contain.
    """

    text: str
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def constrained(self) -> bool:
        """True if any phrase is required or excluded."""
        return bool(self.required or self.excluded)


def parse_query(text: str) -> ParsedQuery:
    """Parse a query; every text is valid."""
    if not _MARK.search(text):
        return ParsedQuery(text)
    required: list[str] = []
    excluded: list[str] = []
    words: list[str] = []
    end = 0
    for match in _ITEM.finditer(text):
        words.append(text[end : match.start()])
        end = match.end()
        sign, phrase = (match[1], match[2]) if match[2] is not None else (match[3], match[4])
        (excluded if sign == "-" else required).append(phrase)
        if sign != "-":
            words.append(phrase)
    words.append(text[end:])
    if not required and not excluded:
        return ParsedQuery(text)
    return ParsedQuery("".join(words).strip(), tuple(required), tuple(excluded))


@dataclass(frozen=True, slots=True)
class Phrase:
    """Tokenized phrase.

    Attributes:
        terms: terms that a document must contain anywhere.
        leaves: leaves that it must contain side by side; empty if `terms` suffice.
    """

    terms: tuple[str, ...]
    leaves: tuple[str, ...]

    @classmethod
    def readings(cls, tokenizer: Tokenizer, text: str) -> list[Phrase]:
        """Tokenise a phrase in each language that it may have; empty for a text without words."""
        phrases = (cls._of_words(words) for words in tokenizer.readings(text))
        return [phrase for phrase in phrases if phrase is not None]

    @classmethod
    def _of_words(cls, words: Sequence[TokenizedWord]) -> Phrase | None:
        leaves = tuple(leaf for word in words for leaf in word.leaves)
        if not leaves:
            return None
        if len(words) == 1 and words[0].whole is not None:
            return cls((words[0].whole,), ())
        wholes = {word.whole for word in words if word.whole is not None}
        terms = {term for word in words for term in word.terms if term in leaves} | wholes
        return cls(tuple(sorted(terms)), leaves if len(leaves) > 1 or not terms else ())


def matching(
    query: ParsedQuery, tokenizer: Tokenizer, holding: Callable[[Phrase], Bool[np.ndarray, " documents"]]
) -> Bool[np.ndarray, " documents"] | None:
    """Mask of the documents with all required and no excluded phrases; None = all match."""
    mask: np.ndarray | None = None
    for texts, wanted in ((query.required, True), (query.excluded, False)):
        for text in texts:
            readings = [holding(phrase) for phrase in Phrase.readings(tokenizer, text)]
            if readings:
                matches = np.any(readings, axis=0) == wanted
                mask = matches if mask is None else mask & matches
    return mask


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
