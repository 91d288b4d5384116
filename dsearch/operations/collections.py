"""Calls about collections and aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

from dsearch.declared import Values
from dsearch.fields import MAX_DIMENSION, Flag, KeyKind
from dsearch.operations.declared import Call, call
from dsearch.results import AliasSet, CollectionInfo


@call("GET", "/readyz")
class Ready(Call[bool]):
    """Tell whether searches are answered now; if they are not, Unavailable is raised."""


@call("GET", "/v1/collections")
class ListCollections(Call[list[CollectionInfo]]):
    """List every collection that can be opened, by name."""


@call("GET", "/v1/collections/{name}")
class DescribeCollection(Call[CollectionInfo]):
    """Describe a collection."""

    name: str


@call("GET", "/v1/collections/{name}/stats")
class ReadStatistics(Call[dict[str, Any]]):
    """Return the statistics of a collection: generations, changes since, keys and their recall, bytes."""

    name: str


Tokens = Annotated[int, Values("a number of tokens", low=1, high=100_000)]


@dataclass(frozen=True, slots=True)
class CutRequest:
    """Passages of a new collection: splitting of documents that are longer than a passage.

    Attributes:
        tokens: maximum tokens of a passage; the encoder's window by default.
        overlap: maximum tokens shared with the previous passage; an eighth of tokens by default.
        none: true to split no documents; text beyond the window is not encoded.
    """

    tokens: Tokens | None = None
    overlap: Annotated[int, Values("a number of tokens", low=0, high=100_000)] | None = None
    none: Flag = False


@call("PUT", "/v1/collections/{name}")
class CreateCollection(Call[CollectionInfo]):
    """Create a collection, for the encoder of its engine or for embeddings of your own.

    An existing one is unchanged.

    Args:
        name: its name.
        language: of keyword search, whose stems and stop words it knows; none keeps words as they are;
            english by default.
        passages: how long documents are cut, `{"tokens": 128, "overlap": 16}` or `{"none": true}`; into
            passages as long as the encoder's window by default.
        kind: kind of the index; Flat, which compares every key, by default.
        dimension: length of embeddings of your own, which then come with the documents; the encoder makes
            them by default.
        search_fields: metadata fields whose strings keyword search has as words of a document.
    """

    name: str
    _: KW_ONLY
    language: (
        Annotated[str, Values("a language such as english, german or none", shortest=1, longest=32)] | None
    ) = None
    passages: Annotated[Mapping[str, Any], Values(sent=CutRequest)] | None = None
    kind: KeyKind | None = None
    dimension: (
        Annotated[int, Values(f"an integer from 1 to {MAX_DIMENSION}", low=1, high=MAX_DIMENSION)] | None
    ) = None
    search_fields: (
        Annotated[Sequence[Annotated[str, Values(shortest=1, longest=256)]], Values(longest=16)] | None
    ) = None


@call("DELETE", "/v1/collections/{name}")
class DeleteCollection(Call[None]):
    """Delete a collection with everything in it."""

    name: str


@call("GET", "/v1/aliases")
class ListAliases(Call[dict[str, str]]):
    """Return the map from alias to collection."""


@call("PUT", "/v1/aliases/{alias}")
class SetAlias(Call[AliasSet]):
    """Point an alias at a collection, whatever it pointed at. The change is atomic."""

    alias: str
    collection: Annotated[str, Values("the name of a collection", shortest=1, longest=64)]


@call("DELETE", "/v1/aliases/{alias}")
class DropAlias(Call[None]):
    """Remove an alias; the collection stays."""

    alias: str
