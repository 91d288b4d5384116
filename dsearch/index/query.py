"""What a person types into the search box: words, "exact phrases", +required and -excluded terms.

    rank "beam search" +python -java -"garbage collector"

Nothing here is an error: a lone quote or sign is an ordinary character, because people paste text. A minus
before a digit is a number, and a sign inside a word (state-of-the-art, C++) is part of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ITEM = re.compile(r'(?<!\S)([+-]?)["“”]([^"“”]*)["“”](?=[\s.,;:!?)]|$)|(?<!\S)([+-])(?=[^\W\d])(\S+)')


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query, taken apart by `parse_query`.

    Attributes:
        text: what is scored and encoded: all but the excluded terms, without quotes and signs.
        required: phrases (of one word or more) that a document must hold.
        excluded: phrases that a document must not hold.
    """

    text: str
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def constrained(self) -> bool:
        """Whether anything is required or excluded."""
        return bool(self.required or self.excluded)


def parse_query(text: str) -> ParsedQuery:
    """Take a query apart; total: every text is a query."""
    required: list[str] = []
    excluded: list[str] = []
    kept: list[str] = []
    end = 0
    for match in _ITEM.finditer(text):
        kept.append(text[end : match.start()])
        end = match.end()
        sign, phrase = (match[1], match[2]) if match[2] is not None else (match[3], match[4])
        (excluded if sign == "-" else required).append(phrase)
        if sign != "-":
            kept.append(phrase)
    kept.append(text[end:])
    if not required and not excluded:
        return ParsedQuery(text)
    return ParsedQuery("".join(kept).strip(), tuple(required), tuple(excluded))
