"""Collections as folders of a home: made whole or not at all, listed, deleted whole or not at all.

Both ways lead through a folder beside the others whose name starts with a dot, which no collection's can: it
is filled and then renamed, or renamed and then emptied. What a kill leaves of it is swept away by the next
creation or deletion.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CollectionExists, CollectionNotFound, Conflict, InvalidRequest
from .connect import connect, readable_errors
from .digest import add_facts, canonical_json
from .schema import APPLICATION_ID, FILE_NAME, Meta, create_tables
from .validate import is_name, validate_name
from .watermark import Mark, Watermark, create_watermark, sync_folder

MAX_DIMENSION = 16_384
_ASIDE = ".aside-"


def collection_names(home: Path) -> list[str]:
    """The names of the collections in a home, sorted; none when there is no such folder."""
    if not home.is_dir():
        return []
    return sorted(path.name for path in home.iterdir() if is_name(path.name) and (path / FILE_NAME).is_file())


def create_collection(path: Path, meta: Meta) -> None:
    """Lay out an empty collection in folder `path` and sync it; see `Store.create` for the errors."""
    validate_name(meta.name)
    if not 1 <= meta.dimension <= MAX_DIMENSION:
        raise InvalidRequest(f"dimension={meta.dimension}; use 1 to {MAX_DIMENSION}")
    try:
        canonical_json(meta.encoder)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the encoder's identity is not JSON ({error})") from None
    if (path / FILE_NAME).exists():
        raise CollectionExists(f"collection {meta.name!r} stands already; choose another name or delete it")
    require_empty(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with aside(path.parent) as folder:
        _fill(folder, meta)
        publish(folder, path)


def require_empty(path: Path) -> None:
    """Raises Conflict when there is something at `path` that is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Conflict(f"{path} has other files in it; choose another folder or empty that one")


def delete_collection(path: Path) -> None:
    """Delete a collection with all that its folder holds: gone by one rename, then the space is freed.

    Raises CollectionNotFound, and HomeLocked while it is open for writing.
    """
    if not (path / FILE_NAME).is_file():
        raise CollectionNotFound(f"no collection in {path}; nothing was deleted")
    lock = Watermark(path, replace_unreadable=True)  # a damaged collection may be deleted, too
    try:
        with aside(path.parent) as folder:
            os.rename(path, folder)  # over an empty folder
            sync_folder(path.parent)
    finally:
        lock.close()


def publish(folder: Path, path: Path) -> None:
    """Give a folder whose content was synced the name under which it is looked for."""
    os.rename(folder, path)
    sync_folder(path.parent)


@contextmanager
def aside(home: Path) -> Generator[Path]:
    """An empty folder, removed at the end unless it was renamed; locked, so that nobody sweeps it away."""
    for path in home.glob(f"{_ASIDE}*"):
        _sweep(path)
    folder = home / f"{_ASIDE}{secrets.token_hex(8)}"
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _sweep(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return  # gone meanwhile
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # at work
    finally:
        os.close(lock)


def _fill(folder: Path, meta: Meta) -> None:
    digest = add_facts(bytes(32), meta.fact)
    with readable_errors(folder):
        connection = connect(folder, writer=True, create=True)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            create_tables(connection, meta, digest)
        finally:
            connection.close()  # the last one to close folds the write-ahead log into the database
    create_watermark(folder, Mark(0, digest))
    sync_folder(folder)
