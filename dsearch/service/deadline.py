"""`Deadline`: timeouts of requests, and cancellation of work for clients that have disconnected.

The header `X-Timeout-Ms` sets the timeout; the default is 2 s for a search, 30 s for a request of many
queries and 60 s for a write. A read is answered within its timeout, if only with 504. A write is dropped if
its timeout ends before it has begun; once begun it is finished and acknowledged. Waiting work is dropped if
its client closes the connection.
"""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsearch.errors import InvalidRequest
from dsearch.service.errors import DeadlinePassed
from dsearch.service.keys import needed_scope

HEADER = "X-Timeout-Ms"
QUERY_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 60.0
MAX_READ_TIMEOUT_S = 30.0
MAX_WRITE_TIMEOUT_S = 600.0
_ONE_QUERY = re.compile(r"/v1/collections/[^/]+/(search|similar)")
_UPLOAD = re.compile(r"/v1/collections/[^/]+/(models/save|files)")

# The workers look it up here: routes need not pass it on, and none can forget to.
_present: ContextVar[float | None] = ContextVar("deadline", default=None)


def present() -> float | None:
    """Return the deadline of the running request by the event loop's clock; None outside of a request."""
    return _present.get()


class InTime:
    """Cancel the block at the request's deadline: `async with InTime("search"):`.

    Every search enters it; a generator would cost twice as much.

    Raises:
        DeadlinePassed: the deadline passed first.
    """

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


def passed(work: str, written: str = "") -> DeadlinePassed:
    """Return the error of a request after its deadline.

    Args:
        work: what took too long, such as "search".
        written: what a write has stored, such as "nothing of it was written".
    """
    what = f"the time for this {work} is over"
    if written:
        return DeadlinePassed(f"{what}: {written}; send it again, and ask for more time with {HEADER}")
    return DeadlinePassed(f"{what}; ask for more with {HEADER}, or ask for less")


_WATCHED_AFTER_S = 0.02  # most requests are answered by then, and a watch costs as much as their routing


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
        header, bodiless = _headers(scope)
        loop = asyncio.get_running_loop()
        token = _present.set(loop.time() + self._timeout_s(scope, header))
        client = _Client(receive, send, loop)
        if bodiless:
            await client.read_on()  # the route does not, so a disconnect would go unnoticed
        try:
            await self.app(scope, client.receive, client.send)
        except asyncio.CancelledError:
            if not client.gone:
                raise
            raise ClientDisconnect from None
        finally:
            client.forget()
            _present.reset(token)

    def _timeout_s(self, scope: Scope, header: str | None) -> float:
        if header is None and _ONE_QUERY.fullmatch(scope["path"]):
            return self.query_timeout_s
        if header is None and _UPLOAD.fullmatch(scope["path"]):
            return MAX_WRITE_TIMEOUT_S  # a model or files are long on their way
        reads = needed_scope(scope["method"], scope["path"]) == "read"
        if header is None:
            return READ_TIMEOUT_S if reads else WRITE_TIMEOUT_S
        most_ms = round(1000 * (MAX_READ_TIMEOUT_S if reads else MAX_WRITE_TIMEOUT_S))
        if not (header.isascii() and header.isdigit() and len(header) < 10 and 1 <= int(header) <= most_ms):
            raise InvalidRequest(f"{HEADER}: {header[:80]}; use whole milliseconds from 1 to {most_ms}")
        return int(header) / 1000


def _headers(scope: Scope) -> tuple[str | None, bool]:
    """The time that a request gives itself, and whether it has no body; names come in lower case."""
    header, bodiless = None, True
    for name, value in scope["headers"]:
        if name == b"x-timeout-ms":
            header = value.decode("latin-1") if header is None else header
        elif (name == b"content-length" and value != b"0") or name == b"transfer-encoding":
            bodiless = False
    return header, bodiless


class _Client:
    """Client of a request. Once the body is read, its next message can only be a disconnect."""

    def __init__(self, receive: Receive, send: Send, loop: asyncio.AbstractEventLoop):
        self._receive, self._send, self._loop = receive, send, loop
        self._handler = asyncio.current_task()
        self._later: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[Message] | None = None
        self._read: Message | None = None
        self._answered = False
        self.gone = False

    async def send(self, message: Message) -> None:
        """As ASGI's `send`; notes the end of the answer, which servers report as a disconnect, too."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    async def read_on(self) -> None:
        """Read the first message ahead; `receive` returns it."""
        self._read = await self.receive()

    async def receive(self) -> Message:
        """The next message. Some time after the body has ended, a task starts to wait for a disconnect."""
        if self._read is not None:
            message, self._read = self._read, None
            return message
        if self._later is not None:
            return await asyncio.shield(self._watching())
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._later = self._loop.call_later(_WATCHED_AFTER_S, self._watching)
        return message

    def forget(self) -> None:
        """End the waiting task and drop the references to it.

        Otherwise this, the task, its cancellation and its frames would be a reference cycle of fifty objects
        a request, and a busy server's garbage collector stops all threads to find those.
        """
        if self._later is not None:
            self._later.cancel()
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._handler = None

    def _watching(self) -> asyncio.Task[Message]:
        if self._watch is None:
            self._watch = self._loop.create_task(self._leaves())
        return self._watch

    async def _leaves(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._handler is not None and not self._answered:
            self.gone = True
            self._handler.cancel()
        return message
