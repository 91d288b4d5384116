"""Suggest the field that was meant, where no document has the one that was named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from dsearch.declared import suggestion
from dsearch.errors import InvalidRequest
from dsearch.store.filters.parse import AllOf, AnyOf, Compares, Equals, Filter, Keys
from dsearch.types import Document

if TYPE_CHECKING:
    from dsearch.store.reader import Reader

SAMPLE = 200  # documents whose fields a suggestion is looked up in


def compared_fields(tree: Filter) -> Iterator[Keys]:
    """Fields whose values a filter compares; those of negations match documents without the field."""
    match tree:
        case Equals(keys) | Compares(keys):
            yield keys
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from compared_fields(part)
        case _:
            return


def names_of(documents: Iterable[Document]) -> list[str]:
    """Fields of the documents' metadata as dotted paths, sorted."""
    names: set[str] = set()
    for document in documents:
        names.update(_paths(document.metadata))
    return sorted(names)


def meant_among(field: str, documents: Sequence[Document]) -> str:
    """Suggest a field of the documents for one that none of them has, in brackets; empty if none is near."""
    names = names_of(documents[:SAMPLE])
    return "" if field in names else suggestion(field, names)


def refuse_misspelt(store: Reader, fields: Iterable[Keys], where: str, *, also: Sequence[str] = ()) -> None:
    """Refuse fields that no document has if one of a similar name is there, or among the names of `also`.

    For requests that would have an empty answer.

    Raises:
        InvalidRequest: with the field that may have been meant.
    """
    sample: list[Document] | None = None
    for keys in fields:
        field = ".".join(keys)
        sample = store.list(limit=SAMPLE) if sample is None else sample
        meant = meant_among(field, sample) or suggestion(field, also)
        if not meant or store.count({_escaped(keys): {"exists": True}}).documents:
            continue
        raise InvalidRequest(
            f"{where}: no document has the field {field[:80]!r}{meant}; use a field of the metadata"
        )


def _escaped(keys: Keys) -> str:
    path = ".".join(key.replace(".", r"\.") for key in keys)
    return f"\\{path}" if path in ("and", "or", "not") else path


def _paths(metadata: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in metadata.items():
        yield before + name
        if isinstance(value, Mapping):
            yield from _paths(cast("Mapping[str, Any]", value), f"{before}{name}.")
