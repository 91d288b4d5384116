"""A query memory that a task of the service fits is served as the gate judged it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient
from support.service.service_fakes import ORIGIN
from support.service.tasks import app_of, ended
from support.training.topics import queries_of, topics_in

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.service.tasks.results import read_made, write_made
from dsearch.training import Trained, run_training

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
    assert isinstance(trained, Trained)
    assert trained.tuned is not None
    assert trained.tuned.head.memory is not None
    made = read_made(tmp_path, write_made(tmp_path, trained), topics)
    assert same_head(made.head, trained.head)
    assert made.tuned_head is not None
    assert same_head(made.tuned_head, trained.tuned.head)
