"""`Refusal`: the answer to a request that admission control rejects; most answers under overload.

It is prepared in advance and sent by the outermost middleware that knows the service, before anything else is
done for the request: beside an encoder that empties the caches, its cost depends on the code that it touches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from starlette.types import Message, Scope

from dsearch.service.errors import Overloaded
from dsearch.service.overload.admission import Admission
from dsearch.service.telemetry import logs
from dsearch.service.telemetry.metrics import Metrics
from dsearch.service.wire.error_shapes import Shape, shape_of
from dsearch.service.wire.json import new_id
from dsearch.service.wire.problems import add_headers, problem_of

_REFUSED = "the server is overloaded; retry after the number of seconds given in Retry-After"


class Refusal:
    """One for a service.

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
        if logs.access.isEnabledFor(logging.INFO):
            fields = {"method": scope["method"], "status": self._status}
            logs.access.info("refused", extra={"fields": fields})
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
