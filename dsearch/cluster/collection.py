"""Collections whose searches a cluster answers: the engine behind the ingress.

The home is opened readonly: documents, models, keys and aliases come from it. The shards supply the document
data that a search needs. Operations that would need a whole generation in this process are refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.coordinator import LiveRelease
from dsearch.cluster.search.attention import Shards
from dsearch.cluster.search.search import EncodedQueries, ShardedSearch, encode_queries
from dsearch.cluster.transfer import read_release
from dsearch.encoder import TextEncoder
from dsearch.engine import UNTRAINED, Collection, Searchable, SearchEngine
from dsearch.engine.indexing.own_vectors import Vectors
from dsearch.engine.options import SearchArguments
from dsearch.engine.search.arrangement import OWN, absent_fields
from dsearch.errors import Command, DsearchError, NotInCluster, ShardsMissing
from dsearch.search_options import SearchOptions
from dsearch.store.filters import compared_fields, filter_of
from dsearch.store.reader import refuse_misspelt
from dsearch.types import Mode, SearchResult

# Encodes elsewhere: collection, texts, mode, model, whether tokens are wanted.
RemoteQueryEncoder = Callable[[str, Sequence[str], Mode, str, bool], EncodedQueries]
_LOOK_S = 0.5


class Releases:
    """Cache of the live releases of a cluster, refreshed from the coordinator twice a second.

    Args:
        ask: returns the live releases by collection.
        open_shards: opens the shards of a release.
    """

    def __init__(
        self, ask: Callable[[], dict[str, dict[str, Any]]], open_shards: Callable[[LiveRelease], Shards]
    ):
        self._ask = ask
        self._open_shards = open_shards
        self._lock = threading.Lock()
        self._by_name: dict[str, tuple[LiveRelease, Any, Shards]] = {}
        self._unread: dict[str, DsearchError] = {}
        self._looked = -1e9

    def live(self, collection: str, *, look: bool = False) -> tuple[LiveRelease, Any, Shards] | None:
        """Return the live placement, release and shards of a collection; None if nothing is live.

        Args:
            collection: name of the collection.
            look: True to query the coordinator in any case.

        Raises:
            CorruptData, Unavailable: its release cannot be read; other collections go on.
        """
        with self._lock:
            if look or time.monotonic() - self._looked > _LOOK_S:
                self._looked = time.monotonic()
                self._look()
            if (error := self._unread.get(collection)) is not None:
                raise error.with_traceback(None)  # it is raised again and again
            return self._by_name.get(collection)

    def _look(self) -> None:
        try:
            descriptions = self._ask()
        except Exception:
            return  # the coordinator is being restarted; the cached releases are still valid
        releases: dict[str, tuple[LiveRelease, Any, Shards]] = {}
        unread: dict[str, DsearchError] = {}
        for name, described in descriptions.items():
            live, before = LiveRelease(**described), self._by_name.get(name)
            if before is not None and before[0] == live:
                releases[name] = before
                continue
            try:
                releases[name] = (live, read_release(live.uri), self._open_shards(live))
            except DsearchError as error:  # of this collection alone
                unread[name] = error
        self._by_name, self._unread = releases, unread


class ShardedCollection:
    """A collection whose searches a cluster answers; a `Searchable`.

    Args:
        local: the collection in the home, opened readonly; its index is not read.
        releases: live releases of the cluster.
        encode: encodes queries with the encoder of a model; this process does when None.
    """

    def __init__(
        self,
        local: Collection,
        releases: Releases,
        encode: RemoteQueryEncoder | None = None,
    ):
        self._local, self._releases, self._encode_elsewhere = local, releases, encode
        self.name, self.store, self.feedback = local.name, local.store, local.feedback
        self.describe, self.rebuild_status, self.head = local.describe, local.rebuild_status, local.head
        self.encoder_in_use = local.encoder_in_use

    @property
    def live_model(self) -> str:
        """Version that answers by default."""
        return self._local.live_model

    def search(
        self,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        **options: Unpack[SearchArguments],
    ) -> SearchResult:
        """Search as `Collection.search`; `partial` accepts an answer without lost shards.

        Raises:
            ShardsMissing: no copy of a shard answers.
            NotInCluster: shards cannot answer with that model.
        """
        vectors = None if vector is None else [vector]
        return self.answer([query or ""], SearchOptions(**options), vectors)[0]

    def search_batch(self, queries: Sequence[str], **options: Unpack[SearchArguments]) -> list[SearchResult]:
        """Run `search` for many queries, with one release and one model."""
        options.setdefault("coverage", False)
        return self.answer(queries, SearchOptions(**options))

    def _encode(self, texts: Sequence[str], mode: Mode, model: str, tokens: bool) -> EncodedQueries:
        if self._encode_elsewhere is None or (mode == "keyword" and not tokens):
            return encode_queries(self._local, texts, mode, model, tokens)
        return self._encode_elsewhere(self.name, texts, mode, model, tokens)

    def _supported_head(self, version: str) -> Head:
        """Return the head of a model; raises NotInCluster for a model that shards cannot use."""
        head = self.head(version)
        parts = {
            "documents of its own": self._local.has_documents_of(version),
            "a learned score": head.learned_score is not None,
            "a second stage behind an encoder of its own": head.second_stage is not None
            and self._local.encoder_identity_of(version) != self._local.encoder_identity_of(UNTRAINED),
        }
        if unsupported := [part for part, present in parts.items() if present]:
            raise NotInCluster(
                f"model {version} has {' and '.join(unsupported)}, which shards do not know; ask with "
                "another model, or promote one",
                hint=Command("promote", ("VERSION", "-c", self.name)),
            )
        return head

    def answer(
        self, queries: Sequence[str], options: SearchOptions, vectors: Vectors | None = None
    ) -> list[SearchResult]:
        """As `Collection.answer`."""
        model, live = self.live_model, self._releases.live(self.name)
        while True:
            if live is None:
                raise ShardsMissing(
                    f"collection {self.name!r} is not in the cluster any more; publish it",
                    hint=Command("cluster start", ("-c", self.name)),
                )
            _, release, shards = live
            try:
                search = ShardedSearch(
                    release, shards, self._supported_head, self._encode, self._local.calibrations.of
                )
                results = search.search(queries, model, options, vectors)
                tree = filter_of(options.filter)
                if tree is not None and not any(result.hits for result in results):
                    refuse_misspelt(self.store, compared_fields(tree), "filter")
                hits = [hit for result in results for hit in result.hits]
                refuse_misspelt(self.store, absent_fields(hits, options.fields), "fields", also=OWN)
                return results
            except ShardsMissing:
                # The release may have been replaced, and its shards stopped, since it was looked up.
                before, live = live, self._releases.live(self.name, look=True)
                if live is before:
                    raise


class ClusterEngine(SearchEngine):
    """The home as an ingress serves it: shards answer the searches of collections with a live release.

    Args:
        home: folder of collections, opened readonly.
        encoder: as for `SearchEngine`.
        releases: live releases of the cluster.
        encode: encodes queries; this process does when None.
        await_encoder: returns when `encode` is ready.
        next_encoder: as for `SearchEngine`.
    """

    def __init__(
        self,
        home: Path | str,
        *,
        encoder: Callable[[], TextEncoder],
        releases: Releases,
        encode: RemoteQueryEncoder | None = None,
        await_encoder: Callable[[], None] = lambda: None,
        next_encoder: Callable[[], TextEncoder] | None = None,
    ):
        super().__init__(home, readonly=True, encoder=encoder, next_encoder=next_encoder)
        self._releases, self._encode_elsewhere, self._await_encoder = releases, encode, await_encoder
        self._sharded: dict[str, ShardedCollection | None] = {}
        self._resolving = threading.Lock()

    def load_encoder(self) -> None:
        """Wait for a replica that encodes; without replicas, load the encoder here."""
        if self._encode_elsewhere is None:
            super().load_encoder()
        else:
            self._await_encoder()

    def searchable(self, name: str) -> Searchable:
        """Return the sharded collection if it was published, else the local one."""
        local = self.collection(name)
        with self._resolving:
            sharded, first = self._sharded.get(local.name), local.name not in self._sharded
            if sharded is None and self._releases.live(local.name, look=first) is not None:
                sharded = ShardedCollection(local, self._releases, self._encode_elsewhere)
            self._sharded[local.name] = sharded
        return local if sharded is None else sharded
