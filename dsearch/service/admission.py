"""Admission control: bounds on requests in progress, the event loop's delay, and the answer to the rejected.

`Admission` decides before anything else is done for a request. The queue of searches is bounded only after
parsing: a flood would be parsed just to be rejected, at half the cost of an answer. Here a search costs a
comparison. The number of requests in a busy service, times its pace, is its latency (Little's law), so
bounding that number bounds the latency.

A burst is admitted, because it may wait. A load that stays above capacity is not, because waiting makes all
of its answers late. So the bound is generous until it is reached, and tight from then on: one batch that is
computed and one that waits. It stays tight until no request was rejected for a second, but for a minute at
most. Then the generous bound applies again; under a persistent load it is soon reached again.

`EventLoopLag` detects an overload that occurs before any request reaches a queue: when reading, routing and
writing requests exceeds the capacity of one thread. A late timer reveals an overloaded event loop. New
requests are then rejected with a probability that grows with the delay and stays below 1, so the loop never
goes idle. One late timer is a machine that was asleep or a process that was paused; only two in a row are a
load.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable

from starlette.types import Message, Receive, Scope

from dsearch.service import telemetry
from dsearch.service.errors import Overloaded
from dsearch.service.telemetry import Metrics
from dsearch.service.wire.json import add_headers, new_id
from dsearch.service.wire.problems import Shape, problem_of, shape_of

BURST = 64
TWO_BATCHES = 36  # of eighteen, with room for what refusals cost; of fourteen a tenth less was answered
SHORT_S = 0.04  # of waiting is acceptable: if it exceeds two batches, more are admitted
LONG_S = 1.0  # of waiting is too long: if a burst takes longer, fewer are admitted
LEAST, MOST = 8, 256
CALM_S = 1.0
TIGHT_S = 60.0
MAX_IN_FLIGHT = 1024  # of all requests; far above the queues of the others, which refuse by themselves

_ALWAYS_ANSWERED = ("/healthz", "/readyz", "/metrics")
# Files that make the page: without one of them the page is dead and cannot even say that it has to wait.
_PAGE = re.compile(r"/|/docs|/ui/[\w.-]+")
_SEARCHES = re.compile(
    r"/v1/collections/[^/]+/(search|search/batch|similar|attend|vjp|predict)"
    r"|/mcp|/retrieve"
)


class Admission:
    """Counts what is in the service; used by the event loop alone.

    Args:
        pace_s: seconds that a search takes of late; 0 when not known.
        lag: how late the event loop is.
        clock: seconds.
    """

    def __init__(
        self, pace_s: Callable[[], float], lag: EventLoopLag, clock: Callable[[], float] = time.monotonic
    ):
        self.searches = 0
        self.requests = 0
        self._pace_s = pace_s
        self._lag = lag
        self._clock = clock
        self._tight_since = self._tight_until = -TIGHT_S

    @property
    def tight(self) -> bool:
        """True if searches were rejected recently."""
        return self._clock() < self._tight_until

    @property
    def limit(self) -> int:
        """Searches that may be in the service."""
        limit = TWO_BATCHES if self.tight else BURST
        pace_s = self._pace_s()
        if not pace_s:
            return limit
        most, least = min(MOST, SHORT_S / pace_s), max(LEAST, LONG_S / pace_s)
        return int(min(max(limit, most), least))

    @property
    def batch(self) -> int:
        """Searches to be computed together: any number, but half of those let in while others are refused.

        A batch of all that wait leaves nobody to compute next: what arrives meanwhile finds room for a few,
        the batch after it is small, and long and short ones alternate. The waits of a long one are twice as
        long for the same number of answers.
        """
        return max(1, self.limit // 2) if self.tight else MAX_IN_FLIGHT

    def refuses(self, path: str) -> bool:
        """Return True if a request for `path` is to be rejected."""
        if path in _ALWAYS_ANSWERED:
            return False
        if self.requests >= MAX_IN_FLIGHT:
            return True
        if _PAGE.fullmatch(path) is not None:
            return False
        if self._lag.refuses():
            return True
        if self.searches < self.limit or _SEARCHES.fullmatch(path) is None:
            return False
        now = self._clock()
        if now >= self._tight_until:
            self._tight_since = now
        self._tight_until = min(now + CALM_S, self._tight_since + TIGHT_S)
        return True

    def let_in(self, path: str, receive: Receive) -> AdmittedRequest:
        """The place of a request that is not refused."""
        return AdmittedRequest(self, path, receive)


class AdmittedRequest:
    """The place of one request, taken when the last of its body is there.

    Earlier it costs nothing but a connection, and counting it would let those who never send theirs keep
    everybody out.
    """

    def __init__(self, admission: Admission, path: str, receive: Receive):
        self._admission = admission
        self._receive = receive
        self._search = _SEARCHES.fullmatch(path) is not None
        self._taken = False

    async def receive(self) -> Message:
        """As ASGI's `receive`."""
        message = await self._receive()
        if not self._taken and message["type"] == "http.request" and not message.get("more_body", False):
            self.take()
        return message

    def take(self) -> None:
        """Count the request."""
        self._taken = True
        self._admission.requests += 1
        self._admission.searches += self._search

    def leave(self) -> None:
        """It was answered."""
        if self._taken:
            self._taken = False
            self._admission.requests -= 1
            self._admission.searches -= self._search


