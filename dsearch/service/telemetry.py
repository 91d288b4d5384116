"""Metrics and spans of requests, `/metrics` (Prometheus) and OpenTelemetry, and logs.

A log has one JSON object a line, each with the id of its request. Queries are never logged. Addresses contain
queries and ids, so the log holds the declared route instead.

Each application has a registry of its own. Labels are bounded: routes as declared, never addresses; open
collections; no query, no id.

`RequestSpans` makes OpenTelemetry spans, if it is installed: one for each request, a child of the caller's.
Nothing is set up or exported here. The program that installs a provider does so, such as
`opentelemetry-instrument dsearch serve`. Without the package, or without a provider, nothing happens.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dsearch.types import SearchResult

MEDIA_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_SHARES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0)
_NATS = (0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6)

AnyMetric = TypeVar("AnyMetric", Counter, Histogram)

Reading = tuple[str, str, dict[str, str], float]
"""A number read at the time of asking: name, description, labels, value. "_total" names are counters."""


class Metrics:
    """Counters of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "dsearch_requests", "Answered requests.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "dsearch_request_seconds",
            "From the request's headers to the end of the answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stages = Histogram(
            "dsearch_stage_seconds",
            "Seconds by stage: queue (of each job), batch (computing one), encode (queries of one).",
            ("worker", "stage"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._sizes = Histogram(
            "dsearch_batch_size",
            "Jobs computed together.",
            ("worker",),
            buckets=_SIZES,
            registry=self.registry,
        )
        self._rejections = Counter(
            "dsearch_rejections",
            "Jobs refused (overloaded) or dropped (deadline, client gone).",
            ("worker", "reason"),
            registry=self.registry,
        )
        self._mass = Histogram(
            "dsearch_covered_mass",
            "Share of the exact softmax that the candidates hold, where it was computed.",
            ("collection",),
            buckets=_SHARES,
            registry=self.registry,
        )
        self._entropy = Histogram(
            "dsearch_attention_entropy_nats",
            "Entropy of the attention of a search.",
            ("collection",),
            buckets=_NATS,
            registry=self.registry,
        )
        self._overloaded = self._rejections.labels("server", "overloaded")
        self._labelled: dict[tuple[object, tuple[str, ...]], Any] = {}
        self.accepted = 0
        self._present = 0
        self._readings: list[Callable[[], Sequence[Reading]]] = []
        self._reading = threading.Lock()
        self.registry.register(self)

    def begun(self) -> None:
        """A request that was not refused at the door begins; in the event loop, as its end."""
        self.accepted += 1
        self._present += 1

    def ended(self) -> None:
        """It was answered, or its client has gone."""
        self._present -= 1

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        """A request was answered."""
        self._of(self._requests, method, route, str(status)).inc()
        self._of(self._seconds, route).observe(took_s)

    def batch(self, worker: str, waited_s: Sequence[float], took_s: float) -> None:
        """Count the waiting time of each job of a batch, and the time that the batch took."""
        queue = self._of(self._stages, worker, "queue")
        for waited in waited_s:
            queue.observe(waited)
        self._of(self._stages, worker, "batch").observe(took_s)
        self._of(self._sizes, worker).observe(len(waited_s))

    def refused(self) -> None:
        """A request was refused at the door."""
        self._overloaded.inc()

    def rejected(self, worker: str, reason: str) -> None:
        """Count a job that was refused ("overloaded") or dropped ("deadline", "client gone")."""
        self._rejections.labels(worker, reason).inc()

    def encoded(self, took_s: float) -> None:
        """A batch of queries was encoded."""
        self._of(self._stages, "search", "encode").observe(took_s)

    def searched(self, collection: str, results: Sequence[SearchResult]) -> None:
        """Queries were answered."""
        entropy = self._of(self._entropy, collection)
        for result in results:
            entropy.observe(result.attention.entropy)
            if result.attention.covered_mass is not None:
                self._of(self._mass, collection).observe(result.attention.covered_mass)

    def _of(self, metric: AnyMetric, *labels: str) -> AnyMetric:
        """Return the metric for these labels; cached, because the lookup takes longer than counting."""
        child: Any = self._labelled.get((metric, labels))
        if child is None:
            child = self._labelled[metric, labels] = metric.labels(*labels)
        return child

    def read(self, readings: Callable[[], Sequence[Reading]]) -> None:
        """Show, too, what this function says whenever somebody asks."""
        self._readings.append(readings)

    def collect(self) -> Iterator[Metric]:
        """The readings, as Prometheus' registry asks for them."""
        families: dict[str, Metric] = {}
        with self._reading:
            every = [family for readings in self._readings for family in readings()]
        every.append(("dsearch_requests_in_flight", "Requests being answered.", {}, self._present))
        every.append(("dsearch_requests_accepted_total", "Requests that were begun.", {}, self.accepted))
        for name, description, labels, value in every:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            if name not in families:
                families[name] = kind(name, description, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
        yield from families.values()

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


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


LogFormat = Literal["json", "text"]
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

access = logging.getLogger("dsearch.access")
"""One line for each answered request, at level INFO."""


class JsonLines(logging.Formatter):
    """`{"time", "level", "logger", "message", "request_id", …}`, and what `extra={"fields": {…}}` holds."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (id := request_id.get()) is not None:
            line["request_id"] = id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logs(level: str = "info", format: LogFormat = "text") -> None:
    """Let this process write its logs to stderr; called by whoever runs a server, never by a library.

    Args:
        level: debug, info, warning or error; "info" has a line for each request.
        format: "json", or "text" for people.
    """
    handler = logging.StreamHandler(sys.stderr)
    if format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of others
    logging.getLogger("dsearch").setLevel(level.upper())
