"""Highlights of meaning: the words of a document that the second stage matches the query's words with.

From the tokens that rank: for each token of the query the document's token that is most like it, and those
nearly as like, if they are like it at all. Unlike `highlights` of words it marks another word for the same
thing; words of which no token was kept (stop words, repetitions) are not marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dsearch.engine.search.highlights.fragments import SCANNED_CHARACTERS, fragments
from dsearch.engine.snapshot.snapshot import Snapshot
from dsearch.engine.snapshot.tokens_of_query import QueryTokens
from dsearch.types import Document, Highlight

LIKE = 0.5  # cosine of tokens that are marked
NEARLY = 0.95  # of the largest

ShowMeaning = Callable[[int, int, Document], list[Highlight]]


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
