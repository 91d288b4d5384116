"""Highlight the terms of a query in a text, by offsets of the original text.

Texts are tokenized in their normal form (NFKC), which may be longer or shorter than the original. Offsets are
mapped back through stretches that are normalised independently. An ASCII character never combines with the
character before it, so a stretch begins there. A stretch is split further, at each base character with its
marks, if the pieces together normalise to the same text as the stretch.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from dsearch.index.keyword.tokenizer import SPLITTERS, Tokenizer, TokenizerCaches, normal_form

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
