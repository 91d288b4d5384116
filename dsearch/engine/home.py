"""The home: the folder that holds collections, and the lock that lets one process at a time write to it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from dsearch.errors import CollectionNotFound, HomeLocked
from dsearch.store import validate_name
from dsearch.store.schema import FILE_NAME

LOCK_NAME = "LOCK"
_HOLDER_NAME = "LOCK.holder"  # beside the lock: a locked file cannot be read everywhere


class Home:
    """A folder of collections.

    Args:
        path: the folder; made when the first collection is.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = FileLock(path / LOCK_NAME)

    def folder(self, name: str) -> Path:
        """Where collection `name` lies or would lie.

        Raises:
            InvalidRequest: not a collection's name; names never become other paths.
        """
        return self.path / validate_name(name)

    def existing(self, name: str) -> Path:
        """Where collection `name` lies.

        Raises:
            CollectionNotFound: it is not there; the message lists those that are.
        """
        folder = self.folder(name)
        if not (folder / FILE_NAME).is_file():
            there = self.names()
            known = f"there are: {', '.join(there)}" if there else "there is none yet"
            raise CollectionNotFound(
                f"no collection {name!r} in {self.path}; {known}. "
                f"Make one with: dsearch index SOURCE -c {name}"
            )
        return folder

    def names(self) -> list[str]:
        """The collections, sorted."""
        if not self.path.is_dir():
            return []
        return sorted(entry.parent.name for entry in self.path.glob(f"*/{FILE_NAME}"))

    @property
    def locked(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock.is_locked

    def lock(self) -> None:
        """Become the one process that writes here, until `unlock` or the end of the process.

        Raises:
            HomeLocked: another process is; the message says which.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise HomeLocked(
                f"{self.path} is being written by {self._holder()}; wait for it or stop it. "
                f"While `dsearch serve` runs, write through its HTTP API"
            ) from None
        holder = {"pid": os.getpid(), "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:3]])}
        (self.path / _HOLDER_NAME).write_text(json.dumps(holder))

    def unlock(self) -> None:
        """Let others write; safe to call twice."""
        if self._lock.is_locked:
            (self.path / _HOLDER_NAME).unlink(missing_ok=True)
            self._lock.release()

    def _holder(self) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads((self.path / _HOLDER_NAME).read_text())
            return f"process {holder['pid']} ({holder['command']})"
        return "another process"
