"""The windows of a text that show marked words.

Those with the most different words are shown: the first of equals, in the order of the text, without overlap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsearch.types import Highlight

FRAGMENTS = 3
FRAGMENT_CHARACTERS = 200
SCANNED_CHARACTERS = 32_768  # of a text: a request may show a thousand documents of 1 MiB

_LEAD = 40  # characters before the first term of a window
_EDGE = 20  # characters to look for the end of a word

_SPACE = re.compile(r"\s+")

Spans = Sequence[tuple[int, int]]


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
