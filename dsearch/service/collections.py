"""`Catalogue`: the engine's collections, held by requests, so that none is deleted while in use."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from dsearch.engine import Collection, PassageOptions, Searchable, SearchEngine
from dsearch.engine.home import is_given
from dsearch.engine.maintenance.migrate import Migration, PreparedMigration
from dsearch.errors import CollectionNotFound, CorruptData, DsearchError, NotInCluster
from dsearch.results import AliasSet, CollectionDamaged, CollectionInfo
from dsearch.service.errors import public_encoder, without_home

Opened = TypeVar("Opened", bound=Searchable)
P = ParamSpec("P")
T = TypeVar("T")


class Catalogue:
    """The collections of an engine, for many threads.

    The engine opens a collection and loads its encoder at the first request; two threads that request one at
    the same time get the same one.

    Attributes:
        engine: the engine of the collections.
    """

    def __init__(self, engine: SearchEngine):
        self.engine = engine
        self._changed = threading.Condition()
        self._holds: Counter[Searchable] = Counter()
        self._leaving: set[str] = set()
        self._used: set[str] = set()

    def using(self, name: str, *, encoder: bool = False) -> AbstractContextManager[Searchable]:
        """Hold a collection for search and reads; it stays open until the block ends.

        Args:
            name: name or alias of a collection.
            encoder: True if the block encodes texts.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), CorruptData, EncoderUnavailable.
        """
        return self._hold(name, self.engine.searchable, encoder)

    def writing(self, name: str, *, encoder: bool = False) -> AbstractContextManager[Collection]:
        """Hold the collection in the home, as `using`; writes raise Conflict if it is readonly."""
        return self._hold(name, self.engine.collection, encoder)

    @contextmanager
    def whole(self, name: str, *, encoder: bool = False) -> Generator[Collection]:
        """Hold a collection whose index is here, as `using`; raises NotInCluster for one in shards."""
        with self.using(name, encoder=encoder) as collection:
            if not isinstance(collection, Collection):
                raise NotInCluster(
                    f"collection {collection.name!r} is answered by a cluster, where search and search/batch "
                    "are to be had; ask a server over the home itself (dsearch serve) for anything else"
                )
            yield collection

    @contextmanager
    def _hold(self, name: str, open: Callable[[str], Opened], encoder: bool) -> Generator[Opened]:
        with self._changed:
            self._changed.wait_for(lambda: name not in self._leaving)
            collection = self._existing(name, open)
            self._holds[collection] += 1
            if collection.name not in self._used:
                public_encoder(collection.store.encoder.get("name", ""))  # no error's text says where it lies
                self._used.add(collection.name)
        try:
            if encoder and not is_given(collection.store):
                self.engine.load_encoder()
            yield collection
        finally:
            with self._changed:
                self._holds[collection] -= 1
                if not self._holds[collection]:
                    del self._holds[collection]
                self._changed.notify_all()

    def call(
        self,
        function: Callable[Concatenate[Searchable, P], T],
        name: str,
        *args: P.args,
        **options: P.kwargs,
    ) -> Callable[[], T]:
        """Return a job that reads with the collection called `name`, held until it returns."""

        def job() -> T:
            with self.using(name) as collection:
                return function(collection, *args, **options)

        return job

    def write(
        self,
        function: Callable[Concatenate[Collection, P], T],
        name: str,
        *args: P.args,
        **options: P.kwargs,
    ) -> Callable[[], T]:
        """Return a job that changes the collection called `name`, held until it returns."""

        def job() -> T:
            with self.writing(name) as collection:
                return function(collection, *args, **options)

        return job

    def opened(self) -> list[str]:
        """Names of the collections that were used since the start, sorted."""
        with self._changed:
            return sorted(self._used.intersection(self.engine.names()))

    def describe(self, name: str) -> CollectionInfo:
        """Describe a collection; an encoder that is a folder has its own name, without its place."""
        with self.using(name) as collection:
            described = collection.describe()
        name_of = described.encoder.get("name")
        if name_of is None:
            return described
        return replace(described, encoder={**described.encoder, "name": public_encoder(name_of)})

    def describe_all(self) -> list[CollectionInfo | CollectionDamaged]:
        """Describe every collection; one that cannot be opened by its name and the error."""
        described: list[CollectionInfo | CollectionDamaged] = []
        for name in self.engine.names():
            try:
                described.append(self.describe(name))
            except CollectionNotFound:
                continue  # deleted since it was listed
            except DsearchError as error:
                described.append(CollectionDamaged.of(name, error, without_home(str(error))))
        return described

    def create(
        self,
        name: str,
        language: str | None = None,
        passages: PassageOptions | None = None,
        kind: str | None = None,
        dimension: int | None = None,
        search_fields: Sequence[str] | None = None,
    ) -> bool:
        """Create a collection unless it exists; return True if it was created.

        Args:
            name: its name.
            language: of its texts; English when None.
            passages: how long documents are cut; into passages as long as the encoder's window when None.
            kind: how keys are kept; compared exactly when None.
            search_fields: metadata fields whose strings are words; none when None.
            dimension: length of the embeddings that come with the documents; the encoder's when None.

        Raises:
            InvalidRequest: not a name, language, kind or field, passages that the encoder cannot have.
            Conflict: the engine is readonly, or it is there for another language, fields, passages, kind or
                dimension.
        """
        if dimension is None:
            self.engine.load_encoder()
        with self._changed:
            self._changed.wait_for(lambda: name not in self._leaving)
            exists = name in self.engine.names() or name in self.engine.aliases()
            self.engine.collection_or_new(
                name,
                language=language,
                search_fields=search_fields,
                passages=passages,
                kind=kind,
                dimension=dimension,
            )
            return not exists

    def drop(self, name: str) -> None:
        """Delete a collection, when the last request that holds it is done; new ones wait and do not find it.

        Raises:
            CollectionNotFound, Conflict (the engine is readonly).
        """
        with self._changed:
            self._changed.wait_for(lambda: name not in self._leaving)
            collection = None  # one that damage keeps closed is held by nobody
            with suppress(CorruptData):
                collection = self._existing(name, self.engine.collection)
            self._leaving.add(name)
            try:
                self._changed.wait_for(lambda: collection not in self._holds)
                self.engine.drop(name)
            finally:
                self._leaving.discard(name)
                self._changed.notify_all()

    def finish_migration(self, name: str, prepared: PreparedMigration) -> Migration | None:
        """Let a prepared edition answer; the replaced one is closed when the last request that holds it is
        done. See `SearchEngine.finish_migration`.
        """

        def close(replaced: Collection) -> None:
            with self._changed:
                self._changed.wait_for(lambda: replaced not in self._holds)
            replaced.close()

        return self.engine.finish_migration(name, prepared, close)

    def own_name(self, name: str) -> str:
        """Name of the collection that a name or an alias stands for."""
        return name if name in self.engine.names() else self.engine.aliases().get(name, name)

    def names_of(self, name: str) -> list[str]:
        """Names by which requests name a collection: its own and its aliases."""
        return [name, *(alias for alias, target in self.engine.aliases().items() if target == name)]

    def set_alias(self, alias: str, name: str) -> AliasSet:
        """Point an alias at a collection.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), CollectionExists (a collection is called so),
            Conflict (the engine is readonly).
        """
        collection = self._existing(name, self.engine.collection).name
        return AliasSet(alias, collection, self.engine.set_alias(alias, collection))

    def _existing(self, name: str, open: Callable[[str], Opened]) -> Opened:
        try:
            return open(name)
        except CollectionNotFound:
            # The engine's message names a folder of the server and a command: neither is the client's.
            names = self.engine.names()
            choices = f"there are: {', '.join(names[:20])}" if names else "there is none yet"
            raise CollectionNotFound(
                f"no collection {name!r}; {choices}. Make one with: PUT /v1/collections/{name}"
            ) from None
