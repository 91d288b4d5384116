"""`Client` and `AsyncClient`: the calls, over HTTP.

Both retry if the server asks for it (429, 503: after its Retry-After, or a growing delay), and if a
connection breaks. A request that is not repeatable is retried only if the server has said that it did not
begin (429, 503).
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import time
from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from dsearch.client.calls import Calls
from dsearch.client.over_http import flow_of
from dsearch.client.wire import NOTHING, HttpReply, Pause, Request, error_of
from dsearch.errors import Command, DsearchError, InvalidRequest, Unavailable
from dsearch.operations import Call
from dsearch.version import __version__

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080"
RETRIES = 4
TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 5.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_LATER = (429, 503)
_PART_BYTES = 1 << 18
_DEADLINE = "X-Timeout-Ms"


class _Connection:
    """Settings of both clients: address of the server, timeouts, number of retries."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        retries: int = RETRIES,
        transport: Any = None,
    ):
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"url={url!r}; use one such as {DEFAULT_URL}")
        for name, value in {"timeout_s": timeout_s, "write_timeout_s": write_timeout_s}.items():
            if not value > 0:
                raise InvalidRequest(f"{name}={value}; use a number of seconds above 0")
        if retries < 0:
            raise InvalidRequest(f"retries={retries}; use 0 or more")
        self.url = url.rstrip("/")
        self.timeout_s, self.write_timeout_s, self.retries = timeout_s, write_timeout_s, retries
        self._api_key = api_key
        self._transport = transport

    def _settings(self) -> dict[str, Any]:
        headers = {"User-Agent": f"dsearch/{__version__}"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        # Ignore the environment's proxies and password files: queries go only to the caller's address.
        settings: dict[str, Any] = {"base_url": self.url, "headers": headers, "trust_env": False}
        return settings if self._transport is None else {**settings, "transport": self._transport}

    def _arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments of `httpx2.Client.request`."""
        import httpx2

        limit_s = self.write_timeout_s if request.writes else self.timeout_s
        headers = {"Accept": f"{request.accept}, application/problem+json"}
        if request.content is not None:
            headers["Content-Type"] = request.content_type
        if not isinstance(request.content, bytes | None):
            headers["Content-Length"] = str(request.content.seek(0, os.SEEK_END))
        if not request.writes:  # the server then stops with this timeout; it accepts 30 s at most
            headers[_DEADLINE] = str(max(1, round(1000 * min(limit_s, 30.0))))
        return {
            "method": request.method,
            "url": request.path,
            "params": request.query or None,
            "headers": headers,
            "timeout": httpx2.Timeout(limit_s, connect=min(limit_s, CONNECT_TIMEOUT_S)),
        }

    def _attempts(self, request: Request) -> Generator[float, HttpReply | Exception, HttpReply]:
        """Yields how long to pause before each attempt, is sent what became of it, and returns the answer."""
        import httpx2

        pause_s = 0.0
        for attempt in range(self.retries + 1):
            outcome = yield pause_s
            last = attempt == self.retries
            if isinstance(outcome, HttpReply):
                if outcome.status < 400:
                    return outcome
                later = _retry_after_s(outcome)
                if outcome.status not in _LATER or last or (later or 0) > _LONGEST_PAUSE_S:
                    raise error_of(outcome)
                pause_s = max(_pause_s(attempt), later or 0.0)
            else:
                never_sent = isinstance(outcome, httpx2.ConnectError | httpx2.ConnectTimeout)
                timed_out = isinstance(outcome, httpx2.TimeoutException)
                if last or not (never_sent or (request.repeatable and not timed_out)):
                    raise self._unreachable(request, outcome) from outcome
                pause_s = _pause_s(attempt)
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, request: Request, error: Exception) -> Unavailable:
        import httpx2

        call = f"{request.method} {self.url}{request.path.partition('?')[0]}"
        if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
            name = "write_timeout_s" if request.writes else "timeout_s"
            return Unavailable(f"{call}: no answer in {getattr(self, name):g} s; give a larger {name}")
        said = str(error) or type(error).__name__
        return Unavailable(f"{call}: {said}; is the server running? Start one", hint=Command("serve"))


def _answer(response: httpx2.Response) -> HttpReply:
    return HttpReply(response.status_code, dict(response.headers), response.content)


def _from_start(content: bytes | BinaryIO | None) -> bytes | BinaryIO | None:
    """A body for another attempt."""
    if not isinstance(content, bytes | None):
        content.seek(0)
    return content


async def _parts_of(file: BinaryIO) -> AsyncIterator[bytes]:
    while part := await asyncio.to_thread(file.read, _PART_BYTES):
        yield part


def _pause_s(attempt: int) -> float:
    """Return a growing, random delay, so that clients refused together do not return together."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0)


def _retry_after_s(answer: HttpReply) -> float | None:
    header = answer.headers.get("retry-after", "")
    return float(header) if header.isascii() and header.isdigit() and len(header) < 9 else None


class Client(_Connection, Calls):
    """Talks to a dsearch server. Threads may share it; close it, or use it in a `with` statement.

    Every method raises the errors that the same call raises in Python, by the server's `code`, and
    Unavailable when no server answers.

    Args:
        url: the server's address.
        api_key: where the server asks for one (see `dsearch keys`).
        timeout_s: how long a read may take, each attempt; the server gives up then, too.
        write_timeout_s: how long a write may take: documents are encoded and durable before the answer.
        retries: how often to try again when the server says later or a connection breaks.
        transport: of httpx2, to reach the server by other means than a socket.

    Raises:
        InvalidRequest: not an http address, a time that is not above 0, retries below 0.
    """

    def run(self, call: Call[T], /) -> T:
        """Carry out a call and return its result."""
        flow = flow_of(call)
        try:
            request = next(flow)
            while True:
                try:
                    answer = self._ask(request)
                except DsearchError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(answer)
        except StopIteration as end:
            return end.value

    def _ask(self, request: Request | Pause) -> HttpReply:
        import httpx2

        if isinstance(request, Pause):
            time.sleep(request.seconds)
            return NOTHING
        attempts, arguments = self._attempts(request), self._arguments(request)
        pause_s = next(attempts)
        try:
            while True:
                time.sleep(pause_s)
                try:
                    content = _from_start(request.content)
                    outcome: HttpReply | Exception = _answer(self._http.request(**arguments, content=content))
                except (httpx2.TransportError, httpx2.InvalidURL) as error:
                    outcome = error
                pause_s = attempts.send(outcome)
        except StopIteration as end:
            return end.value

    @functools.cached_property
    def _http(self) -> httpx2.Client:
        import httpx2

        return httpx2.Client(**self._settings())

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Connection, Calls):
    """`Client` for an event loop: the same methods, to be awaited; use it in an `async with` statement."""

    async def run(self, call: Call[T], /) -> T:
        """Carry out a call and return its result."""
        flow = flow_of(call)
        try:
            request = next(flow)
            while True:
                try:
                    answer = await self._ask(request)
                except DsearchError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(answer)
        except StopIteration as end:
            return end.value

    async def _ask(self, request: Request | Pause) -> HttpReply:
        import httpx2

        if isinstance(request, Pause):
            await asyncio.sleep(request.seconds)
            return NOTHING
        attempts, arguments = self._attempts(request), self._arguments(request)
        pause_s = next(attempts)
        try:
            while True:
                await asyncio.sleep(pause_s)
                try:
                    content = _from_start(request.content)
                    if not isinstance(content, bytes | None):
                        content = _parts_of(content)
                    reply = await self._http.request(**arguments, content=content)
                    outcome: HttpReply | Exception = _answer(reply)
                except (httpx2.TransportError, httpx2.InvalidURL) as error:
                    outcome = error
                pause_s = attempts.send(outcome)
        except StopIteration as end:
            return end.value

    @functools.cached_property
    def _http(self) -> httpx2.AsyncClient:
        import httpx2

        return httpx2.AsyncClient(**self._settings())

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
