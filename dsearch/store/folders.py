"""Collections as folders of a home: atomic creation, listing, atomic deletion.

Creation and deletion use a sibling folder whose name starts with a dot, unlike any collection's: it is filled
and then renamed, or renamed and then emptied. The next creation or deletion removes the leftovers of a
killed process.

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
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dsearch.errors import CollectionExists, CollectionNotFound, Conflict, InvalidRequest
from dsearch.store.sqlite.connection import connect, readable_errors
from dsearch.store.sqlite.digest import add_facts, canonical_json
from dsearch.store.sqlite.schema import APPLICATION_ID, FILE_NAME, CollectionMeta, create_tables
from dsearch.store.sqlite.watermark import Watermark, WatermarkEntry, create_watermark, sync_folder
from dsearch.store.validate import is_name, validate_name

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
