"""Split a long text into passages at its boundaries: paragraphs, sentences, clauses, words.

semchunk finds the boundaries (it prefers the structurally strongest one nearby); this module joins its small
pieces to passages of about equal length with overlapping ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

CountTokens = Callable[[Sequence[str]], list[int]]

_PIECES = 8  # minimum pieces of a passage, for balance and overlap
# Characters of a token, to search boundaries: counting tokens at each takes ten times as long.
_CHARACTERS = 4


def cut(text: str, size: int, overlap: int, count: CountTokens) -> list[tuple[int, int]]:
    """Split a text into passages: [start, end) in characters, in order.

    Together they contain every character except white space, and neighbours share at most `overlap` tokens.
    All have about the same length, without a short rest.

    Args:
        text: text to split; one passage if it has at most `size` tokens.
        size: maximum tokens of a passage.
        overlap: maximum tokens shared with the previous passage; less than half of `size`.
        count: counts the tokens of parts of the text.
    """
    if count([text])[0] <= size:
        return [(0, len(text))]
    pieces, lengths = _pieces(text, size, count)
    if not pieces:
        return [(0, len(text))]
    passages: list[tuple[int, int]] = []
    first = 0
    while True:
        last = _last_of(lengths, first, size, overlap)
        passages.append((pieces[first][0], pieces[last][1]))
        if last + 1 == len(pieces):
            return passages
        first = _first_of_next(lengths, first, last, overlap)


def _pieces(text: str, size: int, count: CountTokens) -> tuple[list[tuple[int, int]], list[int]]:
    """Split into small stripped parts, in order; also return their lengths in tokens."""
    pieces = _seams(text, 0, max(1, size // _PIECES) * _CHARACTERS, len)
    lengths = count([text[start:end] for start, end in pieces])
    if max(lengths, default=0) > size:  # a script with several tokens a character
        pieces = [
            smaller
            for (start, end), length in zip(pieces, lengths, strict=True)
            for smaller in (
                [(start, end)]
                if length <= size
                else _seams(text[start:end], start, size, lambda part: count([part])[0])
            )
        ]
        lengths = count([text[start:end] for start, end in pieces])
    return pieces, [max(1, length) for length in lengths]


def _seams(text: str, offset: int, size: int, length: Callable[[str], int]) -> list[tuple[int, int]]:
    """Split into parts of at most `size` by `length`, at the strongest boundaries first."""
    from semchunk.semchunk import chunk  # heavy, and needed for long texts only

    # Its cache of lengths would outlive the call.
    chunks: Any = chunk(text, size, length, memoize=False, offsets=True)
    return [
        (offset + start + len(part) - len(part.lstrip()), offset + start + len(part.rstrip()))
        for part, (start, _) in zip(*chunks, strict=True)
    ]


def _last_of(lengths: list[int], first: int, size: int, overlap: int) -> int:
    """Choose the last piece of the passage from `first`, so that the rest has equal parts."""
    rest = sum(lengths[first:])
    if rest <= size:
        return len(lengths) - 1
    passages = math.ceil((rest - overlap) / (size - overlap))
    wanted = (rest + (passages - 1) * overlap) / passages
    last, length = first, lengths[first]
    while length + lengths[last + 1] <= size and length + lengths[last + 1] / 2 <= wanted:
        last += 1
        length += lengths[last]
    return last


def _first_of_next(lengths: list[int], first: int, last: int, overlap: int) -> int:
    """Choose the first piece of the next passage: repeat as many pieces as the overlap allows."""
    start, shared = last + 1, 0
    while start - 1 > first and shared + lengths[start - 1] <= overlap:
        start -= 1
        shared += lengths[start]
    return start
