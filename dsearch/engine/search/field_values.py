"""Values of a field that attention pools: metadata by a dotted path, or the documents' own `value`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from dsearch.errors import InvalidRequest

Kind = Literal["number", "vector", "label"]


def kind_of_all(values: Iterable[tuple[Callable[[Any], str], Any, Any]], field: str) -> Kind | None:
    """Return the one kind of all values, None without any.

    Args:
        values: for each a function, what it makes the document's id from, and the value.
        field: its name.

    Raises:
        InvalidRequest: there are several kinds.
    """
    kinds: dict[tuple[Kind, int], tuple[Callable[[Any], str], Any]] = {}
    for named, place, value in values:
        kinds.setdefault(_kind_of(value), (named, place))
    if len(kinds) > 1:
        (kind, first), (other, second), *_ = kinds.items()
        names = [named(place) for named, place in (first, second)]
        what = f"a {kind[0]} in document {names[0]!r} and a {other[0]} in {names[1]!r}"
        if kind[0] == other[0]:
            what = f"a vector of {kind[1]} numbers in document {names[0]!r} and of {other[1]} in {names[1]!r}"
        raise InvalidRequest(f"field {field!r} is {what}; make it of one kind to pool it")
    return next(iter(kinds))[0] if kinds else None


def _kind_of(value: Any) -> tuple[Kind, int]:
    """The kind, and the length of a vector."""
    if isinstance(value, str | bool):
        return "label", 0
    return ("number", 0) if isinstance(value, int | float) else ("vector", len(value))