TOLERATED_S = 0.3
FULL_S = 1.5
MOST_REFUSED = 0.9
_LOOK_EVERY_S = 0.02
_FADING = 0.7


class EventLoopLag:
    """Measures one event loop, from `start` to `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sustained = self._last = 0.0
        self._owed = 0.0
        self._task: asyncio.Task[None] | None = None

    def refuses(self) -> bool:
        """Return True if this request is to be rejected; over many calls the share of True is the one due."""
        late = (self._sustained - TOLERATED_S) / (FULL_S - TOLERATED_S)
        if late <= 0:
            self._owed = 0.0
            return False
        self._owed += min(late, MOST_REFUSED)
        if self._owed < 1:
            return False
        self._owed -= 1
        return True

    def start(self) -> None:
        """Begin; in the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._measure())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.seconds = self._sustained = self._last = 0.0

    def observe(self, late_s: float) -> None:
        """Take in how late one timer was, in seconds."""
        self.seconds = max(late_s, _FADING * self.seconds)
        self._sustained = max(min(late_s, self._last), _FADING * self._sustained)
        self._last = late_s

    async def _measure(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
            self.observe(clock() - due)


_REFUSED = "the server is overloaded; retry after the number of seconds given in Retry-After"


class Refusal:
    """The answer to a request that admission control rejects; most answers under overload.

    It is prepared in advance and sent by the outermost middleware that knows the service, before anything
    else is done for the request: beside an encoder that empties the caches, its cost depends on the code that
    it touches.

    Args:
        admission: says who is refused, and counts who is not.
        leaving: whether the server is about to stop: connections are then closed with their answer.
        metrics: told of each.
    """

    def __init__(self, admission: Admission, leaving: Callable[[], bool], metrics: Metrics):
        self.admission = admission
        self._leaving = leaving
        self._metrics = metrics
        self._problem = problem_of(Overloaded(_REFUSED))
        self._status = self._problem.status_code
        self._prepared: dict[Shape | None, tuple[list[tuple[bytes, bytes]], bytes]] = {}
        self._answer(None)

    def messages(self, scope: Scope) -> tuple[Message, Message] | None:
        """The answer in ASGI's messages; None: the request is not refused."""
        if not self.admission.refuses(scope["path"]):
            return None
        self._metrics.refused()
        if telemetry.access.isEnabledFor(logging.INFO):
            fields = {"method": scope["method"], "status": self._status}
            telemetry.access.info("refused", extra={"fields": fields})
        prepared, body = self._answer(shape_of(scope["path"]))
        headers = [*prepared, (b"x-request-id", new_id().encode())]
        if self._leaving():
            headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": self._status, "headers": headers}
        return start, {"type": "http.response.body", "body": body}

    def _answer(self, shape: Shape | None) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Headers and body of the answer in a shape, made once."""
        if shape not in self._prepared:
            response = self._problem.shaped(shape)
            start = {"headers": response.raw_headers}
            add_headers(start, "", close=False)
            headers = [header for header in start["headers"] if header[0] != b"x-request-id"]
            self._prepared[shape] = headers, bytes(response.body)
        return self._prepared[shape]
