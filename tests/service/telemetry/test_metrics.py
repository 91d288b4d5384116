"""What an operator sees: /metrics, logs with request ids and without queries, spans."""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import WordEncoder
from support.service.workers import hold_encoder

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import CorruptData
from dsearch.service import telemetry
from dsearch.training import TrainingOptions, examples_from_judgements, finetune

URL = "/v1/collections/papers"


def scraped(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answered = client.get("/metrics")
    assert answered.status_code == 200
    assert answered.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answered.text)
        for sample in family.samples
    }


def value(client: TestClient, name: str, **labels: str) -> float:
    return scraped(client).get((name, tuple(sorted(labels.items()))), 0.0)


def test_requests_stages_and_attention_are_counted(client: TestClient, papers: Collection) -> None:
    for _ in range(3):
        assert client.post(f"{URL}/search", json={"query": "cat river"}).status_code == 200
    assert client.post(f"{URL}/search", json={"query": ""}).status_code == 422
    seen = scraped(client)

    def of(name: str, **labels: str) -> float:
        return seen[name, tuple(sorted(labels.items()))]

    route = "/v1/collections/{collection}/search"
    assert of("dsearch_requests_total", method="POST", route=route, status="200") == 3
    assert of("dsearch_requests_total", method="POST", route=route, status="422") == 1
    assert of("dsearch_request_seconds_count", route=route) == 4
    for stage in ("queue", "batch"):
        assert of("dsearch_stage_seconds_count", worker="search", stage=stage) >= 3
    assert of("dsearch_stage_seconds_count", worker="search", stage="encode") >= 1
    assert of("dsearch_batch_size_count", worker="search") >= 3
    assert of("dsearch_queue_depth", worker="search") == 0
    assert of("dsearch_attention_entropy_nats_count", collection="papers") == 3
    assert of("dsearch_covered_mass_count", collection="papers") == 3
    assert of("dsearch_collection_generation", collection="papers") == papers.snapshot.generation.number
    assert of("dsearch_collection_model", collection="papers", model="v0") == 1
    assert of("dsearch_collection_documents", collection="papers") == 148
    assert of("dsearch_collection_delta", collection="papers") == len(papers.snapshot.fresh) > 0
    assert of("dsearch_requests_in_flight") == 1  # this one


def test_a_kept_query_is_not_encoded_again(engine: SearchEngine, app: FastAPI, papers: Collection) -> None:
    cache = engine.query_cache
    cache.max_bytes = cache._states._max_bytes = 1 << 20
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for _ in range(3):
            client.post(f"{URL}/search", json={"query": "cat river"})
        assert value(client, "dsearch_query_cache_hits_total") == 2
        assert value(client, "dsearch_query_cache_misses_total") == 1
        assert value(client, "dsearch_stage_seconds_count", worker="search", stage="encode") == 1
        assert 0 < value(client, "dsearch_query_cache_bytes") <= 1 << 20


def test_rejections_are_counted_by_reason(
    client: TestClient, papers: Collection, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, release = hold_encoder(encoder, monkeypatch)
    answered = client.post(f"{URL}/search", json={"query": "cat"}, headers={"X-Timeout-Ms": "20"})
    release.set()
    assert answered.status_code == 504
    assert value(client, "dsearch_rejections_total", worker="search", reason="deadline") == 1


def test_what_nobody_declared_is_no_label(client: TestClient) -> None:
    for i in range(20):
        client.get(f"/nothing/{i}")
        client.request(f"METHOD{i}", "/healthz")
        client.get(f"/v1/collections/c{i}")
    routes = {
        dict(labels).get("route") for name, labels in scraped(client) if name == "dsearch_requests_total"
    }
    methods = {
        dict(labels).get("method") for name, labels in scraped(client) if name == "dsearch_requests_total"
    }
    assert routes <= {"none", "/healthz", "/v1/collections/{collection}", "/metrics"}
    assert methods <= {"GET", "other"}
    assert not [labels for _, labels in scraped(client) if "c1" in dict(labels).values()]


def test_drift_of_what_is_asked(client: TestClient, papers: Collection) -> None:
    asked = ["cat river", "dog stone", "lamp music", "index search"] * 3
    graded = {f"q{i}": {f"d{i + 10:03d}": 1.0} for i in range(len(asked))}
    queries = {f"q{i}": f"{text} {i}" for i, text in enumerate(asked)}
    examples = examples_from_judgements(papers, queries, graded)
    trained = finetune(examples, options=TrainingOptions(epochs=1))
    version = papers.add_model(trained.head, trained.record, parent="v0")
    papers.promote(version)
    drift = {"collection": "papers", "model": version}

    def ask(texts: list[str]) -> None:
        answered = client.post(f"{URL}/search/batch", json={"queries": texts, "limit": 1})
        assert answered.status_code == 200

    ask(list(queries.values()) * 2)
    assert value(client, "dsearch_query_drift", **drift) == 0  # there is no such line: too few
    assert "dsearch_query_drift" not in client.get("/metrics").text
    ask(list(queries.values()) * 6)
    assert "dsearch_query_drift" in client.get("/metrics").text
    near = value(client, "dsearch_query_drift", **drift)
    ask(["softmax attention head"] * 250)
    assert near < 0.02 < 0.2 < value(client, "dsearch_query_drift", **drift)
    papers.promote("v0")
    assert "dsearch_query_drift" not in client.get("/metrics").text


def test_two_services_count_apart(client: TestClient, tmp_path: Path) -> None:
    client.get("/healthz")
    with (
        SearchEngine(tmp_path / "other", encoder=WordEncoder) as engine,
        TestClient(patient_app(engine), base_url="http://127.0.0.1") as other,
    ):
        assert value(other, "dsearch_requests_total", method="GET", route="/healthz", status="200") == 0


# ---- logs


def test_a_line_for_each_request_with_its_id_and_without_its_words(
    client: TestClient, papers: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"X-Request-Id": "from-the-proxy_1.2"}
    with caplog.at_level(logging.INFO, logger="dsearch.access"):
        answered = client.get(f"{URL}/search?query=my+illness", headers=given)
        client.get(f"{URL}/documents/secret-id")
    assert answered.headers["x-request-id"] == "from-the-proxy_1.2"
    fields = caplog.records[0].fields  # type: ignore[attr-defined]
    assert fields["route"] == "/v1/collections/{collection}/search"
    assert (fields["method"], fields["status"], fields["key_id"]) == ("GET", 200, None)
    assert fields["took_ms"] > 0
    written = "".join(json.dumps(record.__dict__, default=str) for record in caplog.records)
    assert "illness" not in written
    assert "secret-id" not in written


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, 'a"}', "é"])
def test_what_is_no_request_id_is_replaced(client: TestClient, given: str) -> None:
    answered = client.get("/healthz", headers={"X-Request-Id": given.encode()})  # type: ignore[dict-item]
    assert re.fullmatch("[0-9a-f]{32}", answered.headers["x-request-id"])


