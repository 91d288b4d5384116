"""Check metadata and serialise it, in one walk.

The text equals that of `digest.canonical_json`. One walk halves the time of each upsert. Flat metadata of
texts and small integers, the usual kind, is serialised by orjson: the same text in a third of the time.
"""

from __future__ import annotations

import math
from json.encoder import encode_basestring
from typing import Any, cast

import orjson

MAX_METADATA_DEPTH = 32

_LEAST_INTEGER, _GREATEST_INTEGER = -(2**63), 2**63 - 1  # exact in SQLite's JSON functions
_TYPES: tuple[type, ...] = (str, int, float, bool, type(None), dict, list)
_TEXT = frozenset({str})
_PLAIN = frozenset({str, int, bool, type(None)})  # not float: orjson writes 1e16 where Python writes 1e+16
_AS_HERE = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER  # refuses integers of more than 53 bits


class RefusedValue(Exception):
    """A document that cannot be stored; the caller adds its id."""


def canonical_metadata(metadata: object) -> str:
    """Canonical JSON of a document's metadata.

    Raises:
        RefusedValue: a value that JSON cannot restore, such as a tuple, a number as key, or NaN.
    """
    if not isinstance(metadata, dict):
        raise RefusedValue(f"has metadata of type {type(metadata).__name__}; use an object of JSON values")
    fields = cast("dict[object, object]", metadata)
    if _PLAIN.issuperset(map(type, fields.values())) and _TEXT.issuperset(map(type, fields)):
        try:
            return orjson.dumps(fields, option=_AS_HERE).decode()
        except orjson.JSONEncodeError:  # a long integer, or a lone surrogate, which the walk handles
            pass
    return _written(fields, "metadata", MAX_METADATA_DEPTH)


def _written(value: Any, where: str, depth: int) -> str:
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind not in _TYPES:
        kind = next((supported for supported in _TYPES if issubclass(kind, supported)), kind)
    if kind is str:
        return encode_basestring(value)
    if kind is int:
        if not _LEAST_INTEGER <= value <= _GREATEST_INTEGER:
            raise RefusedValue(f"has an integer of more than 64 bits at {where}; use a string")
        return int.__repr__(value)
    if kind is float:
        if not math.isfinite(value):
            raise RefusedValue(f"has {value} at {where}; JSON has finite numbers only, use null")
        return float.__repr__(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is not dict and kind is not list:
        raise RefusedValue(
            f"has a {kind.__name__} at {where}; use null, booleans, numbers, strings, lists, objects"
        )
    if depth == 0:
        raise RefusedValue(f"nests deeper than {MAX_METADATA_DEPTH} levels at {where}")
    if kind is list:
        items = [_written(item, f"{where}[{position}]", depth - 1) for position, item in enumerate(value)]
        return f"[{','.join(items)}]"
    for key in value:
        if not isinstance(key, str):
            raise RefusedValue(f"has the key {key!r} at {where}; JSON keys are strings")
    items: list[str] = []
    for key in sorted(value):
        item = value[key]
        if type(item) is str:  # the usual case
            items.append(f"{encode_basestring(key)}:{encode_basestring(item)}")
        else:
            items.append(f"{encode_basestring(key)}:{_written(item, f'{where}.{key}', depth - 1)}")
    return f"{{{','.join(items)}}}"
