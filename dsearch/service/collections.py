"""`Catalogue`: the engine's collections, held by requests, so that none is deleted while in use."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.maintenance.migrate import Migrated, PreparedMigration
from dsearch.errors import CollectionNotFound, DsearchError
from dsearch.results import AliasSet, CollectionDamaged, CollectionInfo

P = ParamSpec("P")
T = TypeVar("T")


class Catalogue:
    """The collections of an engine, for many threads.

    The engine opens a collection and loads its encoder when they are first asked for; here two threads
    that ask at once get the same one.
    """

    def __init__(self, engine: SearchEngine):
        self._engine = engine
        self._changed = threading.Condition()
        self._holds: Counter[Collection] = Counter()
        self._leaving: set[str] = set()
        self._used: set[str] = set()
        self._loading = threading.Lock()

    @contextmanager
    def using(self, name: str, *, encoder: bool = False) -> Generator[Collection]:
        """The collection called `name`, which stays until the block ends.

        Args:
            name: of a collection, or an alias.
            encoder: whether the block encodes.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), CorruptData, EncoderUnavailable.
        """
        if encoder:
            self.load_encoder()
        with self._changed:
            self._changed.wait_for(lambda: name not in self._leaving)
            collection = self._existing(name)
            self._holds[collection] += 1
            self._used.add(collection.name)
        try:
            yield collection
        finally:
            with self._changed:
                self._holds[collection] -= 1
                if not self._holds[collection]:
                    del self._holds[collection]
                self._changed.notify_all()

    def call(
        self,
        function: Callable[Concatenate[Collection, P], T],
        name: str,
        *args: P.args,
        **options: P.kwargs,
    ) -> Callable[[], T]:
        """Return a job that calls a function with the collection called `name`, held until it returns."""

        def job() -> T:
            with self.using(name) as collection:
                return function(collection, *args, **options)

        return job

    def damaged(self) -> list[str]:
        """Open collections whose index turned out to be damaged, sorted."""
        return self._engine.damaged()

    def names(self) -> list[str]:
        """The collections, sorted."""
        return self._engine.names()

    def opened(self) -> list[str]:
        """Those that were asked for since the start, sorted."""
        with self._changed:
            return sorted(self._used.intersection(self.names()))

    def describe(self, name: str) -> CollectionInfo:
        """Describe a collection."""
        with self.using(name) as collection:
            return collection.describe()

    def describe_all(self) -> list[CollectionInfo | CollectionDamaged]:
        """Every collection; of one that cannot be opened its name and why."""
        described: list[CollectionInfo | CollectionDamaged] = []
        for name in self.names():
            try:
                described.append(self.describe(name))
            except CollectionNotFound:
                continue  # deleted since it was listed
            except DsearchError as error:
                described.append(CollectionDamaged.of(name, error))
        return described

    def create(
        self,
        name: str,
        language: str | None = None,
        passages: PassageOptions | None = None,
        kind: str | None = None,
    ) -> bool:
        """Make a collection unless it is there; whether it was made.

        Args:
            name: its name.
            language: of its texts; English when None.
            passages: how long documents are cut; into passages as long as the encoder's window when None.
            kind: how keys are kept; compared exactly when None.

        Raises:
            InvalidRequest: not a name, not a language, not a kind, passages that the encoder cannot have.
            Conflict: the engine is readonly, or it is there for another language, passages or kind.
        """
        self.load_encoder()
        with self._changed:
            self._changed.wait_for(lambda: name not in self._leaving)
            there = name in self.names()
            self._engine.collection_or_new(name, language=language, passages=passages, kind=kind)
            return not there

    def drop(self, name: str) -> None:
        """Delete a collection, when the last request that holds it is done; new ones wait and do not find it.

        Raises:
            CollectionNotFound, Conflict (the engine is readonly).
        """
        with self._changed:
            self._changed.wait_for(lambda: name not in self._leaving)
            collection = self._existing(name)
            self._leaving.add(name)
            try:
                self._changed.wait_for(lambda: collection not in self._holds)
                self._engine.drop(name)
            finally:
                self._leaving.discard(name)
                self._changed.notify_all()

    def finish_migration(self, name: str, prepared: PreparedMigration) -> Migrated | None:
        """Let a prepared edition answer; the replaced one is closed when the last request that holds it is
        done. See `SearchEngine.finish_migration`.
        """

        def close(replaced: Collection) -> None:
            with self._changed:
                self._changed.wait_for(lambda: replaced not in self._holds)
            replaced.close()

        return self._engine.finish_migration(name, prepared, close)

    def aliases(self) -> dict[str, str]:
        """Alias → collection."""
        return self._engine.aliases()

    def set_alias(self, alias: str, name: str) -> AliasSet:
        """Point an alias at a collection.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), CollectionExists (a collection is called so),
            Conflict (the engine is readonly).
        """
        with self._changed:
            collection = self._existing(name).name
            return AliasSet(alias, collection, self._engine.set_alias(alias, collection))

    def drop_alias(self, alias: str) -> None:
        """Remove an alias.

        Raises:
            NotFound, Conflict (the engine is readonly).
        """
        with self._changed:
            self._engine.drop_alias(alias)

    def load_encoder(self) -> None:
        """Load the engine's encoder, once.

        Raises:
            EncoderUnavailable: its weights are not on this machine.
        """
        with self._loading:
            _ = self._engine.encoder

    def _existing(self, name: str) -> Collection:
        try:
            return self._engine.collection(name)
        except CollectionNotFound:
            # The engine's message names a folder of the server and a command: neither is the client's.
            there = self.names()
            known = f"there are: {', '.join(there[:20])}" if there else "there is none yet"
            raise CollectionNotFound(
                f"no collection {name!r}; {known}. Make one with: PUT /v1/collections/{name}"
            ) from None
