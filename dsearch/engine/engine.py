"""`SearchEngine`: the collections of one home, and the encoder that they share."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dsearch.encoder import QueryCache, TextEncoder
from dsearch.engine.collection import Collection
from dsearch.engine.home import Home, HomeEncoders, drop_alias, read_aliases, set_alias
from dsearch.engine.indexing.chunking import PassageOptions
from dsearch.engine.indexing.clean_close import CleanClose, take_clean_close
from dsearch.engine.indexing.ingest import OnProgress, build_generation, given_identity
from dsearch.engine.indexing.retention import clear, tidy
from dsearch.engine.maintenance.backup import Backup, back_up, restore
from dsearch.engine.maintenance.migrate import (
    Migrated,
    PreparedMigration,
    clear_superseded,
    migrate,
    migrating_folder,
    prepare,
    switch,
)
from dsearch.engine.maintenance.verify import Recovered, Verified, accept_loss, verify_collection
from dsearch.engine.options import ENGLISH, KeyOptions, require_language, tokenizer_for
from dsearch.engine.rebuild import MINIMUM, check_rebuild
from dsearch.errors import CollectionExists, Conflict, Unavailable
from dsearch.hints import Command
from dsearch.store import Store, validate_name
from dsearch.store.backup import name_of_backup
from dsearch.store.folders import aside, publish, require_empty

_log = logging.getLogger(__name__)


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
        next_encoder: gives another encoder: that of collections which were encoded by it already, and the one
            that `migrate` encodes by.

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
        next_encoder: Callable[[], TextEncoder] | None = None,
    ):
        self.home = Home(Path(home))
        self.readonly = readonly
        self._encoders = HomeEncoders(encoder, next_encoder)
        self.query_cache = QueryCache(query_cache_bytes)
        self._open: dict[str, Collection] = {}
        self._opening = threading.RLock()  # two threads that ask for one collection get the same
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

    def names(self) -> list[str]:
        """Return the names of the collections, sorted."""
        return self.home.names()

    def damaged(self) -> list[str]:
        """Return the open collections whose index is known to be damaged, sorted; reads no file."""
        return sorted(
            name for name, one in self._open.copy().items() if one.verification["state"] == "damaged"
        )

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

    def create(
        self,
        name: str,
        *,
        dimension: int | None = None,
        keys: KeyOptions | None = None,
        language: str = ENGLISH,
        passages: PassageOptions | None = None,
    ) -> Collection:
        """Make a collection, empty and searchable.

        Args:
            name: its name.
            dimension: for embeddings that the caller gives, of anything (`Collection.upsert` with
                `embeddings`), and no encoder; None for texts that the engine's encoder encodes.
            keys: how the keys of its generations are kept; compared exactly when None.
            language: whose stems and stop words keyword search knows, one of `dsearch.index.languages()`;
                "none" leaves every word as it is.
            passages: how documents longer than the encoder's window are cut; into passages as long as the
                window when None.

        Raises:
            CollectionExists, InvalidRequest (not a name or a language), Conflict (opened readonly).
        """
        self._require_writable()
        folder = self.home.folder(name)
        self._require_free(name, "use it, or another name")
        tokenizer_for(language)  # before anything of the collection is there
        cutting = None
        if dimension is None:
            identity = self.encoder.identity
            cutting = (passages or PassageOptions()).cutting(self.encoder)
        else:
            identity = given_identity(dimension)
        require_empty(folder)
        with aside(self.home.path) as unfinished:
            made = unfinished / name
            with Store.create(
                made,
                name=name,
                encoder=identity.to_dict(),
                dimension=identity.dimension,
                passages=None if cutting is None else cutting.to_dict(),
            ) as store:
                build_generation(store, keys=keys, language=language)
            publish(made, folder)  # killed before, there is no collection; after, one that can be searched
        return self.collection(name)

    def collection_or_new(
        self,
        name: str,
        *,
        language: str | None = None,
        passages: PassageOptions | None = None,
        kind: str | None = None,
    ) -> Collection:
        """Return the collection of this name or alias, created if it does not exist; see `create`.

        Raises:
            InvalidRequest: not a kind in which keys are kept.
            Conflict: it is there, for another language, with other passages, or with keys of another kind.
        """
        keys = None if kind is None else KeyOptions(kind)
        if name not in self.names() and name not in self.aliases():
            return self.create(name, keys=keys, language=language or ENGLISH, passages=passages)
        found = self.collection(name)
        require_language(found.store, language)
        if kind is not None and (there := KeyOptions.of(found.store).kind) != kind:
            raise Conflict(
                f"collection {found.name!r} keeps its keys as {there}, not as {kind}; change that",
                hint=Command("refresh", ("-c", found.name, "--kind", kind)),
            )
        if passages is not None:
            passages.require(found.store)
        return found

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it.

        Raises:
            CollectionNotFound, Conflict (opened readonly, or an alias stands for it).
        """
        self._require_writable()
        self.home.existing(name)
        if standing := [alias for alias, target in self.aliases().items() if target == name]:
            raise Conflict(
                f"alias {', '.join(standing)} stands for collection {name!r}; point it elsewhere first"
            )
        if collection := self._open.pop(name, None):
            collection.close()
        self._encoders.forget(name)
        shutil.rmtree(migrating_folder(self.home, name), ignore_errors=True)
        self.home.remove(name)

    # ---- copies

    def verify(self, name: str) -> Verified:
        """Read all data of a collection again and verify it against its digests, and index against store.

        Damage is reported, not raised, and hinders nobody who reads or writes meanwhile.

        Raises:
            CollectionNotFound, InvalidRequest (not a name).
        """
        return verify_collection(self.home.existing(self.aliases().get(name, name)))

    def recover(self, name: str, on_progress: OnProgress | None = None) -> Recovered:
        """Continue a collection that lost acknowledged writes with the documents that remain.

        Its index is built anew. A collection that lacks nothing stays as it is.

        Raises:
            CollectionNotFound, InvalidRequest (not a name), Conflict (opened readonly).
            CorruptData: the database itself cannot be read.
        """
        self._require_writable()
        name = self.aliases().get(name, name)
        with self._opening:
            # What is open lacks nothing.
            loss = None if name in self._open else accept_loss(self.home.existing(name))
            collection = self.collection(name)
        if loss is not None:  # the index may have documents that are lost
            collection.refresh(on_progress)
        return Recovered(name, loss, collection.describe().documents)

    def backup(self, name: str, path: Path) -> Backup:
        """Copy a collection into the new folder `path`, whole or not at all, while writes and searches go on.

        In it are, of one operation, the documents with their embeddings, and the live generation; the trained
        models; and the feedback.

        Raises:
            CollectionNotFound, Conflict (something lies at `path`, or it is in this home), CorruptData (a
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
            CorruptData: documents or models are not what was written; nothing was restored.
            Conflict: opened readonly.
        """
        self._require_writable()
        name = validate_name(name_of_backup(backup))
        self._require_free(name, "a backup keeps its name; restore it into another home, or remove that")
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
        on_progress: OnProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Migrated:
        """Encode a collection with another encoder beside the live one, then replace it at once (migrate.py).

        Searches and writes go on meanwhile; one that is at work at the moment of the switch may be told to
        try again (Unavailable). Trained models stay behind. Interrupted and called again it goes on.

        Args:
            name: the collection.
            encoder: the new one; `next_encoder` when None. Here it serves this collection from then on.
            passages: how documents longer than its window are cut; into passages as long as that when None.
            on_progress: told of reading, encoding and building.
            cancelled: asked now and then.

        Raises:
            CollectionNotFound, EncoderMismatch (its embeddings are given), Cancelled, InsufficientStorage,
            Conflict (that encoder is its encoder; opened readonly).
        """
        self._require_writable()
        source = self.collection(name)
        new = self.next_encoder if encoder is None else encoder
        migrated = migrate(
            self.home, source, new, passages=passages, on_progress=on_progress, cancelled=cancelled
        )
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
    ) -> Migrated | None:
        """Run the second part: the switch. None if too much has changed since; then prepare it again.

        Args:
            name: the collection.
            prepared: what the first part gave.
            close: closes the replaced one, when nobody asks it any more.
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
            CorruptData: the file of aliases is not what was written.
        """
        return read_aliases(self.home.path)

    def set_alias(self, alias: str, name: str) -> str | None:
        """Point `alias` at collection `name`, whatever it pointed at: one rename of one file.

        Returns:
            What it stood for; None where there was no such alias.

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

    def _opened(self, folder: Path) -> Collection:
        store = Store.open(folder, readonly=self.readonly)
        try:
            closed = take_clean_close(store)
        except OSError as error:
            store.close()
            raise Unavailable(f"{folder}: cannot be opened for writing ({error})") from error
        if not self.readonly:
            clear(store)
            tidy(store)
        opened = self._collection(store, closed)
        if loss := opened.feedback.loss():  # clicks are missing, documents are not: say it and go on
            _log.warning("%s", loss)
        return opened

    def _replace(
        self, old: Collection, encoder: TextEncoder, folder: Path, close: Callable[[Collection], None]
    ) -> None:
        """Replace `old` by the collection in `folder`, once its index is loaded."""
        self._encoders.migrated(old.name, encoder)
        try:
            made = self._opened(folder)
            _ = made.snapshot
        except BaseException:
            self._open.pop(old.name, None)  # the next access reports the damage
            raise
        with self._opening:
            self._open[old.name] = made
        close(old)
        clear_superseded(self.home)

    def _collection(self, store: Store, closed: CleanClose | None) -> Collection:
        share, minimum = (None, MINIMUM) if self.readonly else self._rebuild
        return Collection(
            store,
            self._encoders.of(store),  # a replaced edition keeps its own while it is in use
            self.query_cache,
            closed=closed,
            rebuild_share=share,
            rebuild_minimum=minimum,
        )

    def _require_free(self, name: str, advice: str) -> None:
        if name in self.names():
            raise CollectionExists(f"collection {name!r} exists in {self.home.path}; {advice}")
        if target := self.aliases().get(name):
            raise CollectionExists(f"{name!r} is an alias of {target!r}; {advice}")

    def _require_writable(self) -> None:
        if self.readonly:
            raise Conflict(f"{self.home.path} was opened with readonly=True; open it for writing")
