"""A query memory that a task of the service fits is served as the gate judged it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from support.service.service_fakes import ORIGIN
from support.service.tasks import app_of, ended
from support.training.topics import TOPICS, queries_of, topics_in

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.service.tasks.results import read_made, read_rows, write_made, write_rows
from dsearch.store import Event, Impression, MemoryRow
from dsearch.training import TrainingResult, run_training

QUERY = "question3 about3 other wording"


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    return topics_in(engine)


def same(memory: QueryMemory | None, other: QueryMemory | None) -> bool:
    if memory is None or other is None:
        return memory is other
    exact = ("rows", "of_query", "of_document", "grades")
    if memory.texts != other.texts or any(
        not torch.equal(getattr(memory, name), getattr(other, name)) for name in exact
    ):
        return False
    pairs = [*zip(memory.parameters(), other.parameters(), strict=True)]
    pairs += [(memory.states, other.states), (memory.embeddings, other.embeddings)]  # stored in 8 bits
    return all(torch.allclose(left, right, atol=0.01) for left, right in pairs)


def same_head(head: Head, other: Head) -> bool:
    tensors = other.state_dict()
    equal = all(torch.equal(tensor, tensors[name]) for name, tensor in head.state_dict().items())
    return equal and same(head.memory, other.memory)


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
        answer = client.get(f"{url}/search", params={"q": QUERY, "explain": True}).json()
        hits = answer["hits"]
        assert hits[0]["id"] in ("d3-0", "d3-1")
        assert hits[0]["explain"]["past_queries"]


def test_heads_come_back_from_a_run_with_their_memories(topics: Collection, tmp_path: Path) -> None:
    texts, judgements = queries_of()
    trained = run_training(topics, TrainingJob(queries=texts, judgements=judgements, epochs=2)).result
    assert isinstance(trained, TrainingResult)
    assert trained.tuned is not None
    assert trained.tuned.head.memory is not None
    made = read_made(tmp_path, write_made(tmp_path, trained), topics)
    assert same_head(made.head, trained.head)
    assert made.tuned_head is not None
    assert same_head(made.tuned_head, trained.tuned.head)


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


def test_rows_come_back_from_a_run(tmp_path: Path) -> None:
    rows = [
        MemoryRow("", np.arange(3, dtype=np.float32), {5: 1.0, 2: -0.2}, "clicks", "client:é"),
        MemoryRow("", np.ones(3, np.float32), {7: 0.5}, "clicks", ""),
    ]
    write_rows(tmp_path, rows)
    for row, other in zip(read_rows(tmp_path), rows, strict=True):
        assert np.array_equal(row.state, other.state)
        assert (row.text, row.grades, row.source, row.key) == (
            other.text,
            other.grades,
            other.source,
            other.key,
        )
