"""The home: the folder of the collections, its write lock, aliases and encoders.

The lock admits one writing process at a time.

An alias is a second name of a collection; moving it to another collection is atomic.
Aliases are stored in one small file, `aliases.json`, with its own digest. A change is one rename of that
file, so a reader sees all of it or none of it.

`HomeEncoders` holds the encoder that the collections of a home share, and the encoder that they migrate to. A
collection whose embeddings the caller supplies has none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dsearch.encoder import EncoderIdentity, TextEncoder
from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Command,
    CorruptData,
    EncoderMismatch,
    HomeLocked,
    InvalidRequest,
    NotFound,
    Unavailable,
    UnsupportedFormat,
)
from dsearch.index.durable import replace_file, whole_or_gone
from dsearch.store import Store, validate_name
from dsearch.store.sqlite.schema import DOCUMENTS, FILE_NAME
from dsearch.store.sqlite.watermark import sync_folder
from dsearch.store.validate import is_name

LOCK_NAME = "LOCK"
DELETED = ".deleted"  # ends the name of a folder that is being deleted
_HOLDER_NAME = "LOCK.holder"  # a separate file, since some systems cannot read a locked one

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class Home:
    """A folder of collections.

    Args:
        path: the folder; created with the first collection.

    Attributes:
        naming: lock of the process's threads; held while a name or an alias is taken or freed.

    Raises:
        InvalidRequest: the address of a server.
    """

    def __init__(self, path: Path):
        if path.parts[:1] in (("http:",), ("https:",)):  # a path has one slash where an address has two
            address = str(path).replace(":/", "://", 1)
            raise InvalidRequest(
                f"{address!r} is an address, not a folder; use dsearch.Client, and for a layer "
                "dsearch.RemoteSearch"
            )
        self.path = path
        self._lock = FileLock(path / LOCK_NAME, thread_local=False)  # any thread may ask, and close
        self.naming = threading.Lock()

    def folder(self, name: str) -> Path:
        """Return the folder of collection `name`, which need not exist.

        Raises:
            InvalidRequest: `name` is not a valid collection name. Names never resolve to other paths.
        """
        validate_name(name)
        return next(iter(reversed(self.editions(name))), self.path / name)

    def editions(self, name: str) -> list[Path]:
        """Return the folders of collection `name`; the last and newest is the collection.

        A migration adds `papers@2` beside `papers`, which is then deleted (migrate.py).
        """
        numbered = [(1, self.path / name)]
        for folder in self.path.glob(f"{name}@*"):
            number = folder.name.removeprefix(f"{name}@")
            if _NUMBER.fullmatch(number):
                numbered.append((int(number), folder))
        return [folder for _, folder in sorted(numbered) if _holds_collection(folder)]

    def existing(self, name: str) -> Path:
        """Return the folder of the existing collection `name`.

        Raises:
            CollectionNotFound: no such collection; the message lists the existing ones.
        """
        folder = self.folder(name)
        if not _holds_collection(folder):
            names = self.names()
            listing = f"there are: {', '.join(names)}" if names else "there is none yet"
            raise CollectionNotFound(
                f"no collection {name!r} in {self.path}; {listing}. Make one",
                hint=Command("index", ("SOURCE", "-c", name)),
            )
        return folder

    def names(self) -> list[str]:
        """Return the names of the collections, sorted."""
        if not self.path.is_dir():
            return []
        names: set[str] = set()
        for folder in self.path.iterdir():
            name, at, number = folder.name.partition("@")
            named = is_name(name) and (not at or _NUMBER.fullmatch(number) is not None)
            if named and _holds_collection(folder):
                names.add(name)
        return sorted(names)

    def require_free(self, name: str, advice: str) -> None:
        """Raise CollectionExists if a collection or an alias has this name."""
        if name in self.names():
            raise CollectionExists(f"collection {name!r} exists in {self.path}; {advice}")
        if target := read_aliases(self.path).get(name):
            raise CollectionExists(f"{name!r} is an alias of {target!r}; {advice}")

    def remove(self, name: str) -> None:
        """Delete collection `name`, durably; for the writing process only."""
        for edition in self.editions(name):  # the newest, which is the collection, last
            # Renamed first: a crash leaves no partial collection under the name.
            doomed = edition.with_name(f".{name}{DELETED}")
            shutil.rmtree(doomed, ignore_errors=True)
            edition.rename(doomed)
            sync_folder(self.path)
            shutil.rmtree(doomed)

    @property
    def locked(self) -> bool:
        """True if this object holds the lock."""
        return self._lock.is_locked

    def require_locked(self) -> None:
        """Return if this object holds the lock: another process may write since it was released.

        Raises:
            Unavailable.
        """
        if not self.locked:
            raise Unavailable(f"{self.path} was closed; open it again")

    def lock(self) -> None:
        """Lock the home for writing, until `unlock` or the end of the process.

        Raises:
            HomeLocked: another process writes; the message names it.
            InvalidRequest: the folder cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise self._locked() from None
        except OSError as error:
            raise InvalidRequest(
                f"{self.path} cannot hold collections ({error}); give a folder that can be written, "
                "by --home or DSEARCH_HOME"
            ) from error
        self._write_holder(None)

    def announce(self, url: str) -> None:
        """Publish the address of the server that holds the lock."""
        if self.locked:
            self._write_holder(url)

    def unlock(self) -> None:
        """Release the lock; safe to call twice."""
        if self._lock.is_locked:
            (self.path / _HOLDER_NAME).unlink(missing_ok=True)
            self._lock.release()

    def _write_holder(self, url: str | None) -> None:
        """Say who holds the lock. A full disk prevents that, not the lock: a drop frees space."""
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:3]]),
            "url": url,
        }
        written = self.path / f"{_HOLDER_NAME}.{os.getpid()}"
        try:
            written.write_text(json.dumps(holder))
            written.replace(self.path / _HOLDER_NAME)  # atomic for readers
        except OSError:
            for unfinished in (written, self.path / _HOLDER_NAME):  # the latter names an earlier process
                unfinished.unlink(missing_ok=True)

    def _locked(self) -> HomeLocked:
        """Create the error of a locked home, with the address of the server that holds the lock."""
        holder, url, said = {}, None, "another process"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads((self.path / _HOLDER_NAME).read_text())
            said = f"process {holder['pid']} on {holder['host']} ({holder['command']})"
            if holder["host"] == socket.gethostname() and isinstance(holder["url"], str):
                url = holder["url"]
        serving = "" if url is None else f", which serves it at {url}"
        error = HomeLocked(
            f"{self.path} is being written by {said}{serving}; wait for it or stop it. "
            f"While `dsearch serve` runs, write through its HTTP API"
        )
        error.url = url
        return error


