"""Durable writes: bytes are on the disk when the function returns, and digests verify them later.

Every file of a generation that must survive a power cut is written here: files are synced first, then their
folders, then the rename that makes them visible, then the parent folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from dsearch.errors import InsufficientStorage, Unavailable

FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_error(error: OSError, problem: str) -> InsufficientStorage | Unavailable:
    """The error to raise for one of the file system: what could not be done, why, and what to do."""
    full = error.errno in FULL
    return (InsufficientStorage if full else Unavailable)(
        f"{problem} ({error.strerror or error}); {'free space on' if full else 'check'} the home's disk, "
        "then send it again"
    )


@contextmanager
def whole_or_gone(*places: Path, problem: str) -> Generator[None]:
    """Remove files and folders if the block that writes them raises; a full disk would stay full of them.

    Args:
        places: the files and folders.
        problem: start of the message: "the file could not be kept".

    Raises:
        InsufficientStorage: the disk is full.
        Unavailable: it cannot be written.
    """
    try:
        yield
    except BaseException as error:  # a client that left, too
        for place in places:
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise disk_error(error, problem) from error
        raise


def file_digest(path: Path) -> tuple[int, str]:
    """Return (size in bytes, SHA-256 in hex) of a file, read once."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below `folder`, in sorted order."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def sync_file(path: Path) -> None:
    """Sync a file's content to disk. An error is not retried, because the bytes may be lost."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Every file below `folder`, then every folder, the deepest first, then `folder` itself."""
    for path in files_below(folder):
        sync_file(path)
    below = [path for path in folder.rglob("*") if path.is_dir()]
    for path in sorted(below, key=lambda path: len(path.parts), reverse=True):
        sync_folder(path)
    sync_folder(folder)


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of a file, synced before it has the name: at once or not at all."""
    unfinished = path.with_name(f".{path.name}.writing")
    try:
        unfinished.write_bytes(content)
        sync_file(unfinished)
        unfinished.rename(path)
    except BaseException:  # a full disk would stay full of it
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def publish_folder(unfinished: Path, final: Path) -> None:
    """Make a finished folder visible under its final name, atomically."""
    sync_tree(unfinished)
    os.rename(unfinished, final)
    sync_folder(final.parent)
    sync_folder(final.parent.parent)  # the parent folder may be new too
