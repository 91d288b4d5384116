"""Parse only unambiguous JSON: no repeated name in an object, no extreme nesting.

JSON that two parsers could understand differently is rejected, in files and requests. orjson parses the text,
but it keeps only the last of a repeated name, and rounds an integer of more than 64 bits to a float. Python's
parser does neither, but takes two to seven times as long. So it is used only if orjson may have changed
something, which the value reveals:

- Colons. A text has one for each name, besides those inside strings. A value with a repeated name accounts
  for fewer colons than its text. (An escaped colon is not counted.)
- Floats so large that they may have been such an integer.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, cast

import orjson

MAX_DEPTH = 64

_TOO_DEEP = f"this JSON nests more than {MAX_DEPTH} levels deep; use at most {MAX_DEPTH}"
_ESCAPED_COLON = "\\u003"  # and its neighbours
_LARGE = 2.0**63
_PLAIN = frozenset({int, bool, type(None)})
_NUMBERS = frozenset({int, bool, float})


class AmbiguousJson(Exception):
    """Text is JSON, but ambiguous; the message has the problem and the remedy."""


def parse(text: str) -> Any:
    """Parse a text.

    Raises:
        orjson.JSONDecodeError: the text is not JSON, or has NaN, infinities or lone surrogates.
        AmbiguousJson: a repeated name in an object, or nesting deeper than `MAX_DEPTH`.
    """
    value = orjson.loads(text)
    colons = _colons(value, MAX_DEPTH)
    if text.count(":") == colons and ("\\" not in text or _ESCAPED_COLON not in text):
        return value
    try:
        return _READER.decode(text)
    except RecursionError:  # in the first value of a repeated name, which `value` lost
        raise AmbiguousJson(_TOO_DEEP) from None


def _colons(value: Any, depth: int) -> float:
    """Count the colons of a text of `value` without repeated names and escapes.

    Infinity if a float may have been an integer.

    Raises:
        AmbiguousJson: it nests deeper than `depth`.
    """
    kind = type(value)
    if kind is str:
        return value.count(":") if ":" in value else 0  # a search is faster than a count
    if kind is float:
        return 0 if -_LARGE < value < _LARGE else math.inf
    if kind is not dict and kind is not list:
        return 0
    if depth == 0:
        raise AmbiguousJson(_TOO_DEEP)
    if kind is dict:
        count = len(value) + "".join(value).count(":")
        for item in value.values():
            count += _colons(item, depth - 1)
        return count
    kinds = set(cast("map[type]", map(type, value)))
    if kinds <= _PLAIN:
        return 0
    if kinds <= _NUMBERS:
        return 0 if min(value) > -_LARGE and max(value) < _LARGE else math.inf
    return sum([_colons(item, depth - 1) for item in value])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise AmbiguousJson(f"the name {twice[:80]!r} stands twice in one object; give each name once")
    return content


_READER = json.JSONDecoder(object_pairs_hook=_without_duplicates)
