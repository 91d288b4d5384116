"""`Patience`: timeouts for slow clients, and the closing of their connections.

A client that opens many connections and sends almost nothing (slow headers, slow bodies, an answer that is
never read) would otherwise hold them all forever. Time in which the server itself does not read, because it
is busy with earlier requests, does not count.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dsearch.errors import InvalidRequest
from dsearch.service.middleware.one_write import OneWrite
from dsearch.service.overload.refusal import Refusal

_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Patience:
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


def patient_protocol(patience: Patience, refusal: Refusal | None = None) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, with connections that can be asked whether they are too slow.

    Args:
        patience: with clients.
        refusal: to requests that a connection answers by itself; None: the application answers all.
    """

    class Patient(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        cycle: Any
        transport: Any
        flow: Any
        pipeline: Any
        connections: set[Any]

        def connection_made(self, transport: Any) -> None:
            now = time.monotonic()
            self._headers_since: float | None = now
            self._window_since, self._window_bytes = now, 0
            self._unread, self._unread_since = 0, now
            self._header_bytes = 0
            super().connection_made(OneWrite(transport))
            _answer_at_once(transport)
            if len(self.connections) > patience.connections:
                _evict(self.connections)

        def data_received(self, data: bytes) -> None:
            self._window_bytes += len(data)
            if self._headers_since is None and self._between_requests:
                self._headers_since = time.monotonic()
            was_between = self._between_requests
            super().data_received(data)
            if self._headers_since is not None and self._between_requests:
                self._header_bytes += len(data)
                if self._header_bytes > patience.header_bytes and not self.transport.is_closing():
                    self.transport.write(_TOO_LONG)
                    self.transport.close()
            if not self._between_requests:
                self._headers_since, self._header_bytes = None, 0
                if was_between:
                    self._window_since, self._window_bytes = time.monotonic(), 0

        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            refused = None
            # Not to a client that does not read, nor before others that wait: these take turns as tasks.
            if refusal is not None and cycle.keep_alive and not (self.flow.write_paused or self.pipeline):
                refused = refusal.written(cycle.scope, cycle.default_headers)
            if refused is None:
                super()._start_asgi_task(cycle, app)  # pyright: ignore[reportAttributeAccessIssue]
                return
            self.transport.write(refused)
            cycle.response_complete = True
            self._headers_since, self._header_bytes = None, 0  # they were there
            self.on_response_complete()

        def on_response_complete(self) -> None:
            self.transport.flush()  # to HEAD there was no body
            super().on_response_complete()  # pyright: ignore[reportAttributeAccessIssue]

        @property
        def waiting_since(self) -> float | None:
            """Since when headers are awaited; None when they are there."""
            return self._headers_since

        def look(self, now: float) -> None:
            """Close the connection if its client is too slow."""
            if self._headers_since is not None and now - self._headers_since > patience.header_s:
                self.transport.close()
            elif not self._between_requests and self.cycle.more_body:
                self._look_at_body(now)
            self._look_at_answer(now)

        @property
        def _between_requests(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _look_at_body(self, now: float) -> None:
            if not self.flow.read_paused:
                if now - self._window_since < patience.window_s:
                    return
                if self._window_bytes < patience.body_bytes_per_s * patience.window_s:
                    self.transport.close()
            self._window_since, self._window_bytes = now, 0

        def _look_at_answer(self, now: float) -> None:
            unread = self.transport.get_write_buffer_size()
            if unread == 0 or unread < self._unread:
                self._unread_since = now
            elif now - self._unread_since > patience.answer_s:
                self.transport.abort()
            self._unread = unread

    return Patient


async def look_after(connections: set[Any], patience: Patience) -> None:
    """Look at connections again and again, until cancelled."""
    while True:
        await asyncio.sleep(patience.look_every_s)
        now = time.monotonic()
        for connection in list(connections):
            connection.look(now)


def _answer_at_once(transport: Any) -> None:
    """Send what is written, without waiting for more of it.

    asyncio does this by itself, but not for connections from a socket that was bound by somebody else (its
    `proto` is 0). Headers and body are two writes, and the second would wait for the client's acknowledgement
    of the first, which comes up to 40 ms later.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _evict(connections: set[Any]) -> None:
    waiting = [one for one in connections if one.waiting_since is not None]
    if waiting:
        min(waiting, key=lambda one: one.waiting_since).transport.abort()
