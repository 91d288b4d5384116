"""Highlights: the windows of a text that have the words of a query, or its meaning.

Windows with the most different words are shown: the first of equals, in the order of the text, without
overlap.

Meaning comes from the tokens of the second stage: for each token of the query the document's token that is
most like it, and those nearly as like, if they are like it at all. So another word for the same thing is
marked; words of which no token was kept (stop words, repetitions) are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dsearch.engine.snapshot import QueryTokens, Snapshot
from dsearch.types import Document, Highlight

FRAGMENTS = 3
FRAGMENT_CHARACTERS = 200
SCANNED_CHARACTERS = 32_768  # of a text: a request may show a thousand documents of 1 MiB

_LEAD = 40  # characters before the first term of a window
_EDGE = 20  # characters to look for the end of a word

_SPACE = re.compile(r"\s+")

Spans = Sequence[tuple[int, int]]
LIKE = 0.5  # cosine of tokens that are marked
NEARLY = 0.95  # of the largest
ShowMeaning = Callable[[int, int, Document], list[Highlight]]


def fragments(text: str, spans: Spans) -> list[Highlight]:
    """Return the best windows of `text`; `spans` are [start, end) of its terms, ascending and disjoint."""
    short = [(start, end) for start, end in spans if end - start <= FRAGMENT_CHARACTERS]
    windows: list[tuple[int, int, int]] = []  # −different terms, first character, end
    for number, span in enumerate(short):
        low, high = _window(text, span)
        following = short[number : number + FRAGMENT_CHARACTERS]
        terms = {text[start:end].lower() for start, end in following if end <= high}
        windows.append((-len(terms), low, high))
    chosen: list[tuple[int, int]] = []
    for _, low, high in sorted(windows):
        if all(high <= other or low >= end for other, end in chosen):
            chosen.append((low, high))
        if len(chosen) == FRAGMENTS:
            break
    return [
        Highlight("text", low, text[low:high], [span for span in short if low <= span[0] and span[1] <= high])
        for low, high in sorted(chosen)
    ]


def _window(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """From a little before a term, beginning and ending between words where those are short enough."""
    start, end = span
    low = max(0, start - _LEAD)
    if low > 0:
        gap = _SPACE.search(text, low, start)
        low = gap.end() if gap else low
    high = min(len(text), max(end, low + FRAGMENT_CHARACTERS))
    if high < len(text):
        gaps = [gap.start() for gap in _SPACE.finditer(text, max(end, high - _EDGE), high + 1)]
        high = gaps[-1] if gaps else high
    return low, high


def meaning_highlighter(snapshot: Snapshot, queries: Sequence[QueryTokens]) -> ShowMeaning:
    """Return a function that highlights the document of a row for a query's number."""
    tokens = snapshot.tokens
    assert tokens is not None
    codec = tokens.codec
    asking = [query.states * codec.steps for query in queries]

    def pieces(query: int, row: int, document: Document) -> list[Highlight]:
        of = tokens.document(int(snapshot.positions_of(np.array([row]))[0]))
        if of is None or not len(of.codes) or not len(asking[query]):
            return []
        likeness = asking[query] @ codec.numbers(of.codes).T
        best = likeness.max(axis=1, keepdims=True)
        marked = ((likeness >= LIKE) & (likeness >= NEARLY * best)).any(axis=0)
        in_title = of.spans[:, 1] <= len(document.title)
        highlights: list[Highlight] = []
        title = _words(document.title, of.spans[marked & in_title])
        if title:
            highlights.append(Highlight("title", 0, document.title, title))
        text = document.text[:SCANNED_CHARACTERS]
        spans = of.spans[marked & ~in_title] - (len(document.title) + 1)
        highlights += fragments(text, _words(text, spans[spans[:, 1] <= len(text)]))
        return [replace(piece, by="meaning") for piece in highlights]

    return pieces


def _words(text: str, spans: np.ndarray) -> list[tuple[int, int]]:
    """The words that tokens at these places are part of, ascending and disjoint."""
    words: list[tuple[int, int]] = []
    for start, end in sorted(spans.tolist()):
        while start > 0 and text[start - 1].isalnum():
            start -= 1
        while end < len(text) and text[end].isalnum():
            end += 1
        if words and start < words[-1][1]:
            words[-1] = words[-1][0], max(end, words[-1][1])
        else:
            words.append((start, end))
    return words
