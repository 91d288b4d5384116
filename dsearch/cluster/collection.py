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

from jaxtyping import Float
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.coordinator import Live
from dsearch.cluster.release.transfer import read_release
from dsearch.cluster.search.attention import Shards
from dsearch.cluster.search.search import ShardedSearch
from dsearch.encoder import TextEncoder
from dsearch.engine import Collection, SearchEngine, Snapshot
from dsearch.engine.options import SearchArguments
from dsearch.errors import NotInCluster, ShardsMissing
from dsearch.hints import Command
from dsearch.search_options import SearchOptions
from dsearch.store import Store
from dsearch.types import Mode, SearchResult

QueryStates = Callable[[str, Sequence[str], str], Tensor]  # collection, texts, model
_LOOK_S = 0.5


class Releases:
    """The live releases of a cluster, as the coordinator says; looked at twice a second.

    Args:
        ask: gives the live releases by collection.
        open_shards: gives the shards of one.
    """

    def __init__(self, ask: Callable[[], dict[str, dict[str, Any]]], open_shards: Callable[[Live], Shards]):
        self._ask = ask
        self._open_shards = open_shards
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Live, Any, Shards]] = {}
        self._looked = -1e9

    def live(self, collection: str, *, look: bool = False) -> tuple[Live, Any, Shards] | None:
        """Return the live placement, release and shards of a collection; None if nothing is live.

        Args:
            collection: name of the collection.
            look: True to query the coordinator in any case.
        """
        with self._lock:
            if look or time.monotonic() - self._looked > _LOOK_S:
                self._looked = time.monotonic()
                self._look()
            return self._known.get(collection)

    def _look(self) -> None:
        try:
            found = self._ask()
        except Exception:
            return  # the coordinator is being restarted; what is known is still right
        known: dict[str, tuple[Live, Any, Shards]] = {}
        for name, described in found.items():
            live, before = Live(**described), self._known.get(name)
            if before is not None and before[0] == live:
                known[name] = before
            else:
                known[name] = (live, read_release(live.uri), self._open_shards(live))
        self._known = known


class ShardedCollection(Collection):
    """A collection that a cluster answers for.

    Args:
        store: the collection in the home.
        encoder: as of `Collection`.
        releases: what is live.
        query_states: gives the embeddings of texts by the encoder of a model.
    """

    def __init__(
        self,
        store: Store,
        encoder: Callable[[], TextEncoder],
        releases: Releases,
        query_states: QueryStates | None = None,
    ):
        super().__init__(store, encoder)
        self._releases = releases
        self._query_states = query_states

    @property
    def encoder(self) -> Any:
        """As `Collection.encoder`; None where replicas encode."""
        return super().encoder if self._query_states is None else None

    @property
    def snapshot(self) -> Snapshot:
        """Not here: a generation lies in shards.

        Raises:
            NotInCluster
        """
        raise NotInCluster(
            f"collection {self.name!r} is answered by a cluster, where search and search/batch are to be "
            "had; ask a server over the home itself (dsearch serve) for anything else"
        )

    def search(self, query: str, **options: Unpack[SearchArguments]) -> SearchResult:
        """As `Collection.search`; `partial` lets an answer without lost shards pass.

        Raises:
            ShardsMissing: no copy of a shard answers.
        """
        return self.answer([query], SearchOptions(**options))[0]

    def search_batch(self, queries: Sequence[str], **options: Unpack[SearchArguments]) -> list[SearchResult]:
        """`search` for many queries at once, from one release and one model."""
        options.setdefault("coverage", False)
        return self.answer(queries, SearchOptions(**options))

    def query_states(
        self, queries: Sequence[str], mode: Mode, model: str | None = None
    ) -> Float[Tensor, "batch encoder_dim"]:
        """As `Collection.query_states`, from an encoder's replica where there are some."""
        if mode == "keyword" or self._query_states is None:
            return super().query_states(queries, mode, model)
        return self._query_states(self.name, queries, model or self.live_model)

    def _supported_head(self, version: str) -> Head:
        """The head of a model that shards can answer with.

        Raises:
            NotInCluster: it has documents of its own, or a slot for "nothing fits".
            ModelNotFound, CorruptData.
        """
        head = self.head(version)
        lacking = {
            "documents of its own": self._documents.has(version),
            'a slot for "nothing fits"': head.null_slot is not None,
        }
        if has := [what for what, there in lacking.items() if there]:
            raise NotInCluster(
                f"model {version} has {' and '.join(has)}, which shards do not know; ask with another model, "
                "or promote one",
                hint=Command("promote", ("VERSION", "-c", self.name)),
            )
        return head

    def answer(self, queries: Sequence[str], options: SearchOptions) -> list[SearchResult]:
        """As `Collection.answer`."""
        model, look = self.live_model, False
        while True:
            live = self._releases.live(self.name, look=look)
            if live is None:
                raise ShardsMissing(
                    f"collection {self.name!r} is not in the cluster any more; publish it",
                    hint=Command("cluster start", ("-c", self.name)),
                )
            _, release, shards = live
            try:
                search = ShardedSearch(release, shards, self._supported_head, self.query_states)
                return search.search(queries, model, options)
            except ShardsMissing:
                # It may have been replaced and stopped since it was looked at.
                again = self._releases.live(self.name, look=True)
                if again is live:
                    raise
                look = False


class ClusterEngine(SearchEngine):
    """The home as an ingress serves it: collections with a live release are answered by their shards.

    Args:
        home: the folder of collections, opened readonly.
        encoder: as of `SearchEngine`.
        releases: what is live.
        query_states: gives the embeddings of texts; encoded in this process when None.
        await_encoder: returns when `query_states` can give any.
    """

    def __init__(
        self,
        home: Path | str,
        *,
        encoder: Callable[[], TextEncoder],
        releases: Releases,
        query_states: QueryStates | None = None,
        await_encoder: Callable[[], None] = lambda: None,
    ):
        super().__init__(home, readonly=True, encoder=encoder)
        self._releases = releases
        self._states = query_states
        self._await_encoder = await_encoder

    @property
    def encoder(self) -> Any:
        """The encoder, or None once a replica can encode: where replicas do that, none is loaded here."""
        if self._states is None:
            return super().encoder
        self._await_encoder()
        return None

    def collection(self, name: str) -> Collection:
        """As `SearchEngine.collection`; one that was published since it was opened is opened anew."""
        found = super().collection(name)
        if isinstance(found, ShardedCollection) or self._releases.live(found.name) is None:
            return found
        with self._opening:
            self._open.pop(found.name, None)
        return super().collection(name)

    def _collection(self, store: Store, *rest: Any, **options: Any) -> Collection:
        if self._releases.live(store.name, look=True) is None:
            return super()._collection(store, *rest, **options)
        return ShardedCollection(store, lambda: self.encoder, self._releases, self._states)
