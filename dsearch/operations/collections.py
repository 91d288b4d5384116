"""Calls about collections and aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

from dsearch.operations.declared import Call, call
from dsearch.results import AliasSet, CollectionInfo


@call("GET", "/readyz")
class Ready(Call[bool]):
    """Return True if searches are answered now; raise Unavailable if they are not."""


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


@call("PUT", "/v1/collections/{name}")
class CreateCollection(Call[CollectionInfo]):
    """Create a collection for the encoder of whoever answers; an existing one is unchanged.

    Args:
        name: its name.
        language: whose stems and stop words keyword search knows; English when None.
        passages: how long documents are cut, `{"tokens": 128, "overlap": 16}` or `{"none": True}`; into
            passages as long as the encoder's window when None.
        kind: how keys are kept; compared exactly when None.
        dimension: length of embeddings of your own, which then come with the documents (`upsert`).
        search_fields: metadata fields whose strings keyword search has as words.
    """

    name: str
    _: KW_ONLY
    language: str | None = None
    passages: Mapping[str, Any] | None = None
    kind: str | None = None
    dimension: int | None = None
    search_fields: Sequence[str] | None = None


@call("DELETE", "/v1/collections/{name}")
class DeleteCollection(Call[None]):
    """Delete a collection with everything in it."""

    name: str


@call("GET", "/v1/aliases")
class ListAliases(Call[dict[str, str]]):
    """Return the map from alias to collection."""


@call("PUT", "/v1/aliases/{alias}")
class SetAlias(Call[AliasSet]):
    """Point an alias at a collection, whatever it pointed at."""

    alias: str
    collection: str


@call("DELETE", "/v1/aliases/{alias}")
class DropAlias(Call[None]):
    """Remove an alias; the collection stays."""

    alias: str
