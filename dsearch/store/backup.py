"""Back up a collection while it is written to, and restore a checked copy as a collection.

A backup is a collection folder: the database as of one operation, a matching watermark, and files that the
caller adds (trained heads; generations can be rebuilt). It appears under its name atomically, after every
byte was synced.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from dsearch.errors import CollectionExists, CollectionNotFound, Conflict, CorruptData
from dsearch.store.folders import aside, publish
from dsearch.store.records import BackupReport
from dsearch.store.sqlite.connection import ReaderPool, readable_errors
from dsearch.store.sqlite.schema import FILE_NAME, read_meta, read_state
from dsearch.store.sqlite.watermark import (
    WatermarkEntry,
    check_reading,
    create_watermark,
    read_watermark,
    sync_file,
    sync_folder,
)
from dsearch.store.verify import verify

AddFiles = Callable[[Path], object]

_SHARED_MEMORY = f"{FILE_NAME}-shm"  # SQLite's, valid on one machine only


def backup(readers: ReaderPool, path: Path, add_files: AddFiles | None) -> BackupReport:
    """Copy the present state into the new folder `path`; see `Store.backup`."""
    if path.exists():
        raise Conflict(f"{path} stands already; give each backup a folder of its own")
    path.parent.mkdir(parents=True, exist_ok=True)
    with readable_errors(path), aside(path.parent) as folder:
        with readers.reading() as source:
            state = read_state(source)  # fixes the state that this connection reads
            copy = sqlite3.connect(folder / FILE_NAME)
            try:
                source.backup(copy)
            finally:
                copy.close()
        create_watermark(folder, WatermarkEntry(state.sequence, state.digest))
        if add_files is not None:
            add_files(folder)
        sync_all(folder)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        publish(folder, path)
    return BackupReport(state.sequence, state.documents, size)


def restore(path: Path, copy: Path) -> None:
    """Restore the backup in folder `copy`, with all its files, to the new collection folder `path`.

    Every digest is verified first (CorruptData). The collection keeps its name, so `path` should have it too.
    Generations without files in the backup must be rebuilt. Raises CollectionNotFound, CollectionExists.
    """
    if not (copy / FILE_NAME).is_file():
        raise CollectionNotFound(f"no backup in {copy}; give the folder that a backup was written to")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CollectionExists(f"{path} stands already; restore to another name, or delete that one first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with readable_errors(path), aside(path.parent) as folder:
        shutil.copytree(copy, folder, dirs_exist_ok=True, ignore=_left_out)
        _check(folder, copy)
        sync_all(folder)
        publish(folder, path)


def name_of_backup(path: Path) -> str:
    """Return the name of a backup's collection; raises CollectionNotFound, CorruptData, UnsupportedFormat."""
    if not (path / FILE_NAME).is_file():
        raise CollectionNotFound(f"no backup in {path}; give the folder that a backup was written to")
    readers = ReaderPool(path)
    try:
        with readers.reading() as connection:
            return read_meta(connection).name
    except (KeyError, ValueError) as error:
        raise CorruptData(f"the backup in {path} is damaged ({error!r}); use another backup") from None
    finally:
        readers.close()


def copy_database(source: Path, target: Path) -> None:
    """Copy one state of an SQLite database while others write to it."""
    with readable_errors(source.parent):
        reading = sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=rw", uri=True)
        try:
            writing = sqlite3.connect(target)
            try:
                reading.backup(writing)
            finally:
                writing.close()
        finally:
            reading.close()


def sync_all(folder: Path) -> None:
    """Flush every file below a folder, and the folders, to the medium."""
    for path in sorted(folder.rglob("*"), reverse=True):  # content before its folder
        if path.is_dir():
            sync_folder(path)
        else:
            with open(path, "rb") as file:
                sync_file(file.fileno())
    sync_folder(folder)


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Return the names in a backup's folder to skip; raises CorruptData for entries that no backup has.

    A link would copy files from elsewhere, and reading a pipe would block.
    """
    for path in (Path(folder) / name for name in names):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise CorruptData(
                f"{path} is neither a file nor a folder, so not of a backup; nothing was restored: "
                "remove it, or use another backup"
            )
    return {_SHARED_MEMORY}


def _check(folder: Path, copy: Path) -> None:
    """Check the database of an unused folder against its watermark and its digests."""
    readers = ReaderPool(folder)
    try:
        marks = read_watermark(folder)
        with readers.reading() as connection:
            check_reading(connection, folder, before=marks)
            damage = verify(connection).damage
    finally:
        readers.close()  # checkpoints a copied write-ahead log into the database
    if damage:
        raise CorruptData(
            f"the backup in {copy} is damaged ({len(damage)} findings, the first: {damage[0]}); "
            "nothing was restored: use another backup"
        )
