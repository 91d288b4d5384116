"""Keyword queries: the syntax of the search box, weights of terms, misspelt words, matches to highlight.

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
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int64

from dsearch.index.keyword.data import KeywordData, idf_of
from dsearch.index.keyword.tokenizer import SPLITTERS, TokenizedWord, Tokenizer, TokenizerCaches, normal_form

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


SHORTEST = 4  # characters; shorter words are like too many others
LEAST_SIMILARITY = 0.6


class Spelling:
    """Terms of an index by their bigrams, to replace words of a query that no document has.

        similarity(s, t) = 2 |B(s) ∩ B(t)| / (|B(s)| + |B(t)|)     B: bigrams of a term, its ends marked
        (Dice)

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


# Texts are tokenized in their normal form (NFKC), which may be longer or shorter than the original. Offsets
# are mapped back through stretches that are normalised independently. An ASCII character never combines with
# the character before it, so a stretch begins there. A stretch is split further, at each base character with
# its marks, if the pieces together normalise to the same text as the stretch.
_STRETCH = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+|[\x00-\x7f]+?(?=[\x00-\x7f][^\x00-\x7f]|\Z)", re.DOTALL)


def highlights(tokenizer: Tokenizer, query: str, text: str) -> list[tuple[int, int]]:
    """[start, end) of every stretch of `text` whose term is a term of `query`; ascending, not overlapping.

    Terms are compared as the index compares them: stemmed, in normal form, identifiers by their parts too
    (only the part is marked then, or the whole if the whole form matches). Offsets count characters
    (code points) of the original `text`; a character is marked whole, with its accents.
    """
    wanted = {term for word in tokenizer.query_words(query) for term in (*word.terms, *word.variants)}
    if not wanted:
        return []
    normal = normal_form(text)
    cutter = TokenizerCaches(tokenizer).of(normal)
    spans: list[tuple[int, int]] = []
    for match in SPLITTERS[tokenizer.splitter].words.finditer(normal):
        word = cutter[match.group()]
        for term, (start, end) in zip(word.terms, word.spans, strict=True):
            if term in wanted:
                spans.append((match.start() + start, match.start() + end))
    if normal is not text:
        starts, ends = _offsets(text)
        spans = [(starts[start], ends[end - 1]) for start, end in spans]
    return _merged(spans)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _offsets(text: str) -> tuple[list[int], list[int]]:
    """For each character of the normal form: where what became it starts and ends in `text`."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end, length in _pieces(text):
        same = length == end - start == 1 or text[start:end].isascii()
        starts += range(start, end) if same else [start] * length
        ends += range(start + 1, end + 1) if same else [end] * length
    return starts, ends


def _pieces(text: str) -> Iterator[tuple[int, int, int]]:
    """Stretches (start, end, length of the normal form) that together give the text's normal form."""
    for match in _STRETCH.finditer(text):
        start, end = match.span()
        stretch = match.group()
        normal = normal_form(stretch)
        bounds = [at for at in range(1, len(stretch)) if not unicodedata.combining(stretch[at])]
        cuts = [0, *bounds, len(stretch)]
        forms = [normal_form(stretch[a:b]) for a, b in pairwise(cuts)]
        if not stretch.isascii() and "".join(forms) == normal:
            for (a, b), form in zip(pairwise(cuts), forms, strict=True):
                yield start + a, start + b, len(form)
        else:
            yield start, end, len(normal)
