"""`ApiKeys`: the keys of a home, in `keys.json`; created by `dsearch keys`, read by the service.

A key is `ds_<id>_<secret>` with 256 random bits. Only its SHA-256 is stored: slow hashes protect passwords
that people choose, and nobody can try 2^256 keys. Secrets are compared in constant time. A revoked key stays
listed without its hash, so that the file continues to say that keys are required.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from filelock import FileLock

from dsearch.errors import Conflict, CorruptData, InvalidRequest, NotFound
from dsearch.store.sqlite.watermark import sync_folder

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
FILE_NAME = "keys.json"
_FORMAT = 1
_KEY = re.compile(r"ds_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_NOBODY = "0" * 64


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Stored record of a key.

    Attributes:
        id: name of the key in lists and logs; not secret.
        name: owner of the key, in words.
        scope: "read" reads, "write" also changes documents, "admin" also collections, models and tasks.
        created: time of creation, in UTC.
        sha256: hash of the whole key; empty once it is revoked.
        revoked: time of revocation, or None.
    """

    id: str
    name: str
    scope: Scope
    created: str
    sha256: str
    revoked: str | None = None

    def may(self, needed: Scope) -> bool:
        """Return True if the key's scope includes `needed`."""
        return SCOPES.index(self.scope) >= SCOPES.index(needed)


class ApiKeys:
    """The keys in a home. What another process writes is seen at the next look.

    Args:
        home: the folder of collections.
    """

    def __init__(self, home: Path):
        self.path = home / FILE_NAME
        self._at = str(self.path)
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, ApiKey] = {}

    def list(self) -> list[ApiKey]:
        """Every key that was made, revoked ones included.

        Raises:
            CorruptData: the file is not what was written; nobody gets in until it is mended.
        """
        return list(self._read().values())

    @property
    def made(self) -> bool:
        """True if any key was ever created; raises as `list`."""
        return bool(self._read())

    @property
    def all_revoked(self) -> bool:
        """True if keys were created and none of them opens anything any more; raises as `list`."""
        keys = self._read()
        return bool(keys) and not any(key.sha256 for key in keys.values())

    def create(self, name: str, scope: str) -> tuple[str, ApiKey]:
        """Make a key: the key itself, which is kept nowhere and not shown again, and what is kept of it.

        Raises:
            InvalidRequest: no name, or not a scope.
        """
        if scope not in SCOPES:
            raise InvalidRequest(f"scope={scope!r}; use {', '.join(SCOPES)}")
        if not name.strip() or len(name) > 100 or not name.isprintable():
            raise InvalidRequest(f"name={name[:100]!r}; use 1 to 100 printable characters")
        id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        text = f"ds_{id}_{secret}"
        key = ApiKey(id, name.strip(), scope, _now(), _digest(text))  # type: ignore[arg-type]
        with self._lock, self._alone():
            self._write({**self._load(), id: key})
        return text, key

    def revoke(self, id: str) -> ApiKey:
        """Let a key no longer open anything, at once.

        Raises:
            NotFound: no key of that id.
        """
        with self._lock, self._alone():
            keys = self._load()
            if id not in keys:
                known = ", ".join(keys) or "none yet"
                raise NotFound(f"no key {id[:80]!r}; there are: {known}")
            old = keys[id]
            key = ApiKey(old.id, old.name, old.scope, old.created, "", old.revoked or _now())
            self._write({**keys, id: key})
        return key

    def clear(self) -> int:
        """Forget all keys; returns their number. A service that runs goes on to require one.

        Raises:
            Conflict: one of them is not revoked.
        """
        with self._lock, self._alone():
            keys = self._load()
            if valid := [key.id for key in keys.values() if key.sha256]:
                raise Conflict(f"keys {', '.join(valid)} still open this home; revoke them first")
            self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)
        return len(keys)

    def holder(self, given: str) -> ApiKey | None:
        """The key that `given` is, or None.

        Raises:
            CorruptData: the file is not what was written.
        """
        keys = self._read()
        matched = _KEY.fullmatch(given)
        known = keys.get(matched[1]) if matched else None
        # Compared even where no such key exists: the time taken does not tell which ids do.
        same = hmac.compare_digest(_digest(given), known.sha256 if known and known.sha256 else _NOBODY)
        return known if same and known and known.sha256 else None

    def _alone(self) -> FileLock:
        """Two commands that change the file at once take turns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path.with_name(f".{FILE_NAME}.lock"), timeout=10)

    def _read(self) -> dict[str, ApiKey]:
        with self._lock:
            return self._load()

    def _load(self) -> dict[str, ApiKey]:
        try:
            state = os.stat(self._at)  # at every request: the path's own takes four times as long
        except FileNotFoundError:
            self._seen, self._keys = None, {}
            return self._keys
        seen = (state.st_ino, state.st_mtime_ns, state.st_size)
        if seen != self._seen:
            self._keys = _parse(self.path)
            self._seen = seen
        return self._keys

    def _write(self, keys: dict[str, ApiKey]) -> None:
        """Replace the file in one step, readable by its owner alone."""
        unfinished = self.path.with_name(f".{FILE_NAME}.{os.getpid()}.writing")
        content = {"format": _FORMAT, "keys": [asdict(key) for key in keys.values()]}
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)
        sync_folder(self.path.parent)  # a revocation that a power cut undoes would open the door again


def _parse(path: Path) -> dict[str, ApiKey]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}")
        keys = [ApiKey(**one) for one in content["keys"]]
        if any(key.scope not in SCOPES for key in keys):
            raise ValueError("an unknown scope")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(
            f"{path.name} cannot be read ({error}); no key opens anything until it is restored or removed"
        ) from error
    return {key.id: key for key in keys}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
