"""`Guard`: checks and records around every request.

It rejects foreign hosts and origins, sets the headers of every answer, assigns request ids, handles
unexpected errors and writes the log line.

A web page from elsewhere, open in a browser, can reach a service on this machine in two ways: by its own host
name pointed at 127.0.0.1 (DNS rebinding, detected by the Host header), or by a plain cross-site request
(detected by the Origin header).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsearch.errors import DsearchError
from dsearch.service import telemetry
from dsearch.service.admission import Refusal
from dsearch.service.errors import HostNotAllowed, OriginNotAllowed
from dsearch.service.telemetry import Metrics, RequestSpans
from dsearch.service.wire.json import add_headers, new_id
from dsearch.service.wire.problems import problem, problem_of

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
ANY_HOST = "*"
EXPOSED = ("X-Request-Id", "Retry-After")  # headers that pages of other sites may read

_LOOKED_AT = (b"host", b"origin", b"x-request-id")
_KNOWN_HOSTS = 64  # ways to write an allowed Host header that are looked up and not taken apart

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_log = logging.getLogger(__name__)


class Guard:
    """An ASGI middleware, around all that know the service.

    Args:
        app: what is guarded.
        hosts: names that the service answers to, without port; "*" answers to all.
        origins: other sites whose pages may use it, such as "https://search.example".
        metrics: told of every answer.
        leaving: whether the server is about to stop: connections are then closed with their answer.
        refusal: answers those who are not let in, before anything is done for them; None: everybody is.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str] = LOOPBACK_HOSTS,
        origins: Collection[str] = (),
        metrics: Metrics | None = None,
        leaving: Callable[[], bool] = lambda: False,
        refusal: Refusal | None = None,
    ):
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)
        self.origins = frozenset(origin.lower() for origin in origins)
        self._metrics = metrics or Metrics()
        self._leaving = leaving
        self._known_hosts: set[str] = set()
        self._spans = RequestSpans()
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._refusal is None:
            await self._answer(scope, receive, send)
            return
        if (refused := self._refusal.messages(scope)) is not None:
            start, body = refused
            if self.origins:
                start["headers"] += self._sharing(_looked_at(scope)[1])
            await send(start)
            await send(body)
            return
        place = self._refusal.admission.let_in(scope["path"], receive)
        try:
            await self._answer(scope, place.receive, send)
        finally:
            place.leave()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, origin, sent_id = _looked_at(scope)
        request_id = sent_id if _GIVEN_ID.fullmatch(sent_id) else new_id()
        answering = _Answering(scope, send, request_id, self._leaving, self._sharing(origin))
        token = telemetry.request_id.set(request_id)
        self._metrics.begun()
        try:
            if not self._spans.seen:
                await self._guarded(answering, host, origin, receive)
                return
            with self._spans.of(scope["method"], Headers(scope=scope), request_id) as finish:
                try:
                    await self._guarded(answering, host, origin, receive)
                finally:
                    finish(_route(scope), answering.status)
        finally:
            self._metrics.ended()
            self._note(answering)
            telemetry.request_id.reset(token)

    async def _guarded(self, answering: _Answering, host: str, origin: str | None, receive: Receive) -> None:
        scope, send, request_id = answering.scope, answering.send, answering.request_id
        try:
            self._require_ours(host, origin)
            await self.app(scope, receive, send)
        except DsearchError as error:
            await problem_of(error)(scope, receive, send)
        except ClientDisconnect:
            _log.debug("request %s: the client went away", request_id)
        except Exception:
            _log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if answering.status:
                raise  # the server cuts the connection, so that half an answer is not taken for a whole
            detail = f"an unexpected error; the server's log has it under the request id {request_id}"
            await problem("internal_error", detail, request_id=request_id)(scope, receive, send)

    def _sharing(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """Headers by which a page of a named other site may read its answer (CORS); none for others."""
        if origin is None or origin.lower() not in self.origins:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", ", ".join(EXPOSED).encode()),
            (b"vary", b"Origin"),
        ]

    def _note(self, answering: _Answering) -> None:
        scope, status = answering.scope, answering.status
        took_s = time.perf_counter() - answering.started
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = _route(scope)
        self._metrics.answered(method, route, status, took_s)
        if telemetry.access.isEnabledFor(logging.INFO):
            fields = {
                "method": method,
                "route": route,
                "status": status,
                "took_ms": round(took_s * 1000, 2),
                "key_id": scope.get("state", {}).get("key_id"),
            }
            telemetry.access.info(
                "%s %s %s", method, route, status or "client gone", extra={"fields": fields}
            )

    def _require_ours(self, host: str, origin: str | None) -> None:
        if host not in self._known_hosts:
            if ANY_HOST not in self.hosts and _name(host) not in self.hosts:
                raise HostNotAllowed(
                    f"Host: {host[:80] or 'none'}; this server is {', '.join(sorted(self.hosts))}"
                )
            if len(self._known_hosts) < _KNOWN_HOSTS:
                self._known_hosts.add(host)
        if (
            origin is not None
            and origin.partition("://")[2].lower() != host.lower()
            and origin.lower() not in self.origins
        ):
            raise OriginNotAllowed(
                f"Origin: {origin[:80]}; only pages of this server may use it from a browser"
            )


class _Answering:
    """One answer on its way.

    Attributes:
        status: of it; 0 before it has begun.
        started: seconds of `perf_counter`.
    """

    def __init__(
        self,
        scope: Scope,
        send: Send,
        request_id: str,
        leaving: Callable[[], bool],
        sharing: list[tuple[bytes, bytes]],
    ):
        self.scope = scope
        self.request_id = request_id
        self.status = 0
        self.started = time.perf_counter()
        self._send = send
        self._leaving = leaving
        self._sharing = sharing

    async def send(self, message: Message) -> None:
        """As ASGI's `send`."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            add_headers(message, self.request_id, close=self._leaving())
            if self._sharing and not any(name == self._sharing[0][0] for name, _ in message["headers"]):
                message["headers"] += self._sharing  # an error of a layer around the one for CORS
        await self._send(message)


def _looked_at(scope: Scope) -> tuple[str, str | None, str]:
    """Host, Origin and X-Request-Id, the first of each; names come in lower case."""
    headers: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _LOOKED_AT:
            headers.setdefault(name, value.decode("latin-1"))
    return headers.get(b"host", ""), headers.get(b"origin"), headers.get(b"x-request-id", "")


def _name(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host.lower()


def _route(scope: Scope) -> str:
    """The route as it is declared, without what is in its place: ids are nobody else's business."""
    return getattr(scope.get("route"), "path", "") or "none"
