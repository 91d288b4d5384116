"""Query syntax of the search box: words, "exact phrases", +required and -excluded terms.

    rank "beam search" +python -java -"garbage collector"

Nothing here is an error: a lone quote or sign is an ordinary character, because people paste text. A minus
before a digit is a number, and a sign inside a word (state-of-the-art, C++) is part of the text.

Required and excluded phrases of a `ParsedQuery` are matched against built documents and fresh texts alike.

A phrase matches where its leaves stand side by side in the text; stems are compared, stop words too. If it
contains an identifier, the whole form must occur too: "csv.DictReader" does not match "csv dict reader",
"dict reader" matches both. A phrase of one word requires that word's term alone, a phrase without a word
requires nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from dsearch.index.keyword.tokenizer import TokenizedWord, Tokenizer

_ITEM = re.compile(r'(?<!\S)([+-]?)["“”]([^"“”]*)["“”](?=[\s.,;:!?)]|$)|(?<!\S)([+-])(?=[^\W\d])(\S+)')


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
    def of(cls, tokenizer: Tokenizer, text: str) -> Phrase | None:
        """Tokenise a phrase in its most probable language; None for a text without words."""
        return next(iter(cls.readings(tokenizer, text)), None)

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
