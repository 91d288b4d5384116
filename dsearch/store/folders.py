"""Collections as folders of a home: atomic creation, listing, atomic deletion; backups and their restoration.

Creation and deletion use a sibling folder whose name starts with a dot, unlike any collection's: it is filled
and then renamed, or renamed and then emptied. The next creation or deletion removes the leftovers of a
killed process.

A backup is a collection folder: the database as of one operation, a matching watermark, and files that the
caller adds (trained heads; generations can be rebuilt). It is taken while the collection is written to, and
appears under its name atomically, after every byte was synced.

Network file systems are rejected, because the store cannot keep its promises there. SQLite's log uses shared
memory and the locks of one kernel, which do not work over a network ("All processes using a database must be
on the same host computer; WAL does not work over a network filesystem", SQLite's documentation of its
write-ahead log), and an fsync there depends on the server.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from dsearch.errors import CollectionExists, CollectionNotFound, Conflict, CorruptData, InvalidRequest
from dsearch.store.records import BackupReport
from dsearch.store.sqlite.connection import ReaderPool, connect, readable_errors
from dsearch.store.sqlite.digest import add_facts, canonical_json
from dsearch.store.sqlite.schema import (
    APPLICATION_ID,
    FILE_NAME,
    CollectionMeta,
    create_tables,
    read_meta,
    read_state,
)
from dsearch.store.sqlite.watermark import (
    Watermark,
    WatermarkEntry,
    check_reading,
    create_watermark,
    read_watermark,
    sync_file,
    sync_folder,
)
from dsearch.store.validate import is_name, validate_name
from dsearch.store.verify import verify

MAX_DIMENSION = 16_384
_ASIDE = ".aside-"


def collection_names(home: Path) -> list[str]:
    """Return the names of the collections in a home, sorted; none for a missing folder."""
    if not home.is_dir():
        return []
    return sorted(path.name for path in home.iterdir() if is_name(path.name) and (path / FILE_NAME).is_file())


def create_collection(path: Path, meta: CollectionMeta) -> None:
    """Create an empty collection in folder `path` and sync it; errors as for `Store.create`."""
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
    """Raise Conflict if `path` exists and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Conflict(f"{path} has other files in it; choose another folder or empty that one")


def delete_collection(path: Path) -> None:
    """Delete a collection with its folder: one rename, then the space is freed.

    Raises CollectionNotFound, and HomeLocked while it is open for writing.
    """
    if not (path / FILE_NAME).is_file():
        raise CollectionNotFound(f"no collection in {path}; nothing was deleted")
    lock = Watermark(path, create=True)  # a damaged collection may be deleted, too
    try:
        with aside(path.parent) as folder:
            os.rename(path, folder)  # replaces an empty folder
            sync_folder(path.parent)
    finally:
        lock.close()


def publish(folder: Path, path: Path) -> None:
    """Rename a synced folder to its final name."""
    os.rename(folder, path)
    sync_folder(path.parent)


@contextmanager
def aside(home: Path) -> Generator[Path]:
    """Create an empty folder, locked against cleanup, and remove it at the end unless it was renamed."""
    for path in home.glob(f"{_ASIDE}*"):
        _sweep(path)
    folder, lock = _locked_folder(home)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(home: Path) -> tuple[Path, int]:
    """Create a folder and lock it; begin anew if another process has swept it away before it was locked."""
    while True:
        folder = home / f"{_ASIDE}{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for a sweep to end
            if folder.exists():
                return folder, lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _sweep(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return  # removed meanwhile
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # in use
    finally:
        os.close(lock)


def _fill(folder: Path, meta: CollectionMeta) -> None:
    digest = add_facts(bytes(32), meta.fact)
    with readable_errors(folder):
        connection = connect(folder, writer=True, create=True)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            create_tables(connection, meta, digest)
        finally:
            connection.close()  # the last connection checkpoints the write-ahead log
    create_watermark(folder, WatermarkEntry(0, digest))
    sync_folder(folder)


MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)


def require_local_disk(path: Path) -> None:
    """Return if the folder of `path` is on a local disk, or if that is unknown.

    Raises:
        InvalidRequest: it is on a network file system; the message names its kind.
    """
    existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    kind = _kind_of(existing)
    if kind in NETWORK:
        raise InvalidRequest(
            f"{path} is on a network file system ({kind}), on which acknowledged writes can be lost; use a "
            "folder on a disk of this machine, and `dsearch backup` to bring copies elsewhere"
        )


def _kind_of(path: Path) -> str | None:
    """Return the type of the file system of an existing path; None if unknown."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        # "36 35 98:0 /root /mount options optional… - type source options"; see proc(5)
        fields, _, described = line.partition(" - ")
        if fields.split()[2:3] == [wanted]:
            return described.split(" ", 1)[0]
    return None


AddFiles = Callable[[Path], object]

_SHARED_MEMORY = f"{FILE_NAME}-shm"  # SQLite's, valid on one machine only


def back_up_collection(readers: ReaderPool, path: Path, add_files: AddFiles | None) -> BackupReport:
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


def restore_collection(path: Path, copy: Path) -> None:
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
