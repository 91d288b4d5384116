"""`Guard`: what surrounds every request. Hosts and origins that are not ours, headers of every answer,
request ids, and errors that nobody expected.

A web page that a browser opens elsewhere can reach a service on this machine: by its own name pointed at
127.0.0.1 (DNS rebinding; the Host header tells), or by a plain cross-site request (the Origin header tells).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsearch.errors import DsearchError
from dsearch.service.errors import HostNotAllowed, OriginNotAllowed
from dsearch.service.problems import problem, problem_of

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
ANY_HOST = "*"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # the icons inside the stylesheet of /docs
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_log = logging.getLogger(__name__)


class Guard:
    """An ASGI middleware, the outermost.

    Args:
        app: what is guarded.
        hosts: names that the service answers to, without port; "*" answers to all.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK_HOSTS):
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(message, request_id)
            await send(message)

        try:
            self._require_ours(Headers(scope=scope))
            await self.app(scope, receive, answer)
        except DsearchError as error:
            await problem_of(error)(scope, receive, answer)
        except ClientDisconnect:
            _log.debug("request %s: the client went away", request_id)
        except Exception:
            _log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if started:
                raise  # the server cuts the connection, so that half an answer is not taken for a whole
            detail = f"an unexpected error; the server's log has it under the request id {request_id}"
            await problem("internal_error", detail, request_id=request_id)(scope, receive, answer)

    def _require_ours(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if ANY_HOST not in self.hosts and _name(host) not in self.hosts:
            raise HostNotAllowed(
                f"Host: {host[:80] or 'none'}; this server is {', '.join(sorted(self.hosts))}"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise OriginNotAllowed(
                f"Origin: {origin[:80]}; only pages of this server may use it from a browser"
            )


def _name(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host.lower()


def _add_headers(start: Message, request_id: str) -> None:
    headers = MutableHeaders(scope=start)
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")
    headers["X-Request-Id"] = request_id
