"""`SearchEngine`: the collections of one home, and their common encoder."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from dsearch.encoder import EncoderSource, QueryCache, TextEncoder
from dsearch.engine.collection import Collection, Searchable
from dsearch.engine.home import Home, HomeEncoders, drop_alias, given_identity, read_aliases, set_alias
from dsearch.engine.indexing.chunking import PassageOptions
from dsearch.engine.indexing.ingest import OnProgress, build_generation, require_options
from dsearch.engine.indexing.leases import clear, tidy
from dsearch.engine.indexing.releases import tidy_releases
from dsearch.engine.maintenance.backup import Backup, back_up, restore
from dsearch.engine.maintenance.migrate import (
    Migration,
    MigrationOptions,
    PreparedMigration,
    clear_superseded,
    migrate,
    migrating_folder,
    prepare,
    switch,
)
from dsearch.engine.maintenance.verify import Recovery, Verification, accept_loss, verify_collection
from dsearch.engine.options import ENGLISH, KeyOptions, checked_fields
from dsearch.engine.rebuild import MINIMUM, check_rebuild
from dsearch.errors import CollectionExists, Conflict, InvalidRequest
from dsearch.index import Tokenizer
from dsearch.store import Store, validate_name
from dsearch.store.folders import aside, name_of_backup, publish, require_empty

_log = logging.getLogger(__name__)


class SearchEngine:
    """Opens, creates and removes collections.

    Args:
        home: folder of collections.
        readonly: open collections without the home's lock; others may write meanwhile.
        encoder: loads the encoder on first use; when None that of the settings, read then.
        query_cache_bytes: size of the cache of query embeddings.
        rebuild_share: share of a collection's documents written or deleted since its last build that starts
            the next one in another process; 0.05 suits a service. None builds only by `refresh`.
        rebuild_minimum: number of documents below which no build starts automatically.
        next_encoder: loads the encoder that `migrate` uses, and that serves migrated collections.

    Raises:
        HomeLocked: another process writes to this home.
        InvalidRequest: a share or minimum of 0 or less.
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
        next_encoder: Callable[[], TextEncoder] | None = None,
    ):
        self.home = Home(Path(home))
        self.readonly = readonly
        self._encoders = HomeEncoders(encoder or partial(_of_settings, self.home.path), next_encoder)
        self.query_cache = QueryCache(query_cache_bytes)
        self._open: dict[str, Collection] = {}
        self._opening = threading.RLock()  # a collection is opened once for all threads
        self._rebuild = check_rebuild(rebuild_share, rebuild_minimum)
        if not readonly:
            self.home.lock()
            clear_superseded(self.home)

    @property
    def encoder(self) -> TextEncoder:
        """Encoder of the home, loaded once."""
        return self._encoders.own

    @property
    def next_encoder(self) -> TextEncoder:
        """Encoder that `migrate` encodes with, loaded once; by default `encoder`."""
        return self._encoders.following

    def load_encoder(self) -> None:
        """Load the encoder that searches need; raises EncoderUnavailable without its weights."""
        _ = self.encoder

    def names(self) -> list[str]:
        """Return the names of the collections, sorted."""
        return self.home.names()

    def collection(self, name: str) -> Collection:
        """Return an existing collection, by its name or an alias.

        Raises:
            CollectionNotFound, CorruptData, UnsupportedFormat, InvalidRequest (not a name).
        """
        with self._opening:
            if name not in self._open:
                name = self.aliases().get(name, name)
            if name not in self._open:
                self._open[name] = self._opened(self.home.existing(name))
            return self._open[name]

    def searchable(self, name: str) -> Searchable:
        """Return what answers the searches of a collection: here the collection itself."""
        return self.collection(name)

    def create(
        self,
        name: str,
        *,
        dimension: int | None = None,
        keys: KeyOptions | None = None,
        language: str = ENGLISH,
        search_fields: Sequence[str] = (),
        passages: PassageOptions | None = None,
    ) -> Collection:
        """Create an empty, searchable collection.

        Args:
            name: its name.
            dimension: length of supplied embeddings (`Collection.upsert`); None: the encoder encodes.
            keys: storage options of keys; exact comparison when None.
            language: language of keyword search, one of `dsearch.index.languages()`; "none" keeps words,
                "auto" or a list as "german,english" takes each text's own.
            search_fields: metadata fields whose strings keyword search has as words, as "authors".
            passages: options to split long documents; passages as long as the encoder's window when None.

        Raises:
            CollectionExists, InvalidRequest (no name, language or field), Conflict (opened readonly).
        """
        self._require_writable()
        folder = self.home.folder(name)
        self.home.require_free(name, "use it, or another name")
        fields, _ = (
            checked_fields(search_fields),
            Tokenizer.for_language(language),
        )  # both refuse what is none
        if dimension is not None and (passages or PassageOptions()) != PassageOptions():
            raise InvalidRequest("passages of embeddings that are given; leave one of the two out")
        if dimension is None:
            identity = self.encoder.identity
            cutting = (passages or PassageOptions()).cutting(self.encoder)
        else:
            identity, cutting = given_identity(dimension), None
        require_empty(folder)
        with aside(self.home.path) as unfinished:
            building = unfinished / name
            with Store.create(
                building,
                name=name,
                encoder=identity.to_dict(),
                dimension=identity.dimension,
                passages=None if cutting is None else cutting.to_dict(),
            ) as store:
                build_generation(store, keys=keys, language=language, search_fields=fields)
            with self.home.naming:
                self.home.require_free(name, "use it, or another name")  # another thread was faster
                publish(building, folder)  # a crash before leaves no collection, after it a searchable one
        return self.collection(name)

    def collection_or_new(
        self,
        name: str,
        *,
        language: str | None = None,
        search_fields: Sequence[str] | None = None,
        passages: PassageOptions | None = None,
        kind: str | None = None,
        dimension: int | None = None,
    ) -> Collection:
        """Return the collection of this name or alias, created if it does not exist; see `create`.

        Raises:
            InvalidRequest: unknown kind.
            Conflict: it exists with other options than these.
        """
        keys = None if kind is None else KeyOptions(kind)
        if name not in self.names() and name not in self.aliases():
            with suppress(CollectionExists):  # another thread has made it
                return self.create(
                    name,
                    dimension=dimension,
                    keys=keys,
                    language=ENGLISH if language is None else language,
                    search_fields=search_fields or (),
                    passages=passages,
                )
        collection = self.collection(name)
        require_options(collection.store, dimension, language, search_fields, kind, passages)
        return collection

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it.

        Raises:
            CollectionNotFound, Conflict (opened readonly, it is an alias, or an alias names it).
        """
        self._require_writable()
        with self.home.naming, self._opening:  # what is opened meanwhile would stay open
            if target := (aliases := self.aliases()).get(name):
                raise Conflict(
                    f"{name!r} is an alias of {target!r}, which stays; remove it, or drop {target!r}"
                )
            self.home.existing(name)
            if standing := ", ".join(alias for alias, target in aliases.items() if target == name):
                raise Conflict(f"alias {standing} stands for collection {name!r}; point it elsewhere first")
            if collection := self._open.pop(name, None):
                collection.close()
            self._encoders.forget(name)
            shutil.rmtree(migrating_folder(self.home, name), ignore_errors=True)
            self.home.remove(name)

    # ---- copies

    def verify(self, name: str) -> Verification:
        """Verify all data of a collection by its digests, and its index against its store.

        Damage is reported, not raised. Others may read and write meanwhile.

        Raises:
            CollectionNotFound, InvalidRequest (not a name).
        """
        return verify_collection(self.home.existing(self.aliases().get(name, name)))

    def recover(self, name: str, on_progress: OnProgress | None = None) -> Recovery:
        """Continue a collection that lost acknowledged writes with the documents that remain.

        Its index is rebuilt. A complete collection is unchanged.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), Conflict (opened readonly).
            CorruptData: the database itself cannot be read.
        """
        self._require_writable()
        name = self.aliases().get(name, name)
        with self._opening:
            # An open collection is complete.
            loss = None if name in self._open else accept_loss(self.home.existing(name))
            collection = self.collection(name)
        if loss is not None:  # the index may have documents that are lost
            collection.refresh(on_progress)
        return Recovery(name, loss, collection.describe().documents)

    def backup(self, name: str, path: Path) -> Backup:
        """Copy a collection into the new folder `path`, atomically, while writes and searches continue.

        It contains, as of one operation, the documents with embeddings and the live generation; the trained
        models; and the feedback.

        Raises:
            CollectionNotFound, Conflict (`path` exists, or is in this home), CorruptData (a
            model is damaged), InsufficientStorage.
        """
        if path.resolve().is_relative_to(self.home.path.resolve()):
            raise Conflict(
                f"{path} is in {self.home.path}, where every folder is a collection's; give a place outside"
            )
        return back_up(self.collection(name).store, path)

    def restore(self, backup: Path, on_progress: OnProgress | None = None) -> Collection:
        """Restore a collection from a backup, under its former name; every digest is verified before.

        Raises:
            CollectionNotFound: no backup in that folder.
            CollectionExists: a collection or an alias of its name is there.
            CorruptData: documents or models are damaged; nothing was restored.
            Conflict: opened readonly.
        """
        self._require_writable()
        name = validate_name(name_of_backup(backup))
        self.home.require_free(name, "a backup keeps its name; restore it into another home, or remove that")
        restore(self.home.folder(name), backup)
        restored = self.collection(name)
        restored.restore_derived(on_progress)
        return restored

    def migrate(
        self,
        name: str,
        encoder: TextEncoder | None = None,
        *,
        passages: PassageOptions | None = None,
        language: str | None = None,
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Migration:
        """Encode a collection with another encoder beside the live one, then replace it at once (migrate.py).

        Searches and writes continue; one that runs during the switch may get Unavailable. Remembered queries
        stay, trained models do not. A repeated call continues an interrupted migration.

        Args:
            name: the collection.
            encoder: new encoder, which also serves the collection afterwards; `next_encoder` when None.
            passages: options to split long documents; passages as long as the window when None.
            language: new language of keyword search; as before when None.
            on_progress: receives the progress of reading, encoding and building.
            cancelled: polled; True stops the migration.

        Raises:
            CollectionNotFound, EncoderMismatch (supplied embeddings), Cancelled, InsufficientStorage,
            Conflict (that encoder is its encoder; opened readonly), InvalidRequest (an unknown language).
        """
        self._require_writable()
        source = self.collection(name)
        new = self.next_encoder if encoder is None else encoder
        options: MigrationOptions = {"passages": passages, "language": language}
        migrated = migrate(self.home, source, new, on_progress=on_progress, cancelled=cancelled, **options)
        self._replace(source, new, migrated.folder, Collection.close)
        return migrated

    def prepare_migration(
        self, name: str, on_progress: OnProgress | None = None, cancelled: Callable[[], bool] | None = None
    ) -> PreparedMigration:
        """Run the first part of `migrate`, by `next_encoder`; a readonly engine can do it for the writer."""
        store = self.collection(name).store
        return prepare(self.home, store, self.next_encoder, on_progress=on_progress, cancelled=cancelled)

    def finish_migration(
        self, name: str, prepared: PreparedMigration, close: Callable[[Collection], None] = Collection.close
    ) -> Migration | None:
        """Run the second part: the switch. None if too much has changed since; then prepare it again.

        Args:
            name: the collection.
            prepared: result of the first part.
            close: closes the replaced collection once it is not in use.
        """
        self._require_writable()
        source = self.collection(name)
        migrated = switch(self.home, source, self.next_encoder, prepared)
        if migrated is not None:
            self._replace(source, self.next_encoder, migrated.folder, close)
        return migrated

    # ---- aliases

    def aliases(self) -> dict[str, str]:
        """Return the map from alias to collection.

        Raises:
            CorruptData: the file of aliases is damaged.
        """
        return read_aliases(self.home.path)

    def set_alias(self, alias: str, name: str) -> str | None:
        """Point `alias` at collection `name`, atomically.

        Returns:
            Its previous collection; None for a new alias.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), CollectionExists (a collection is called so),
            Conflict (opened readonly).
        """
        self._require_writable()
        return set_alias(self.home, alias, name)

    def drop_alias(self, alias: str) -> None:
        """Remove an alias; the collection stays.

        Raises:
            NotFound, Conflict (opened readonly).
        """
        self._require_writable()
        drop_alias(self.home, alias)

    # ---- closing

    def close(self) -> None:
        """Close every collection and release the lock, for good; safe to call twice."""
        with self._opening:
            while self._open:
                self._open.popitem()[1].close()
            self.home.unlock()

    def __enter__(self) -> SearchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, folder: Path) -> Collection:
        if not self.readonly:
            self.home.require_locked()
        store = Store.open(folder, readonly=self.readonly)
        if not self.readonly:
            clear(store)
            tidy(store)
            tidy_releases(store)
        opened = self._collection(store)
        if loss := opened.feedback.loss():  # clicks are missing, documents are not: say it and go on
            _log.warning("%s", loss)
        return opened

    def _replace(
        self, old: Collection, encoder: TextEncoder, folder: Path, close: Callable[[Collection], None]
    ) -> None:
        """Replace `old` by the collection in `folder`, once its index is loaded."""
        self._encoders.migrated(old.name, encoder)
        try:
            successor = self._opened(folder)
            _ = successor.snapshot
        except BaseException:
            with self._opening:
                self._open.pop(old.name, None)  # the next access reports the damage
            raise
        with self._opening:
            self._open[old.name] = successor
        close(old)
        clear_superseded(self.home)

    def _collection(self, store: Store) -> Collection:
        share, minimum = (None, MINIMUM) if self.readonly else self._rebuild
        return Collection(
            store,
            self._encoders.of(store),  # a replaced edition keeps its own while it is in use
            self.query_cache,
            rebuild_share=share,
            rebuild_minimum=minimum,
        )

    def _require_writable(self) -> None:
        if self.readonly:
            raise Conflict(f"{self.home.path} was opened with readonly=True; open it for writing")
        self.home.require_locked()


def _of_settings(home: Path) -> TextEncoder:
    from dsearch.config import load_settings

    return EncoderSource.of(load_settings(home=home))()
