"""The order of hits by a field of their metadata, and the fields of a document that a hit carries.

Both are functions of documents alone, so that one machine and shards show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from dsearch.errors import InvalidRequest
from dsearch.store.filters.field_names import meant_among
from dsearch.store.filters.parse import Keys, parse_field, value_at
from dsearch.types import Document, Hit

OWN = ("title", "text", "metadata")

Shape = Callable[[Hit], Hit]


def order_by(documents: Sequence[Document], sort: str) -> list[int]:
    """Indices of the documents in the order of a field: booleans, numbers, texts, then those without it.

    Args:
        documents: in any order.
        sort: dotted path of the metadata, with `-` before it for descending; equal values go by id.

    Raises:
        InvalidRequest: not a field, or none of the documents has it and they have one of a similar name.
    """
    descending = sort.startswith("-")
    keys = parse_field(sort.removeprefix("-"), "sort")
    values = [_comparable(value_at(document.metadata, keys)) for document in documents]
    if documents and all(value is None for value in values):
        refuse_absent(documents, sort.removeprefix("-"), f"sort={sort!r}")
    by_id = sorted(range(len(documents)), key=lambda index: documents[index].id)
    present = [index for index in by_id if values[index] is not None]
    present.sort(key=lambda index: cast("tuple[int, Any]", values[index]), reverse=descending)
    return present + [index for index in by_id if values[index] is None]


def _comparable(value: Any) -> tuple[int, Any] | None:
    """A value that can be compared with those of any kind; None for what has no order."""
    if isinstance(value, bool):
        return 0, value
    if isinstance(value, int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else None


def refuse_absent(documents: Sequence[Document], field: str, spelt: str) -> None:
    """Refuse a field that none of the candidates has if they have one of a similar name.

    Raises:
        InvalidRequest: with the field that may have been meant.
    """
    if meant := meant_among(field, documents):
        raise InvalidRequest(
            f"{spelt}: none of the {len(documents)} candidates has this field{meant}; use a field of "
            "the metadata"
        )


def shaped_by(fields: str | None) -> Shape:
    """Return a function that leaves of a hit's document what `fields` names.

    Raises:
        InvalidRequest: a name is empty or not a field.
    """
    if fields is None:
        return lambda hit: hit
    names = [name.strip() for name in fields.split(",")]
    if not all(names):
        raise InvalidRequest(
            f"fields={fields[:80]!r} names nothing between commas; use names such as title,year"
        )
    title, text, whole = (name in names for name in OWN)
    paths = [parse_field(name.removeprefix("metadata."), "fields") for name in names if name not in OWN]

    def shape(hit: Hit) -> Hit:
        return replace(
            hit,
            title=hit.title if title else "",
            text=hit.text if text else "",
            passage=hit.passage if text else None,
            metadata=hit.metadata if whole else _part(hit.metadata, paths),
        )

    return shape


def absent_fields(hits: Sequence[Hit], fields: str | None) -> list[Keys]:
    """Return the metadata fields that `fields` names and none of the hits has; none without hits."""
    if fields is None or not hits:
        return []
    paths = [parse_field(name.strip().removeprefix("metadata.")) for name in fields.split(",")]
    named = [path for path in paths if path not in [(name,) for name in OWN]]
    return [path for path in named if not any(_part(hit.metadata, [path]) for hit in hits)]


def _part(metadata: dict[str, Any], paths: Sequence[Keys]) -> dict[str, Any]:
    """The values at these paths, under the objects that they stand in."""
    part: dict[str, Any] = {}
    for keys in paths:
        *outer, last = keys
        source: Any = metadata
        for key in outer:
            source = cast("dict[str, Any]", source).get(key) if isinstance(source, dict) else None
        if not isinstance(source, dict) or last not in source:
            continue
        target = part
        for key in outer:
            target = target.setdefault(key, {})
        target[last] = source[last]
    return part
