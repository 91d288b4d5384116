"""`SearchEngine`: the collections of one home, and the encoder that they share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dsearch.encoder import DEFAULT_ENCODER, Encoder, QueryCache, TextEncoder
from dsearch.engine.collection import Collection
from dsearch.engine.given import given_identity
from dsearch.engine.home import Home
from dsearch.engine.indexing import build_generation
from dsearch.errors import CollectionExists, Conflict
from dsearch.index import remove_unfinished
from dsearch.store import Store


class SearchEngine:
    """Opens, makes and removes collections.

    Args:
        home: the folder of collections.
        readonly: open collections for reading alone, without the home's lock; others may write meanwhile.
        encoder: gives the encoder when one is needed for the first time; the default encoder when None.
        query_cache_bytes: how much of what the encoder gave for queries is kept for when they come again.

    Raises:
        HomeLocked: another process writes to this home.
    """

    def __init__(
        self,
        home: Path | str,
        *,
        readonly: bool = False,
        encoder: Callable[[], TextEncoder] | None = None,
        query_cache_bytes: int = 0,
    ):
        self.home = Home(Path(home))
        self.readonly = readonly
        self._load_encoder = encoder or _default_encoder
        self._encoder: TextEncoder | None = None
        self.query_cache = QueryCache(query_cache_bytes)
        self._open: dict[str, Collection] = {}
        if not readonly:
            self.home.lock()

    @property
    def encoder(self) -> TextEncoder:
        """The encoder, loaded once."""
        if self._encoder is None:
            self._encoder = self._load_encoder()
        return self._encoder

    def names(self) -> list[str]:
        """The collections, sorted."""
        return self.home.names()

    def collection(self, name: str) -> Collection:
        """An existing collection.

        Raises:
            CollectionNotFound, CorruptData, UnsupportedFormat, InvalidRequest (not a name).
        """
        if name not in self._open:
            folder = self.home.existing(name)
            if not self.readonly and (folder / "generations").is_dir():
                remove_unfinished(folder / "generations")
            store = Store.open(folder, readonly=self.readonly)
            self._open[name] = Collection(store, lambda: self.encoder, self.query_cache)
        return self._open[name]

    def create(self, name: str, *, dimension: int | None = None) -> Collection:
        """Make a collection, empty and searchable.

        Args:
            name: its name.
            dimension: for embeddings that the caller gives, of anything (`Collection.upsert` with
                `embeddings`), and no encoder; None for texts that the engine's encoder encodes.

        Raises:
            CollectionExists, InvalidRequest (not a name), Conflict (opened readonly).
        """
        self._require_writable()
        folder = self.home.folder(name)
        if name in self.names():
            raise CollectionExists(f"collection {name!r} exists in {self.home.path}; use it, or another name")
        identity = self.encoder.identity if dimension is None else given_identity(dimension)
        with Store.create(
            folder, name=name, encoder=identity.to_dict(), dimension=identity.dimension
        ) as store:
            build_generation(store)
        return self.collection(name)

    def collection_or_new(self, name: str) -> Collection:
        """The collection of this name, made when it is not there."""
        return self.collection(name) if name in self.names() else self.create(name)

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it.

        Raises:
            CollectionNotFound, Conflict (opened readonly).
        """
        self._require_writable()
        folder = self.home.existing(name)
        if collection := self._open.pop(name, None):
            collection.close()
        # Renamed first: a crash in the middle leaves no half collection under the name.
        doomed = folder.with_name(f".{name}.deleted")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)

    def close(self) -> None:
        """Close every collection and release the lock; safe to call twice."""
        for collection in self._open.values():
            collection.close()
        self._open.clear()
        self.home.unlock()

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_writable(self) -> None:
        if self.readonly:
            raise Conflict(f"{self.home.path} was opened with readonly=True; open it for writing")


def _default_encoder() -> TextEncoder:
    return Encoder.load(DEFAULT_ENCODER)
