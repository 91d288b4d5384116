"""Split a long text into passages at its boundaries: paragraphs, sentences, clauses, words.

semchunk finds the boundaries (it prefers the structurally strongest one nearby); this module joins its small
pieces to passages of about equal length with overlapping ends. Passages of source code begin with a function
or a class where one is near (`definition_starts`). Python's own parser finds them in Python; in other
languages they are lines that open a definition by a keyword, or, in the family of C, by a head with brackets
at the margin. Comments and decorators directly above belong to a definition.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

CountTokens = Callable[[Sequence[str]], list[int]]
CountParts = Callable[[Sequence[tuple[int, int]]], list[int]]

_PIECES = 8  # minimum pieces of a passage, for balance and overlap
# Characters of a token, to search boundaries: counting tokens at each takes ten times as long.
_CHARACTERS = 4


def cut(
    text: str,
    size: int,
    overlap: int,
    count: CountTokens,
    seams: Sequence[int] = (),
    *,
    count_parts: CountParts | None = None,
) -> list[tuple[int, int]]:
    """Split a text into passages: [start, end) in characters, in order.

    Together they contain every character except white space, and neighbours share at most `overlap` tokens.
    Without seams all have about the same length, without a short rest.

    Args:
        text: text to split; one passage if it has at most `size` tokens.
        size: maximum tokens of a passage.
        overlap: maximum tokens shared with the previous passage; less than half of `size`.
        count: counts the tokens of texts.
        seams: ascending offsets at which a passage begins if it would have at least half of the length there.
        count_parts: counts the tokens of parts [start, end) of the text; by `count` when None.
    """
    if count_parts is None:
        count_parts = lambda parts: count([text[start:end] for start, end in parts])  # noqa: E731
    if count_parts([(0, len(text))])[0] <= size:
        return [(0, len(text))]
    pieces, lengths = _pieces(text, size, count, count_parts, seams)
    if not pieces:
        return [(0, len(text))]
    at = np.searchsorted([start for start, _ in pieces], seams)
    begins = {int(number) for number in at if number < len(pieces)}
    passages: list[tuple[int, int]] = []
    first = 0
    while True:
        last = _last_of(lengths, first, size, overlap)
        if begins and last + 1 < len(pieces):
            last = _before_seam(lengths, first, last, size, begins)
        passages.append((pieces[first][0], pieces[last][1]))
        if last + 1 == len(pieces):
            return passages
        first = last + 1 if last + 1 in begins else _first_of_next(lengths, first, last, overlap)


def _pieces(
    text: str, size: int, count: CountTokens, count_parts: CountParts, seams: Sequence[int]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Split into small stripped parts, none across a seam, in order; also return their lengths in tokens."""
    ends = [0, *(seam for seam in seams if 0 < seam < len(text)), len(text)]
    most = max(1, size // _PIECES) * _CHARACTERS
    pieces = [piece for a, b in pairwise(ends) for piece in _seams(text[a:b], a, most, len)]
    lengths = count_parts(pieces)
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
        lengths = count_parts(pieces)
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


def _before_seam(lengths: list[int], first: int, last: int, size: int, begins: set[int]) -> int:
    """Choose the piece before the nearest seam that leaves a passage of half the length at least."""
    length, best = 0, last
    wanted = sum(lengths[first : last + 1])
    for number in range(first, len(lengths) - 1):
        length += lengths[number]
        if length > size:
            break
        if number + 1 not in begins or 2 * length < wanted:
            continue
        if best + 1 not in begins or abs(number - last) < abs(best - last):
            best = number
    return best


def _first_of_next(lengths: list[int], first: int, last: int, overlap: int) -> int:
    """Choose the first piece of the next passage: repeat as many pieces as the overlap allows."""
    start, shared = last + 1, 0
    while start - 1 > first and shared + lengths[start - 1] <= overlap:
        start -= 1
        shared += lengths[start]
    return start


_WORDS = (
    "export|default|public|private|protected|internal|static|async|abstract|final|sealed|override|open|inline|"
    r"suspend|data|unsafe|extern|pub(?:\([^)]*\))?|declare|partial|local|pure|recursive"
)
_KEYWORDS = (
    "def|defp|defmodule|class|function|func|fun|fn|interface|struct|enum|impl|trait|protocol|extension|module|"
    "namespace|object|record|sub|procedure|type|instance"
)
_DEFINITION = re.compile(rf"^[ \t]{{0,8}}(?:(?:{_WORDS})\s+)*(?:{_KEYWORDS})\b\s*[\w(<*\[]")
_HEAD = re.compile(r"^[A-Za-z_][\w\s*&:<>,~\[\]]*\([^;]*$")
_ABOVE = re.compile(r"^[ \t]*(?:@|#(?!include|define|if|endif|else)|//|/\*|\*|--|\"\"\"|%|;;)")
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")  # Python's; str.splitlines ends more
_MARGIN = frozenset({"c", "c++", "c#", "java", "dart", "php"})


def definition_starts(text: str, language: str) -> list[int]:
    """Return the offsets of lines at which a function or a class begins, ascending.

    Args:
        text: source code.
        language: name of `dsearch.corpus.files.CODE`.
    """
    if language == "python":
        try:
            return sorted(set(_python(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # of another version, or cut: as the others
    lines = text.splitlines(keepends=True)
    offsets = _offsets(lines)
    starts: list[int] = []
    for number, line in enumerate(lines):
        if _DEFINITION.match(line) or (language in _MARGIN and _HEAD.match(line.rstrip())):
            while number and _ABOVE.match(lines[number - 1]):
                number -= 1
            starts.append(offsets[number])
    return sorted(set(starts))


def _python(text: str) -> Iterator[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings that others wrote
        tree = ast.parse(text)
    lines = _LINE.findall(text)
    offsets = _offsets(lines)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            number = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            while number and lines[number - 1].lstrip().startswith("#"):
                number -= 1
            yield offsets[number]


def _offsets(lines: list[str]) -> list[int]:
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    return offsets
