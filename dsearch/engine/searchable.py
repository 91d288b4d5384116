"""`Searchable`: a collection that answers searches, from this machine or from shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Unpack, runtime_checkable

from dsearch.attention.retrieval.head import Head
from dsearch.engine.options import SearchOptions
from dsearch.store import FeedbackStore, Store
from dsearch.types import SearchResult


@runtime_checkable
class Searchable(Protocol):
    """Operations that need no index in this process beyond search itself.

    `Collection` has them and all others. A collection in shards has only these: a release answers its
    searches, and the home supplies documents by id, models and feedback.
    """

    @property
    def name(self) -> str:
        """Name of the collection."""
        ...

    @property
    def store(self) -> Store:
        """Documents, models and settings in the home."""
        ...

    @property
    def feedback(self) -> FeedbackStore:
        """Clicks and judgements."""
        ...

    @property
    def live_model(self) -> str:
        """Version that answers by default."""
        ...

    @property
    def verification(self) -> dict[str, Any]:
        """Verification of the index files, as JSON."""
        ...

    def describe(self) -> dict[str, Any]:
        """Description of the collection, as JSON."""
        ...

    def rebuild_status(self) -> dict[str, Any]:
        """State of automatic rebuilds, as JSON."""
        ...

    def head(self, version: str) -> Head:
        """Return the head of a model."""
        ...

    def search(self, query: str, **options: Unpack[SearchOptions]) -> SearchResult:
        """Search for the documents that a query attends to most."""
        ...

    def search_batch(self, queries: Sequence[str], **options: Unpack[SearchOptions]) -> list[SearchResult]:
        """Run `search` for many queries in one state."""
        ...