def _holds_collection(folder: Path) -> bool:
    """Return True for a collection, even one whose documents are lost: damage must be reported."""
    return (folder / FILE_NAME).is_file() or (folder / DOCUMENTS.watermark).is_file()


ALIASES_FILE = "aliases.json"
FORMAT = 1


def read_aliases(home: Path) -> dict[str, str]:
    """Read the map from alias to collection.

    Raises:
        CorruptData: the file is damaged.
        UnsupportedFormat: written by a newer release.
    """
    path = home / ALIASES_FILE
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        digest = content.pop("digest")
        intact = digest == _digest(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptData(f"{path}: cannot be read ({error}); {_REMEDY}", hint=_SET) from error
    if not intact:
        raise CorruptData(f"{path}: changed since it was written; {_REMEDY}", hint=_SET)
    if content["format"] != FORMAT:
        raise UnsupportedFormat(f"{path}: format {content['format']}; this release reads {FORMAT}")
    return content["aliases"]


def set_alias(home: Home, alias: str, name: str) -> str | None:
    """Point `alias` at collection `name`; return its previous collection, or None.

    For the writing process only, as all changes here.

    Raises:
        CollectionNotFound, InvalidRequest (not a name), CollectionExists (a collection is called so),
        InsufficientStorage, Unavailable (the disk).
    """
    home.folder(alias)  # checks the name
    with home.naming:
        home.existing(name)
        if alias in home.names():
            raise CollectionExists(f"collection {alias!r} is there; use another name for the alias")
        aliases = read_aliases(home.path)
        _write(home.path, {**aliases, alias: name})
        return aliases.get(alias)


def drop_alias(home: Home, alias: str) -> None:
    """Remove an alias; the collection stays.

    Raises:
        NotFound, InsufficientStorage, Unavailable.
    """
    with home.naming:
        aliases = read_aliases(home.path)
        if alias not in aliases:
            listing = f"there are: {', '.join(aliases)}" if aliases else "there is none"
            raise NotFound(f"no alias {alias[:80]!r}; {listing}")
        del aliases[alias]
        _write(home.path, aliases)


def _write(home: Path, aliases: Mapping[str, str]) -> None:
    """Replace all aliases, durably and atomically."""
    content: dict[str, Any] = {"format": FORMAT, "aliases": dict(sorted(aliases.items()))}
    text = json.dumps({**content, "digest": _digest(content)}, indent=1) + "\n"
    with whole_or_gone(problem=f"{home / ALIASES_FILE}: the aliases are as they were"):
        replace_file(home / ALIASES_FILE, text.encode())


_REMEDY = "delete the file and set the aliases again"
_SET = Command("alias", ("NAME", "COLLECTION"))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class HomeEncoders:
    """Loads each encoder once, on first use.

    Args:
        own: loads the encoder of the home.
        following: loads the encoder that collections migrate to; `own` when None.
    """

    def __init__(
        self,
        own: Callable[[], TextEncoder],
        following: Callable[[], TextEncoder] | None = None,
    ):
        self._lock = threading.RLock()
        self._load_own, self._load_following = own, following
        self._own: TextEncoder | None = None
        self._following: TextEncoder | None = None
        self._migrated: dict[str, TextEncoder] = {}

    @property
    def own(self) -> TextEncoder:
        """Encoder of the home."""
        with self._lock:
            if self._own is None:
                self._own = self._load_own()
            return self._own

    @property
    def following(self) -> TextEncoder:
        """Encoder that collections migrate to, by default `own`."""
        with self._lock:
            if self._load_following is None:
                return self.own
            if self._following is None:
                self._following = self._load_following()
            return self._following

    def migrated(self, name: str, encoder: TextEncoder) -> None:
        """Open collection `name` with this encoder from now on."""
        self._migrated[name] = encoder

    def forget(self, name: str) -> None:
        """Forget the encoder of a deleted collection."""
        self._migrated.pop(name, None)

    def of(self, store: Store) -> Callable[[], TextEncoder]:
        """Return the loader of a collection's encoder.

        It is the available encoder of the same identity, by default `own`; the collection checks that it
        fits.
        """
        migrated = self._migrated.get(store.name)
        if migrated is not None:
            return lambda: migrated
        return cache(lambda: self._at_hand(EncoderIdentity.from_dict(store.encoder)))

    def _at_hand(self, identity: EncoderIdentity) -> TextEncoder:
        if self._load_following is None or identity.same(self.own.identity):
            return self.own
        return self.following if identity.same(self.following.identity) else self.own


_BACKEND = "given"


def given_identity(dimension: int) -> EncoderIdentity:
    """Return the identity that stands for the encoder of a collection with supplied embeddings.

    Raises:
        InvalidRequest: a dimension below 1.
    """
    if dimension < 1:
        raise InvalidRequest(f"dimension={dimension}; use the length of your embeddings, 1 or more")
    return EncoderIdentity(
        name="given",
        revision="",
        weights_sha256="",
        pooling="",
        max_tokens=0,
        backend=_BACKEND,
        dtype="float32",
        dimension=dimension,
    )


def is_given(store: Store) -> bool:
    """Return True if the caller supplies the embeddings of this collection."""
    return store.encoder.get("backend") == _BACKEND


def require_encoder(store: Store) -> None:
    """Raise EncoderMismatch for a collection with supplied embeddings; names the alternatives."""
    if is_given(store):
        raise EncoderMismatch(
            f"collection {store.name!r} has no encoder: its embeddings are given. Search it with a vector or "
            "with mode='keyword', and write to it with an embedding for each document"
        )