# ---- OpenTelemetry


class Tracer:
    """Remembers the spans that it is asked for, as OpenTelemetry's would make them."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    @contextmanager
    def start_as_current_span(self, name: str, **more: Any) -> Any:
        span = {"name": name, "ended": False, **more["attributes"], "context": more["context"]}
        self.spans.append(span)

        class Span:
            def update_name(self, name: str) -> None:
                span["name"] = name

            def set_attribute(self, name: str, value: Any) -> None:
                span[name] = value

            def set_status(self, status: Any) -> None:
                span["status"] = status

        yield Span()
        span["ended"] = True


def test_a_span_for_each_request() -> None:
    pytest.importorskip("opentelemetry")
    tracer = Tracer()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with telemetry.RequestSpans(tracer).of("GET", {"traceparent": parent}, "r1") as finish:
        finish("/v1/collections/{collection}/search", 200)
    (span,) = tracer.spans
    assert span["name"] == "GET /v1/collections/{collection}/search"
    assert (span["http.response.status_code"], span["dsearch.request_id"], span["ended"]) == (200, "r1", True)
    from opentelemetry import trace

    found = trace.get_current_span(span["context"]).get_span_context()
    assert f"{found.trace_id:032x}" in parent


def test_the_real_sdk_exports_what_was_asked_without_queries(
    app: FastAPI, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(
        trace, "get_tracer", provider.get_tracer
    )  # a provider of the whole process stays for ever
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "X-Request-Id": "r-17"}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        client.post(f"{URL}/search", json={"query": "cat confidential"}, headers=headers)
        client.post(f"{URL}/search", json={"query": ""})
        damaged = Mock(side_effect=CorruptData("keys.faiss: SHA-256 differs"))
        monkeypatch.setattr(papers, "answer", damaged)
        client.get(f"{URL}/search?query=confidential")
    spans = exporter.get_finished_spans()
    route = "/v1/collections/{collection}/search"
    assert [span.name for span in spans] == [f"POST {route}", f"POST {route}", f"GET {route}"]
    assert [dict(span.attributes or {})["http.response.status_code"] for span in spans] == [200, 422, 500]
    assert [span.status.is_ok for span in spans] == [True, True, False]
    assert all(span.kind is trace.SpanKind.SERVER for span in spans)
    first = spans[0]
    assert first.parent is not None
    assert (f"{first.context.trace_id:032x}", spans[1].parent) == (trace_id, None)
    assert dict(first.attributes or {})["dsearch.request_id"] == "r-17"
    assert first.end_time > first.start_time
    assert not any("confidential" in span.to_json() for span in spans)


def test_no_span_is_made_that_nobody_would_see(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry")
    from opentelemetry import trace

    made: list[str] = []
    start = trace.ProxyTracer.start_as_current_span

    def noting(self: Any, name: str, **about: Any) -> Any:
        made.append(name)
        return start(self, name, **about)

    monkeypatch.setattr(trace.ProxyTracer, "start_as_current_span", noting)
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    spans = telemetry.RequestSpans(trace.ProxyTracer("dsearch"))
    with spans.of("GET", {}, "r1") as finish:
        finish("/healthz", 200)
    assert made == []
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)  # installed meanwhile
    with spans.of("PUT", {}, "r2") as finish:
        finish("/healthz", 200)
    assert made == ["PUT"]


def test_without_opentelemetry_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # an import of it would fail
    with telemetry.RequestSpans().of("GET", {}, "r1") as finish:
        finish("/healthz", 200)
