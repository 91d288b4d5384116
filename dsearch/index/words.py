"""Words and their parts: where a text is cut, and how an identifier is taken apart beside its whole form.

    csv.DictReader   csv.dictreader   csv   dictreader   dict   reader
    read_csv         read_csv         read  csv
    HTTPServer2      httpserver2      http  server2      server 2
    p53, base64      p53, base64      a word with digits is taken apart only inside a longer identifier
    RNAs, e.g., 0.5  rnas; nothing; nothing: no identifiers (single characters are no terms)

A *leaf* is a piece that is not cut further; the leaves of a text, in order, are the text, so phrases are
sought in leaves. Offsets count characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

# To `re` vowel signs and accents are no word characters, but no word of Hindi or Tamil is whole without them.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u0900-\u0963\u0966-\u0dff\u0e31-\u0e3a\u0e47-\u0e4e"
)
_NAME = re.compile(rf"\w[\w{_MARKS}]*(?:\.\w[\w{_MARKS}]*)*")
_PLAIN = re.compile(r"\w\w+")
# On a word's shape: U upper case, s and l lower case (an "s" may end an acronym's plural: RNAs), D digit.
_HUMP = re.compile(r"UU+s(?![ls])|U+(?=U[ls])|U?[ls]+D*|U+D*|D+")


class Piece(NamedTuple):
    """A stretch of a word: [start, end) in it, and whether it is cut no further."""

    start: int
    end: int
    leaf: bool


class Splitter(NamedTuple):
    """A way to cut texts: `words` finds the words, `pieces` takes one apart, the whole form first."""

    words: re.Pattern[str]
    pieces: Callable[[str], list[Piece]]


def whole(word: str) -> list[Piece]:
    """The word as it is."""
    return [Piece(0, len(word), True)]


def parts(word: str) -> list[Piece]:
    """The word, and if it is an identifier its parts behind it; each piece once, in the order of the text."""
    if word.isalpha() and (word.islower() or word[1:].islower()):
        return whole(word)
    if "." not in word:
        return _component(word, 0)
    components = word.split(".")
    named = all(c[0].isalpha() or c[0] == "_" for c in components) and any(len(c) > 1 for c in components)
    pieces = [Piece(0, len(word), False)] if named else []
    start = 0
    for component in components:
        pieces += _component(component, start)
        start += len(component) + 1
    return pieces


# Registered short names, because a stored index names its parts and never carries a pattern to run.
SPLITTERS = {"identifiers": Splitter(_NAME, parts), "words": Splitter(_PLAIN, whole)}


def _component(text: str, start: int) -> list[Piece]:
    """The pieces of a name without dots that begins at `start`."""
    humps = [match.span() for match in _HUMP.finditer(_shape(text))]
    entire = Piece(start, start + len(text), True)
    if len(humps) <= 1:
        if not humps or humps[0] == (0, len(text)):
            return [entire]
        first, last = humps[0]
        return [entire._replace(leaf=False), Piece(start + first, start + last, True)]
    pieces = [entire._replace(leaf=False)]
    for first, last in humps:
        letters = len(text[first:last].rstrip("0123456789"))
        if 0 < letters < last - first:
            pieces.append(Piece(start + first, start + last, False))
            pieces.append(Piece(start + first, start + first + letters, True))
            pieces.append(Piece(start + first + letters, start + last, True))
        else:
            pieces.append(Piece(start + first, start + last, True))
    return pieces


def _shape(text: str) -> str:
    return "".join(map(_kind, text))


def _kind(character: str) -> str:
    if character == "_" or character == "s":
        return character
    if character.isupper():
        return "U"
    return "D" if character in "0123456789" else "l"
