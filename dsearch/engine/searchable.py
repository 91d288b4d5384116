"""`Searchable`: a collection that answers searches, from this machine or from shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack, runtime_checkable

from dsearch.engine.options import SearchArguments
from dsearch.results import CollectionInfo
from dsearch.search_options import SearchOptions
from dsearch.store import FeedbackStore, Store
from dsearch.types import SearchResult

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head


@runtime_checkable
class Searchable(Protocol):
    """Operations that need no index in this process; each is described in `Collection`.

    `Collection` has them and all others. A collection in shards has only these: a release answers its
    searches, and the home supplies documents by id, models and feedback.
    """

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def feedback(self) -> FeedbackStore: ...
    @property
    def live_model(self) -> str: ...

    def describe(self) -> CollectionInfo: ...
    def encoder_in_use(self) -> dict[str, Any] | None: ...
    def rebuild_status(self) -> dict[str, Any]: ...
    def head(self, version: str) -> Head: ...
    def search(
        self,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        **options: Unpack[SearchArguments],
    ) -> SearchResult: ...
    def search_batch(
        self, queries: Sequence[str], **options: Unpack[SearchArguments]
    ) -> list[SearchResult]: ...
    def answer(
        self, queries: Sequence[str], options: SearchOptions, vectors: Sequence[Sequence[float]] | None = None
    ) -> list[SearchResult]: ...
