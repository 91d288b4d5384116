"""`Access`: authorisation of requests. Only the listed paths are open.

Without keys everything is open; the service then listens on this machine only. Once a key has been created,
every request needs one (`Authorization: Bearer ds_…`) except `/healthz`, `/readyz` and the files of the page,
which hold no data. The required scope follows from method and path. A route that this file does not list
needs "admin" to change data and "read" to read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dsearch.errors import Command, KeyMissing, ScopeTooNarrow
from dsearch.service.auth.keys import MAKE_ONE, SCOPES, ApiKey, ApiKeys
from dsearch.service.auth.keys import Scope as KeyScope

OPEN_PATHS = ("/healthz", "/readyz", "/", "/docs", "/guide")
OPEN_FOLDERS = ("/ui/", "/docs/assets/", "/guide/")
_ASKING = re.compile(
    r"/v1/collections/[^/]+/(search|search/batch|similar|facets|attend|vjp|predict|heads|draws)"
    r"|/v1/collections/[^/]+/draws/[^/]+/rewards"
    r"|/v1/embeddings|/v[12]/rerank|/v1/vector_stores/[^/]+/search|/retrieve"
    r"|/mcp"  # each of its tools has a scope of its own
)
_DRAFT = re.compile(r"/v1/collections/[^/]+/heads/[^/]+")  # nobody else's
_WRITING = re.compile(
    r"/v1/collections/[^/]+/(documents(/.*)?|delete|feedback(/.*)?|outcomes)|/reward"
    r"|/v1/files(/.*)?|/v1/vector_stores/[^/]+/(files|file_batches)(/.*)?",
    re.DOTALL,
)


def is_open(path: str) -> bool:
    """Return True if a path needs no key: liveness, readiness, the files of the page."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def needed_scope(method: str, path: str) -> KeyScope:
    """Return the scope that a request needs; a route that is not listed here needs the highest."""
    asks = method == "POST" and _ASKING.fullmatch(path)
    if method in ("GET", "HEAD") or asks or (method == "DELETE" and _DRAFT.fullmatch(path)):
        return "read"
    return "write" if _WRITING.fullmatch(path) else "admin"


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

    def _holder(self, scope: Scope) -> ApiKey | None:
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


def scope_table(operations: Iterable[tuple[str, str]]) -> str:
    """Each route and the keys that open it, as a Markdown table: what stands in the guide "operating".

    Args:
        operations: method and path of each route, in the order of the table.
    """
    lines = ["| route | no key | read | write | admin |", "|---|---|---|---|---|"]
    for method, path in operations:
        least = -1 if is_open(path) else SCOPES.index(needed_scope(method, path))
        cells = ["✓" if level >= least else "" for level in range(-1, len(SCOPES))]
        lines.append(f"| `{method} {path}` | {' | '.join(cells)} |")
    return "\n".join(line.replace("|  |", "| |").replace("|  |", "| |") for line in lines)
