"""Each metric has the number that it is given, under its own name and labels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from support.locks import WatchedLock, waiting
from support.service.service_fakes import DIMENSION

from dsearch.engine import Collection, SearchEngine
from dsearch.service.admission import Admission, EventLoopLag
from dsearch.service.collections import Catalogue
from dsearch.service.state import readings_of
from dsearch.service.telemetry import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """Values by name and labels, without those that nothing has counted and the times of creation."""
    return {
        " ".join([sample.name, *_labels(sample.labels)]): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket")) and sample.value
    }


def _labels(labels: dict[str, str]) -> list[str]:
    return [labels[name] for name in sorted(labels, key=lambda name: (name != "worker", name))]


def test_a_batch_is_as_large_as_the_jobs_that_waited_for_it() -> None:
    metrics = Metrics()
    metrics.batch("search", [0.25, 0.5, 1.0], 2.0)
    metrics.batch("write", [4.0], 8.0)
    metrics.encoded(16.0)
    assert samples(metrics) == {
        "dsearch_stage_seconds_count search queue": 3,
        "dsearch_stage_seconds_sum search queue": 1.75,
        "dsearch_stage_seconds_count search batch": 1,
        "dsearch_stage_seconds_sum search batch": 2,
        "dsearch_batch_size_count search": 1,
        "dsearch_batch_size_sum search": 3,
        "dsearch_stage_seconds_count write queue": 1,
        "dsearch_stage_seconds_sum write queue": 4,
        "dsearch_stage_seconds_count write batch": 1,
        "dsearch_stage_seconds_sum write batch": 8,
        "dsearch_batch_size_count write": 1,
        "dsearch_batch_size_sum write": 1,
        "dsearch_stage_seconds_count search encode": 1,
        "dsearch_stage_seconds_sum search encode": 16,
    }


def test_requests_are_counted_when_they_begin_and_until_they_end() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.begun()
    metrics.ended()
    metrics.answered("GET", "/healthz", 200, 0.5)
    metrics.answered("POST", "/healthz", 503, 1.5)
    assert samples(metrics) == {
        "dsearch_requests_in_flight": 2,
        "dsearch_requests_accepted_total": 3,
        "dsearch_requests_total GET /healthz 200": 1,
        "dsearch_requests_total POST /healthz 503": 1,
        "dsearch_request_seconds_count /healthz": 2,
        "dsearch_request_seconds_sum /healthz": 2,
    }


def test_refusals_are_told_from_drops() -> None:
    metrics = Metrics()
    metrics.refused()
    metrics.refused()
    metrics.rejected("search", "deadline")
    assert samples(metrics) == {
        "dsearch_rejections_total server overloaded": 2,
        "dsearch_rejections_total search deadline": 1,
    }


def test_covered_mass_is_shown_where_it_was_computed() -> None:
    results: list[Any] = [
        SimpleNamespace(attention=SimpleNamespace(entropy=entropy, covered_mass=mass))
        for entropy, mass in ((1.5, None), (0.25, 0.75), (0.5, 0.0))
    ]
    metrics = Metrics()
    metrics.searched("papers", results)
    assert samples(metrics) == {
        "dsearch_attention_entropy_nats_count papers": 3,
        "dsearch_attention_entropy_nats_sum papers": 2.25,
        "dsearch_covered_mass_count papers": 2,
        "dsearch_covered_mass_sum papers": 0.75,
    }


def test_readings_are_taken_when_somebody_asks() -> None:
    metrics, depth = Metrics(), [3.0]
    metrics.read(lambda: [("depth", "Jobs.", {"worker": "a"}, depth[0]), ("seen_total", "All.", {}, 2.0)])
    metrics.read(lambda: [("depth", "Jobs.", {"worker": "b"}, 7.0)])
    assert samples(metrics) == {"depth a": 3, "depth b": 7, "seen_total": 2}
    depth[0] = 5.0
    assert samples(metrics)["depth a"] == 5
    assert "# TYPE depth gauge" in metrics.text().decode()
    assert "# TYPE seen_total counter" in metrics.text().decode()


def test_readings_are_taken_for_one_that_asks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, taken = Metrics(), list[int]()
    metrics.read(lambda: taken.append(1) or [])
    monkeypatch.setattr(metrics, "_reading", reading := WatchedLock())
    with waiting(reading, metrics.text):
        assert taken == []
    assert taken == [1]


def test_a_collection_that_is_gone_hides_no_number_of_the_others(engine: SearchEngine) -> None:
    catalogue = Catalogue(engine)
    for name in ("papers", "zebras"):
        catalogue.create(name)

    class _Leaving(Catalogue):
        def opened(self) -> list[str]:
            return ["gone", "papers", "zebras"]

    read = readings_of(
        _Leaving(engine), engine.query_cache, (), EventLoopLag(), Admission(float, EventLoopLag())
    )
    told = [labels["collection"] for name, _, labels, _ in read if name == "dsearch_collection_sequence"]
    assert told == ["papers", "zebras"]


HERE = "/v1/collections/papers"
VECTOR = [1.0, *[0.0] * (DIMENSION - 1)]
CALL = {"name": "search", "arguments": {"query": "cat"}}
MESSAGE = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        (f"{HERE}/search", {"query": "cat"}, 1),
        (f"{HERE}/search", {"vector": VECTOR}, 1),
        (f"{HERE}/search/batch", {"queries": ["cat", "dog"]}, 2),
        (f"{HERE}/search/batch", {"vectors": [VECTOR] * 3}, 3),
        (f"{HERE}/similar", {"like": ["d001"]}, 1),
        ("/retrieve", {"queries": ["cat", "dog"]}, 2),
        ("/mcp", MESSAGE, 1),
    ],
    ids=["query", "vector", "queries", "vectors", "similar", "retrieve", "agent"],
)
def test_each_way_to_search_is_counted(
    client: TestClient, papers: Collection, path: str, body: Any, count: int
) -> None:
    accepts = {"Accept": "application/json, text/event-stream"}
    assert client.post(path, json=body, headers=accepts).status_code == 200
    counted = samples(client.app.state.service.metrics)  # type: ignore[attr-defined]
    assert counted["dsearch_attention_entropy_nats_count papers"] == count
