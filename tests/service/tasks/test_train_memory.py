"""A query memory that a task of the service fits is served as the gate judged it."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from support.service.service_fakes import ORIGIN
from support.service.tasks import app_of, ended
from support.training.topics import TOPICS, queries_of, topics_in

from dsearch.engine import Collection, SearchEngine
from dsearch.store import Event, Impression

QUERY = "question3 about3 other wording"


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    return topics_in(engine)


def test_what_goes_live_over_http_remembers(engine: SearchEngine, topics: Collection) -> None:
    """A search whose words no document has finds by past queries, and names them."""
    texts, judgements = queries_of()
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        url = "/v1/collections/topics"
        job = client.post(
            f"{url}/train", json={"queries": texts, "judgements": judgements, "epochs": 2}
        ).json()
        task = ended(client, job["id"])
        assert task["state"] == "done", task
        models = client.get(f"{url}/models").json()
        live = next(model for model in models["models"] if model["version"] == models["live"])
        assert live["record"]["memory"]["queries"] == len(texts)
        answer = client.get(f"{url}/search", params={"query": QUERY, "explain": True}).json()
        hits = answer["hits"]
        assert hits[0]["id"] in ("d3-0", "d3-1")
        assert hits[0]["explain"]["past_queries"]


def test_outcomes_become_rows_over_http(engine: SearchEngine, topics: Collection) -> None:
    """The training process hands rows to the serving process, which writes them if the gate let them pass."""
    texts, judgements = queries_of()
    for query in texts:
        if query.endswith("-3"):
            continue
        topic = int(query[1:3])
        shown = (f"d{topic}-0", f"d{(topic + 5) % TOPICS}-0")
        event = Event(query, query, f"client:{topic % 5}", "", "used", shown[0], 1, 0.0, 0.0)
        topics.feedback.record([Impression(query, texts[query], 0.0, ids=shown)], [event])
    judging = {query: of for query, of in judgements.items() if query.endswith("-3")}
    asked = {"from": "feedback", "queries": texts, "judgements": judging, "epochs": 1}
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        job = client.post("/v1/collections/topics/train", json=asked).json()
        task = ended(client, job["id"])
        assert task["state"] == "done", task
        assert task["result"]["live"], task["result"]["reason"]
        assert "memory of past queries" in task["result"]["verdict"]
    assert topics.store.model(topics.live_model).record["scope"] == "outcomes"
    rows = topics.remembered.rows()
    assert len(rows) == 3 * TOPICS
    assert {row.key for row in rows} == {f"client:{n}" for n in range(5)}
    assert all(min(row.grades.values()) < 0 < max(row.grades.values()) for row in rows)
