"""OpenTelemetry spans, if it is installed: one for each request, a child of the caller's.

Nothing is set up or exported here. The program that installs a provider does so, such as
`opentelemetry-instrument dsearch serve`. Without the package, or without a provider, nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

Finish = Callable[[str, int], None]
"""Told the declared route and the status before a span ends."""


class RequestSpans:
    """Makes spans of requests.

    Args:
        tracer: of OpenTelemetry; the global provider's when it is None, and none without the package.
    """

    def __init__(self, tracer: Any = None):
        if tracer is None and find_spec("opentelemetry") is not None:
            from opentelemetry import trace

            tracer = trace.get_tracer("dsearch")
        self._tracer = tracer

    @contextmanager
    def of(self, method: str, headers: Mapping[str, str], request_id: str) -> Generator[Finish]:
        """A span around one request."""
        if self._tracer is None or not self.seen:
            yield lambda route, status: None
            return
        from opentelemetry import propagate, trace

        parent = propagate.extract(dict(headers))
        attributes = {"http.request.method": method, "dsearch.request_id": request_id}
        with self._tracer.start_as_current_span(
            method, context=parent, kind=trace.SpanKind.SERVER, attributes=attributes
        ) as span:

            def finish(route: str, status: int) -> None:
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_status(trace.StatusCode.ERROR)

            yield finish

    @property
    def seen(self) -> bool:
        """True if a span would be recorded; a proxy tracer counts once a real provider is installed."""
        if self._tracer is None:
            return False
        from opentelemetry import trace

        if not isinstance(self._tracer, trace.ProxyTracer):
            return True
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
