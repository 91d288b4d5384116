"""`SearchEngine`: the collections of one home, and the encoder that they share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dsearch.encoder import DEFAULT_ENCODER, Encoder, QueryCache, TextEncoder
from dsearch.engine.aliases import read_aliases, write_aliases
from dsearch.engine.collection import Collection
from dsearch.engine.given import given_identity
from dsearch.engine.home import Home
from dsearch.engine.indexing import build_generation
from dsearch.engine.keys import KeyOptions
from dsearch.engine.language import ENGLISH, require_language, tokenizer_for
from dsearch.engine.rebuild import MINIMUM, check_rebuild
from dsearch.engine.retirement import clear, tidy
from dsearch.errors import CollectionExists, Conflict, NotFound
from dsearch.store import Store


class SearchEngine:
    """Opens, makes and removes collections.

    Args:
        home: the folder of collections.
        readonly: open collections for reading alone, without the home's lock; others may write meanwhile.
        encoder: gives the encoder when one is needed for the first time; the default encoder when None.
        query_cache_bytes: how much of what the encoder gave for queries is kept for when they come again.
        rebuild_share: the part of a collection's documents written or deleted since its generation was built,
            from which on the next one is built, beside everything else and in another process. A service
            wants this (0.05 is a good share). None, the default: a program says itself when (`refresh`).
        rebuild_minimum: documents below which no build starts by itself.

    Raises:
        HomeLocked: another process writes to this home.
        InvalidRequest: a share or a minimum that is not above 0.
    """

    def __init__(
        self,
        home: Path | str,
        *,
        readonly: bool = False,
        encoder: Callable[[], TextEncoder] | None = None,
        query_cache_bytes: int = 0,
        rebuild_share: float | None = None,
        rebuild_minimum: int = MINIMUM,
    ):
        self.home = Home(Path(home))
        self.readonly = readonly
        self._load_encoder = encoder or _default_encoder
        self._encoder: TextEncoder | None = None
        self.query_cache = QueryCache(query_cache_bytes)
        self._open: dict[str, Collection] = {}
        self._rebuild = check_rebuild(rebuild_share, rebuild_minimum)
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
        """An existing collection, by its name or an alias.

        Raises:
            CollectionNotFound, CorruptData, UnsupportedFormat, InvalidRequest (not a name).
        """
        if name not in self._open:
            name = self.aliases().get(name, name)
        if name not in self._open:
            folder = self.home.existing(name)
            store = Store.open(folder, readonly=self.readonly)
            if not self.readonly:
                clear(store)
                tidy(store)
            self._open[name] = self._collection(store)
        return self._open[name]

    def create(
        self,
        name: str,
        *,
        dimension: int | None = None,
        keys: KeyOptions | None = None,
        language: str = ENGLISH,
    ) -> Collection:
        """Make a collection, empty and searchable.

        Args:
            name: its name.
            dimension: for embeddings that the caller gives, of anything (`Collection.upsert` with
                `embeddings`), and no encoder; None for texts that the engine's encoder encodes.
            keys: how the keys of its generations are kept; compared exactly when None.
            language: whose stems and stop words keyword search knows, one of `dsearch.index.languages()`;
                "none" leaves every word as it is.

        Raises:
            CollectionExists, InvalidRequest (not a name or a language), Conflict (opened readonly).
        """
        self._require_writable()
        folder = self.home.folder(name)
        if name in self.names():
            raise CollectionExists(f"collection {name!r} exists in {self.home.path}; use it, or another name")
        if target := self.aliases().get(name):
            raise CollectionExists(
                f"{name!r} is an alias of {target!r}; remove that first, or use another name"
            )
        tokenizer_for(language)  # before anything of the collection is there
        identity = self.encoder.identity if dimension is None else given_identity(dimension)
        with Store.create(
            folder, name=name, encoder=identity.to_dict(), dimension=identity.dimension
        ) as store:
            build_generation(store, keys=keys, language=language)
        return self.collection(name)

    def collection_or_new(self, name: str, *, language: str | None = None) -> Collection:
        """The collection of this name or alias, made when it is not there.

        Raises:
            Conflict: it is there, for another language.
        """
        if name not in self.names() and name not in self.aliases():
            return self.create(name, language=language or ENGLISH)
        found = self.collection(name)
        require_language(found.store, language)
        return found

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it.

        Raises:
            CollectionNotFound, Conflict (opened readonly, or an alias stands for it).
        """
        self._require_writable()
        folder = self.home.existing(name)
        if standing := [alias for alias, target in self.aliases().items() if target == name]:
            raise Conflict(
                f"alias {', '.join(standing)} stands for collection {name!r}; point it elsewhere first"
            )
        if collection := self._open.pop(name, None):
            collection.close()
        # Renamed first: a crash in the middle leaves no half collection under the name.
        doomed = folder.with_name(f".{name}.deleted")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)

    # ---- aliases

    def aliases(self) -> dict[str, str]:
        """Alias → collection.

        Raises:
            CorruptData: the file of aliases is not what was written.
        """
        return read_aliases(self.home.path)

    def set_alias(self, alias: str, name: str) -> None:
        """Let `alias` stand for collection `name` from now on, whatever it stood for: one rename of one file.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), CollectionExists (a collection is called so),
            Conflict (opened readonly).
        """
        self._require_writable()
        self.home.folder(alias)  # its rules are those of collections' names
        self.home.existing(name)
        if alias in self.names():
            raise CollectionExists(f"collection {alias!r} is there; use another name for the alias")
        write_aliases(self.home.path, {**self.aliases(), alias: name})

    def drop_alias(self, alias: str) -> None:
        """Remove an alias; the collection stays.

        Raises:
            NotFound, Conflict (opened readonly).
        """
        self._require_writable()
        aliases = self.aliases()
        if alias not in aliases:
            there = f"there are: {', '.join(aliases)}" if aliases else "there is none"
            raise NotFound(f"no alias {alias[:80]!r}; {there}")
        del aliases[alias]
        write_aliases(self.home.path, aliases)

    # ---- closing

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

    def _collection(self, store: Store) -> Collection:
        share, minimum = (None, MINIMUM) if self.readonly else self._rebuild
        return Collection(
            store,
            lambda: self.encoder,
            self.query_cache,
            rebuild_share=share,
            rebuild_minimum=minimum,
        )

    def _require_writable(self) -> None:
        if self.readonly:
            raise Conflict(f"{self.home.path} was opened with readonly=True; open it for writing")


def _default_encoder() -> TextEncoder:
    return Encoder.load(DEFAULT_ENCODER)
