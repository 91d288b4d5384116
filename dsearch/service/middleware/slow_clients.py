"""`SlowClientLimits`: timeouts for slow clients, and the closing of their connections.

A client that opens many connections and sends almost nothing (slow headers, slow bodies, an answer that is
never read) would otherwise hold them all forever. Time in which the server itself does not read, because it
is busy with earlier requests, does not count.

`PatientProtocol` stands between asyncio and uvicorn's protocol and sees the bytes that come. `WatchBodies`,
an ASGI middleware, tells it when a request has begun, when its body is waited for and when it is answered; it
finds the connection in the state that the server gives to every request.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dsearch.errors import InvalidRequest
from dsearch.service.errors import MalformedRequest
from dsearch.service.wire.problems import MEDIA_TYPE, problem

_STATE = "dsearch.connection"


@dataclass(frozen=True, slots=True)
class SlowClientLimits:
    """The limits.

    Attributes:
        header_bytes: of a request, at most, about; the parsers' own limits differ, or are none.
        header_s: from the first byte of a request (or the opening of a connection) to the end of its headers.
        body_bytes_per_s: what a body has to come at, on average over each `window_s`.
        window_s: see above; also what a body has before it is looked at.
        answer_s: in which some part of a waiting answer must have been read.
        connections: open at once; one more costs the place of the one that has waited longest for headers.
    """

    header_bytes: int = 64 * 1024
    header_s: float = 15.0
    body_bytes_per_s: int = 1024
    window_s: float = 10.0
    answer_s: float = 60.0
    connections: int = 2048

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"{name}={getattr(self, name)}; use a number above 0")

    @property
    def look_every_s(self) -> float:
        """Interval between checks of the connections."""
        return min(1.0, self.header_s / 4, self.window_s / 4)


def patient_protocol(patience: SlowClientLimits) -> type[PatientProtocol]:
    """uvicorn's HTTP protocol, with connections that are closed if their clients are too slow."""
    return type("Patient", (PatientProtocol,), {"patience": patience, "connections": set()})


class PatientProtocol(asyncio.Protocol):
    """One connection.

    Attributes:
        patience: limits for its client.
        connections: all open connections.
        waiting_since: start of the wait for headers; None if they have arrived, or if nothing was sent since
            the last answer (uvicorn's own timeout ends that).
    """

    patience: ClassVar[SlowClientLimits]
    connections: ClassVar[set[PatientProtocol]]
    transport: Any = None

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        make: Any = AutoHTTPProtocol
        self._served = make(config, server_state, {**app_state, _STATE: self}, _loop)
        # Replaces the plain text with which the parsers answer malformed requests by a problem document.
        self._served.send_400_response = lambda _: self._refuse(
            HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request; check its first line and its headers"
        )
        self.waiting_since: float | None = None
        self._request: _Request | None = None
        self._header_bytes = 0
        self._unread, self._unread_since = 0, 0.0

    def connection_made(self, transport: Any) -> None:
        """As asyncio's."""
        self.transport = transport
        self.waiting_since = self._unread_since = time.monotonic()
        _send_at_once(transport)
        self.connections.add(self)
        if len(self.connections) > self.patience.connections:
            _evict(self.connections)
        self._served.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio's."""
        self.connections.discard(self)
        self._served.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As asyncio's."""
        if self._request is not None:
            self._request.bytes += len(data)
            self._served.data_received(data)
            return
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()
        self._header_bytes += len(data)
        self._served.data_received(data)
        if self._header_bytes > self.patience.header_bytes:
            # If this was the end of the headers, the request begins with the loop's next turn.
            asyncio.get_running_loop().call_soon(self._refuse_long_headers)

    def eof_received(self) -> bool | None:
        """As asyncio's."""
        return self._served.eof_received()

    def pause_writing(self) -> None:
        """As asyncio's."""
        self._served.pause_writing()

    def resume_writing(self) -> None:
        """As asyncio's."""
        self._served.resume_writing()

    def begin(self) -> _Request:
        """Note that the headers of a request have arrived."""
        self.waiting_since, self._header_bytes = None, 0
        self._request = request = _Request()
        return request

    def end(self, request: _Request) -> None:
        """Note that a request is answered; the next one of a pipelining client may have begun."""
        if self._request is request:
            self._request = None

    def look(self, now: float) -> None:
        """Close the connection if its client is too slow."""
        if self.waiting_since is not None:
            slow = now - self.waiting_since > self.patience.header_s
        else:
            slow = self._request is not None and self._request.too_slow(self.patience, now)
        if slow:
            self.transport.close()
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread < self._unread:
            self._unread_since = now
        elif now - self._unread_since > self.patience.answer_s:
            self.transport.abort()
        self._unread = unread

    def _refuse_long_headers(self) -> None:
        if self._request is None and self._header_bytes > self.patience.header_bytes:
            self._header_bytes = 0
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"headers above {self.patience.header_bytes} bytes; send shorter ones",
            )

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer a malformed request, and close the connection."""
        if self.transport.is_closing():
            return
        answer = problem(MalformedRequest.code, detail, status=status)
        content = bytes(answer.body)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + content)
        self.transport.close()


class _Request:
    """A request whose body is being received.

    Attributes:
        bytes: number of bytes received since the last check.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._read = False
        self._awaited_s = 0.0
        self._awaited_since: float | None = None

    async def receive(self, receive: Receive) -> Message:
        """As ASGI's `receive`; the time spent waiting for the body counts as the client's."""
        if self._read:
            return await receive()
        self._awaited_since = time.monotonic()
        message = await receive()
        self._awaited_s += time.monotonic() - self._awaited_since
        self._awaited_since = None
        self._read = not message.get("more_body", False)
        return message

    def too_slow(self, patience: SlowClientLimits, now: float) -> bool:
        """Return True if the body arrived too slowly while the server was waiting for it."""
        if self._read:
            return False
        awaited_s = self._awaited_s + (0.0 if self._awaited_since is None else now - self._awaited_since)
        if awaited_s < patience.window_s:
            return False
        slow = self.bytes < patience.body_bytes_per_s * patience.window_s
        self.bytes, self._awaited_s = 0, 0.0
        if self._awaited_since is not None:
            self._awaited_since = now
        return slow


class WatchBodies:
    """An ASGI middleware, the outermost: tells a connection of its requests.

    Args:
        app: what answers them.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        connection = scope.get("state", {}).pop(_STATE, None) if scope["type"] == "http" else None
        if connection is None:
            await self.app(scope, receive, send)
            return
        request = connection.begin()
        try:
            await self.app(scope, lambda: request.receive(receive), send)
        finally:
            connection.end(request)


async def look_after(protocol: type[PatientProtocol]) -> None:
    """Look at all connections again and again, until cancelled."""
    while True:
        await asyncio.sleep(protocol.patience.look_every_s)
        now = time.monotonic()
        for connection in list(protocol.connections):
            connection.look(now)


def _send_at_once(transport: Any) -> None:
    """Send what is written, without waiting for more of it.

    asyncio does this by itself, but not for connections from a socket that was bound by somebody else (its
    `proto` is 0). Headers and body are two writes, and the second would wait for the client's acknowledgement
    of the first, which comes up to 40 ms later.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _evict(connections: set[PatientProtocol]) -> None:
    waiting = [
        (connection.waiting_since, connection)
        for connection in connections
        if connection.waiting_since is not None
    ]
    if waiting:
        min(waiting, key=lambda pair: pair[0])[1].transport.abort()
