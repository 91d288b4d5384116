"""JSON that every reader understands alike (the safe part of RFC 8259, I-JSON of RFC 7493).

NaN, infinities, lone surrogates and bytes that are no UTF-8 are no JSON; a name twice in one object means
something else to each parser; deep nesting is only ever an attack here.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from dsearch.service.errors import InvalidJson

MAX_DEPTH = 64


def parse(body: bytes) -> Any:
    """The value that `body` describes.

    Raises:
        InvalidJson: says what is wrong and where.
    """
    try:
        orjson.loads(body)  # grammar, UTF-8, finite numbers, whole surrogate pairs
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidJson(f"not JSON: {error.msg} at {where}; send UTF-8 JSON (RFC 8259)") from None
    try:
        value = _READER.decode(body.decode())
    except RecursionError:
        raise InvalidJson(f"this JSON nests too deep; use at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise InvalidJson(f"not JSON that can be read: {error}") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:  # fewer cannot nest deeper
        _require_shallow(value)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidJson(f"the name {twice[:80]!r} stands twice in one object; give each name once")
    return made


_READER = json.JSONDecoder(object_pairs_hook=_without_duplicates)


def _require_shallow(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    if any(isinstance(inner, list | dict) for inner in level):
        raise InvalidJson(f"this JSON nests more than {MAX_DEPTH} levels deep; use at most {MAX_DEPTH}")
