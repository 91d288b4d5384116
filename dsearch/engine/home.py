"""The home: the folder that holds collections, and the lock that lets one process at a time write to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from dsearch.errors import CollectionNotFound, HomeLocked
from dsearch.store import validate_name
from dsearch.store.schema import FILE_NAME
from dsearch.store.validate import is_name
from dsearch.store.watermark import DOCUMENTS

LOCK_NAME = "LOCK"
_HOLDER_NAME = "LOCK.holder"  # beside the lock: a locked file cannot be read everywhere

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


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
        validate_name(name)
        return next(iter(reversed(self.editions(name))), self.path / name)

    def editions(self, name: str) -> list[Path]:
        """The folders of collection `name`, the newest last; that one is the collection.

        There is one, `papers`, until a migration puts `papers@2` beside it; the older goes then (migrate.py).
        """
        numbered = [(1, self.path / name)]
        for folder in self.path.glob(f"{name}@*"):
            number = folder.name.removeprefix(f"{name}@")
            if _NUMBER.fullmatch(number):
                numbered.append((int(number), folder))
        return [folder for _, folder in sorted(numbered) if _holds_collection(folder)]

    def existing(self, name: str) -> Path:
        """Where collection `name` lies.

        Raises:
            CollectionNotFound: it is not there; the message lists those that are.
        """
        folder = self.folder(name)
        if not _holds_collection(folder):
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
        found: set[str] = set()
        for folder in self.path.iterdir():
            name, at, number = folder.name.partition("@")
            named = is_name(name) and (not at or _NUMBER.fullmatch(number) is not None)
            if named and _holds_collection(folder):
                found.add(name)
        return sorted(found)

    def remove(self, name: str) -> None:
        """Delete collection `name`; for the one process that writes here."""
        for edition in self.editions(name):  # the newest, which is the collection, last
            # Renamed first: a crash in the middle leaves no half collection under the name.
            doomed = edition.with_name(f".{name}.deleted")
            shutil.rmtree(doomed, ignore_errors=True)
            edition.rename(doomed)
            shutil.rmtree(doomed)

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
            raise self._locked() from None
        self._write_holder(None)

    def announce(self, url: str) -> None:
        """Let others know where the process that holds the lock can be asked to write."""
        if self.locked:
            self._write_holder(url)

    def unlock(self) -> None:
        """Let others write; safe to call twice."""
        if self._lock.is_locked:
            (self.path / _HOLDER_NAME).unlink(missing_ok=True)
            self._lock.release()

    def _write_holder(self, url: str | None) -> None:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:3]]),
            "url": url,
        }
        written = self.path / f"{_HOLDER_NAME}.{os.getpid()}"
        written.write_text(json.dumps(holder))
        written.replace(self.path / _HOLDER_NAME)  # nobody reads half of it

    def _locked(self) -> HomeLocked:
        """The error of a home whose lock another process holds, with the address where that serves it."""
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
    """Whether a collection is there, or what is left of one whose documents are lost: damage, not nothing."""
    return (folder / FILE_NAME).is_file() or (folder / DOCUMENTS.file_name).is_file()
