"""`Deadline`: how long a request may take, and that nobody computes for a client that has gone.

`X-Timeout-Ms` says it; without it a search has 2 s, a request of many queries 30 s, a write 60 s. A read is
answered within that time, if only with 504. A write is dropped when its time runs out before it was begun;
once begun it is finished and acknowledged. What waits for a client that closes its connection is dropped.
"""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar
from types import TracebackType

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsearch.errors import InvalidRequest
from dsearch.service.access import needed_scope
from dsearch.service.errors import DeadlinePassed

HEADER = "X-Timeout-Ms"
QUERY_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0
MAX_READ_TIMEOUT_S = 30.0
MAX_WRITE_TIMEOUT_S = 600.0
_ONE_QUERY = re.compile(r"/v1/collections/[^/]+/(search|similar)")

# The workers look it up here: routes need not pass it on, and none can forget to.
_present: ContextVar[float | None] = ContextVar("deadline", default=None)


def present() -> float | None:
    """When the running request's time is over, by the event loop's clock; None outside of one."""
    return _present.get()


def in_time(work: str) -> InTime:
    """Cut what is inside off when the request's time is over: `async with in_time("search"):`.

    Raises:
        DeadlinePassed: it was.
    """
    return InTime(work)


class InTime:
    """What `in_time` returns: every search enters it, and a generator for it would cost twice as much."""

    def __init__(self, work: str):
        self._work = work
        self._timeout = asyncio.timeout_at(present())

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise passed(self._work) from None


def passed(work: str) -> DeadlinePassed:
    """The error of a request whose time is over."""
    return DeadlinePassed(f"the time for this {work} is over; ask for more with {HEADER}, or ask for less")


class Deadline:
    """An ASGI middleware: sets the request's deadline, and cancels it when its client goes away.

    Args:
        app: what is guarded.
        query_timeout_s: for a search without the header.
    """

    def __init__(self, app: ASGIApp, query_timeout_s: float = QUERY_TIMEOUT_S):
        self.app = app
        self.query_timeout_s = query_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it.

        Raises:
            InvalidRequest: a header that is no time, or too long a one.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        token = _present.set(asyncio.get_running_loop().time() + self._timeout_s(scope))
        client = _Client(receive)
        if _has_no_body(scope):
            await client.read_on()  # its route will not, and so nobody would see the client leave
        try:
            await self.app(scope, client.receive, client.sender(send))
        except asyncio.CancelledError:
            if not client.gone:
                raise
            raise ClientDisconnect from None
        finally:
            client.forget()
            _present.reset(token)

    def _timeout_s(self, scope: Scope) -> float:
        given = Headers(scope=scope).get(HEADER)
        reads = needed_scope(scope["method"], scope["path"]) == "read"
        if given is None:
            if not reads:
                return WRITE_TIMEOUT_S
            return self.query_timeout_s if _ONE_QUERY.fullmatch(scope["path"]) else READ_TIMEOUT_S
        most_ms = round(1000 * (MAX_READ_TIMEOUT_S if reads else MAX_WRITE_TIMEOUT_S))
        if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most_ms):
            raise InvalidRequest(f"{HEADER}: {given[:80]}; use whole milliseconds from 1 to {most_ms}")
        return int(given) / 1000


def _has_no_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers


class _Client:
    """The receiving side of a request: once the body is read, the next message can only be a farewell."""

    def __init__(self, receive: Receive):
        self._receive = receive
        self._handler = asyncio.current_task()
        self._watch: asyncio.Task[Message] | None = None
        self._read: Message | None = None
        self._answered = False
        self.gone = False

    def sender(self, send: Send) -> Send:
        """`send` that notes when the answer is complete: servers call that a farewell, too."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._answered = True
            await send(message)

        return noting

    async def read_on(self) -> None:
        """Take the first message; `receive` gives it."""
        self._read = await self.receive()

    async def receive(self) -> Message:
        """The next message; after the last part of the body a watch is kept for the client's leaving."""
        if self._read is not None:
            message, self._read = self._read, None
            return message
        if self._watch is not None:
            return await asyncio.shield(self._watch)
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._watch = asyncio.create_task(self._leaves())
        return message

    def forget(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.cancel()

    async def _leaves(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._handler is not None and not self._answered:
            self.gone = True
            self._handler.cancel()
        return message
