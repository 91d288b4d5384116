"""`Refusal`: the answer to a request that admission control rejects; most answers under overload.

It is prepared in advance, because it must cost almost nothing. Beside an encoder that empties the caches, the
cost depends on the amount of code and memory touched: through the layers of an ASGI application a rejection
cost several times as much as in an idle server. A connection therefore writes it directly
(middleware/slow_clients.py); if that is not possible, the guard sends it by ASGI.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus

from starlette.types import Message, Scope

from dsearch.service.errors import Overloaded
from dsearch.service.overload.admission import Admission
from dsearch.service.telemetry import logs
from dsearch.service.telemetry.metrics import Metrics
from dsearch.service.wire.json import new_id
from dsearch.service.wire.problems import add_headers, problem_of

_REFUSED = "the server is overloaded; retry after the number of seconds given in Retry-After"
_HEADER = b"%s: %s\r\n"


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
        response = problem_of(Overloaded(_REFUSED))
        self._status, self._body = response.status_code, bytes(response.body)
        start = {"headers": response.raw_headers}
        add_headers(start, "", close=False)
        self._headers = [header for header in start["headers"] if header[0] != b"x-request-id"]
        self._head = f"HTTP/1.1 {self._status} {HTTPStatus(self._status).phrase}\r\n".encode()
        self._head += b"".join(_HEADER % header for header in self._headers)

    def written(self, scope: Scope, beside: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The whole answer to a request, as it goes over a connection that stays open.

        None: the request is not refused; or it is for others to do so, since the answer has no body or the
        connection is to be closed.

        Args:
            scope: of the request, as ASGI has it.
            beside: headers of the server's own.
        """
        if scope["method"] == "HEAD" or self._leaving() or not self.admission.refuses(scope["path"]):
            return None
        self._count(scope)
        headers = b"".join([_HEADER % header for header in beside])
        return b"%s%sx-request-id: %s\r\n\r\n%s" % (self._head, headers, _new_id(), self._body)

    def messages(self, scope: Scope) -> tuple[Message, Message] | None:
        """The answer in ASGI's messages; None: the request is not refused."""
        if not self.admission.refuses(scope["path"]):
            return None
        self._count(scope)
        headers = [*self._headers, (b"x-request-id", _new_id())]
        if self._leaving():
            headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": self._status, "headers": headers}
        return start, {"type": "http.response.body", "body": self._body}

    def _count(self, scope: Scope) -> None:
        self._metrics.refused()
        if logs.access.isEnabledFor(logging.INFO):
            fields = {"method": scope["method"], "status": self._status}
            logs.access.info("refused", extra={"fields": fields})


def _new_id() -> bytes:
    return new_id().encode()
