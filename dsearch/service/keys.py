"""API keys of a home, in `keys.json`, and the access that they give to requests.

`ApiKeys` is created by `dsearch keys` and read by the service.

A key is `ds_<id>_<secret>` with 256 random bits. Only its SHA-256 is stored: slow hashes protect passwords
that people choose, and nobody can try 2^256 keys. Secrets are compared in constant time. A revoked key stays
listed without its hash, so that the file continues to say that keys are required.

Losses. `keys.json` has the number of its last change and a digest of its content; `keys.mark` beside it has
the same number. Both are replaced in one step and synced, the mark last. So each loss has an answer:

| the file is                       | requests               | `dsearch keys create`              |
|-----------------------------------|------------------------|------------------------------------|
| cut, or a bit of it flipped       | refused (corrupt_data) | refused until it is moved away     |
| older than its mark               | refused (corrupt_data) | refused until it is moved away     |
| deleted                           | refused (corrupt_data) | starts over; old keys open nothing |
| there, and the mark is not        | as before              | writes the mark again              |

Without both files a home is one without keys. A digest guards against faults, not against a program that may
write to the home, which can read the documents too. Files of release 0.3.0 have neither digest nor mark; the
next change adds them.

`Access` authorises requests. Only the listed paths are open. Without keys everything is open; the service
then listens on this machine only. Once a key has been created, every request needs one (`Authorization:
Bearer ds_…`) except `/healthz`, `/readyz` and the files of the page, which hold no data. The required scope
is that of the declared call at method and path (`dsearch/operations/`). A route that no call declares needs
"admin" to change data and "read" to read it.
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
from typing import Any, get_args

from filelock import FileLock
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from dsearch.errors import (
    Command,
    Conflict,
    CorruptData,
    InvalidRequest,
    KeyMissing,
    NotFound,
    ScopeTooNarrow,
)
from dsearch.operations import CALLS, Scope
from dsearch.store.sqlite.watermark import sync_folder

SCOPES: tuple[Scope, ...] = get_args(Scope)
FILE_NAME = "keys.json"
MARK_NAME = "keys.mark"
_FORMAT = 1
_KEY = re.compile(r"ds_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_NOBODY = "0" * 64
MAKE_ONE = Command("keys create", ("--name", "NAME", "--scope", "admin"))


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
    """Keys of a home. Changes by another process are seen at the next read.

    Args:
        home: the folder of collections.
    """

    def __init__(self, home: Path):
        self.path = home / FILE_NAME
        self._at = str(self.path)
        self._mark = home / MARK_NAME
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, ApiKey] = {}
        self._sequence = 0

    def list(self) -> list[ApiKey]:
        """All keys, revoked ones included.

        Raises:
            CorruptData: the file is missing or damaged; all requests are refused until it is repaired.
        """
        return list(self._read().values())

    @property
    def has_keys(self) -> bool:
        """True if any key was ever created; raises as `list`."""
        return bool(self._read())

    @property
    def opening(self) -> bool:
        """True if any key is not revoked; raises as `list`."""
        return any(key.sha256 for key in self._read().values())

    def create(self, name: str, scope: str) -> tuple[str, ApiKey]:
        """Create a key. Returns the key itself, which is not stored, and the record that is.

        Raises:
            InvalidRequest: no name, or not a scope.
            CorruptData: the file is damaged. A deleted one is created anew.
        """
        if scope not in SCOPES:
            raise InvalidRequest(f"scope={scope!r}; use {', '.join(SCOPES)}")
        if not name.strip() or len(name) > 100 or not name.isprintable():
            raise InvalidRequest(f"name={name[:100]!r}; use 1 to 100 printable characters")
        id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        text = f"ds_{id}_{secret}"
        key = ApiKey(id, name.strip(), scope, _now(), _digest(text))  # type: ignore[arg-type]
        with self._lock, self._alone():
            self._write({**self._load(lost=True), id: key})
        return text, key

    def revoke(self, id: str) -> ApiKey:
        """Revoke a key, with effect at the next request.

        Raises:
            NotFound: no key of that id.
        """
        with self._lock, self._alone():
            keys = self._load()
            if id not in keys:
                names = ", ".join(keys) or "none yet"
                raise NotFound(f"no key {id[:80]!r}; there are: {names}")
            old = keys[id]
            key = ApiKey(old.id, old.name, old.scope, old.created, "", old.revoked or _now())
            self._write({**keys, id: key})
        return key

    def clear(self) -> int:
        """Delete all keys; returns their number. A running service still requires one.

        Raises:
            Conflict: one of them is not revoked.
        """
        with self._lock, self._alone():
            keys = self._load()
            if valid := [key.id for key in keys.values() if key.sha256]:
                raise Conflict(f"keys {', '.join(valid)} still open this home; revoke them first")
            # The mark first: a crash between the two leaves the keys as before, not as lost.
            for path in (self._mark, self.path):
                path.unlink(missing_ok=True)
                sync_folder(path.parent)
        return len(keys)

    def holder(self, secret: str) -> ApiKey | None:
        """Return the key of this secret, or None.

        Raises:
            CorruptData: the file is damaged.
        """
        keys = self._read()
        matched = _KEY.fullmatch(secret)
        key = keys.get(matched[1]) if matched else None
        # Compared even if no such key exists, so that the time taken does not reveal which ids exist.
        same = hmac.compare_digest(_digest(secret), key.sha256 if key and key.sha256 else _NOBODY)
        return key if same and key and key.sha256 else None

    def _alone(self) -> FileLock:
        """Lock against other processes that change the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path.with_name(f".{FILE_NAME}.lock"), timeout=10)

    def _read(self) -> dict[str, ApiKey]:
        with self._lock:
            return self._load()

    def _load(self, *, lost: bool = False) -> dict[str, ApiKey]:
        """Read the keys; none without a file. If the mark knows the file, that is an error unless `lost`."""
        try:
            state = os.stat(self._at)  # at every request: the path's own takes four times as long
        except FileNotFoundError:
            marked = _marked(self._mark)
            if marked and not lost:
                raise CorruptData(
                    f"{FILE_NAME} is missing though {marked} changes of it were made; no key opens anything "
                    "until it is restored. Give all keys up and make a new one",
                    hint=MAKE_ONE,
                ) from None
            self._seen, self._keys, self._sequence = None, {}, marked
            return self._keys
        seen = (state.st_ino, state.st_mtime_ns, state.st_size)
        if seen != self._seen:
            keys, sequence = _parse(self.path)
            if sequence < (marked := _marked(self._mark)):
                raise _unreadable(
                    f"it is of change {sequence}, and {marked} were made; revocations may be lost"
                )
            self._keys, self._sequence, self._seen = keys, sequence, seen
        return self._keys

    def _write(self, keys: dict[str, ApiKey]) -> None:
        """Replace the file, then its mark."""
        sequence = self._sequence + 1
        content = {"format": _FORMAT, "keys": [asdict(key) for key in keys.values()], "sequence": sequence}
        _replace(self.path, content)
        _replace(self._mark, {"sequence": sequence})


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Replace a file in one step, readable by its owner alone, with a digest of its content."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.writing")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump({**content, "digest": _content_digest(content)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)  # a revocation that a power cut undoes would open the door again


def _parse(path: Path) -> tuple[dict[str, ApiKey], int]:
    """Read the keys and the number of their last change: 0 in a file of 0.3.0, which has no digest."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}")
        if set(content) != {"format", "keys"} and content.pop("digest") != _content_digest(content):
            raise ValueError("it is not what was written")
        keys = [ApiKey(**record) for record in content["keys"]]
        if any(key.scope not in SCOPES for key in keys):
            raise ValueError("an unknown scope")
        return {key.id: key for key in keys}, content.get("sequence", 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(str(error)) from error


def _marked(path: Path) -> int:
    """Number of the last change by the mark; 0 if it is missing or unreadable."""
    try:
        content = json.loads(path.read_bytes())
        sequence = content["sequence"]
        return sequence if content["digest"] == _content_digest({"sequence": sequence}) else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _unreadable(reason: str) -> CorruptData:
    return CorruptData(
        f"{FILE_NAME} cannot be used ({reason}); no key opens anything until it is restored. Or move it "
        "away, which gives all keys up, and make a new one",
        hint=MAKE_ONE,
    )


def _content_digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


OPEN_PATHS = ("/healthz", "/readyz", "/", "/docs", "/guide")
OPEN_FOLDERS = ("/ui/", "/docs/assets/", "/guide/")
_ASKING_ELSEWHERE = re.compile(  # routes in the shapes of other APIs
    r"/v1/embeddings|/v[12]/rerank|/retrieve"
    r"|/mcp"  # each of its tools has a scope of its own
)


def _paths(scope: Scope) -> dict[str, re.Pattern[str]]:
    """The paths of declared calls that a key of this scope may change things by, by method."""
    paths: dict[str, list[str]] = {}
    for kind in CALLS:
        place = kind.place
        if place.scope == scope and place.method != "GET":
            path = re.sub(r"\\{\w+:path\\}", ".+", re.escape(place.path))
            paths.setdefault(place.method, []).append(re.sub(r"\\{\w+\\}", "[^/]+", path))
    return {method: re.compile("|".join(each), re.DOTALL) for method, each in paths.items()}


_READING, _WRITING = _paths("read"), _paths("write")


def is_open(path: str) -> bool:
    """Return True if a path needs no key: liveness, readiness, the files of the page."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def needed_scope(method: str, path: str) -> Scope:
    """Return the scope that a request needs; a route that no call declares needs the highest."""
    if method in ("GET", "HEAD") or (method == "POST" and _ASKING_ELSEWHERE.fullmatch(path)):
        return "read"
    changing: tuple[tuple[Scope, dict[str, re.Pattern[str]]], ...] = (("read", _READING), ("write", _WRITING))
    for scope, paths in changing:
        if method in paths and paths[method].fullmatch(path):
            return scope
    return "admin"


class Access:
    """An ASGI middleware: lets a request pass that has the key for it, and notes whose it is.

    `request.state.key_id` is the key's id, and `request.state.key_scope` its scope, both None where no key is
    needed.

    Args:
        app: what is guarded.
        keys: the keys.
        required: whether a key is needed even before one was made.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, required: bool = False):
        self.app = app
        self._keys = keys
        self._required = required

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it.

        Raises:
            KeyMissing: no key, or one that is not known.
            ScopeTooNarrow: a key that may not do this.
            CorruptData: the file of the keys is damaged.
        """
        if scope["type"] == "http":
            key = None if is_open(scope["path"]) else self._holder(scope)
            state = scope.setdefault("state", {})
            state["key_id"], state["key_scope"] = (key.id, key.scope) if key else (None, None)
        await self.app(scope, receive, send)

    def _holder(self, scope: AsgiScope) -> ApiKey | None:
        # A look at the file's time; it is read when it changed. Once required, always required: removing the
        # file while the service runs opens nothing.
        have_keys = self._keys.has_keys
        self._required = self._required or have_keys
        if not self._required:
            return None
        if have_keys and not self._keys.opening:
            raise KeyMissing(
                "every key of this service was revoked; let it answer this machine without keys again "
                "(dsearch keys clear, and a restart), or make a new one where it runs",
                hint=MAKE_ONE,
            )
        header = Headers(scope=scope).get("authorization", "")
        kind, _, text = header.partition(" ")
        if kind.lower() != "bearer" or not text.strip():
            raise KeyMissing(
                "no API key; send one as `Authorization: Bearer ds_…`, or make one", hint=MAKE_ONE
            )
        key = self._keys.holder(text.strip())
        if key is None:
            raise KeyMissing("this API key is not known or was revoked; make one", hint=MAKE_ONE)
        needed = needed_scope(scope["method"], scope["path"])
        if not key.may(needed):
            raise ScopeTooNarrow(
                f"key {key.id} has scope {key.scope}; {scope['method']} here needs {needed}: make such a key",
                hint=Command("keys create", ("--name", "NAME", "--scope", needed)),
            )
        return key
