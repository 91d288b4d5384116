"""`/retrieve` and `/reward`, in plain HTTP to a real server, as search agents in training call them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("retrieve") / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(40))
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[httpx2.Client]:
    with serving(home) as (origin, _), httpx2.Client(base_url=origin, timeout=60) as connected:
        yield connected


def ask(client: httpx2.Client, path: str, body: dict[str, Any]) -> Any:
    answered = client.post(path, json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


def test_queries_get_documents_with_and_without_scores(client: httpx2.Client) -> None:
    queries = ["river music", "lamp"]
    body = {"queries": queries, "topk": 4}
    plain = ask(client, "/retrieve", body)["result"]
    scored = ask(client, "/retrieve?collection=papers", {**body, "return_scores": True})["result"]
    assert [[one["document"] for one in row] for row in scored] == plain
    for query, row in zip(queries, scored, strict=True):
        hits = ask(client, "/v1/collections/papers/search", {"query": query, "limit": 4})["hits"]
        assert [(one["document"]["id"], one["score"]) for one in row] == [
            (hit["id"], pytest.approx(hit["score"], abs=1e-6)) for hit in hits
        ]
        # As the agents take it apart: the first line is the title, the others are the text.
        title, _, text = row[0]["document"]["contents"].partition("\n")
        assert (title, text) == (f'"{hits[0]["title"]}"', hits[0]["text"])
    assert [len(row) for row in ask(client, "/retrieve", {"queries": queries})["result"]] == [3, 3]


def test_rewards_are_feedback(client: httpx2.Client) -> None:
    body = {"queries": ["river music"], "topk": 3}
    answer = ask(client, "/retrieve", body)
    ids = [document["id"] for document in answer["result"][0]]
    rewards = [
        {"query_id": answer["query_ids"][0], "ids": ids[:2], "reward": 1.0},
        {"query": "lamp of stone", "ids": ["d001"], "reward": 0.2},
    ]
    sent = {"rewards": rewards, "client_id": "run-1"}
    assert ask(client, "/reward", sent) == {"events": 3, "repeated": 0}
    assert ask(client, "/reward", sent) == {"events": 0, "repeated": 3}


def test_what_was_rewarded_is_stored_for_training(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(10))
    rewards = [
        {"query": "river", "ids": ["d001"], "reward": 1.0},
        {"query": "river", "ids": ["d002"], "reward": 0.0},
        {"query": "river", "ids": ["d003"], "reward": 0.5},
        {"query": "river", "ids": ["d004"], "reward": 0.49},
    ]
    with serving(home) as (origin, _), httpx2.Client(base_url=origin) as client:
        ask(client, "/reward", {"rewards": rewards})
    with SearchEngine(home, readonly=True, encoder=WordEncoder) as engine:
        pages = list(engine.collection("papers").feedback.pages())
    assert sorted((event.object_id, event.action) for page in pages for event in page.events) == [
        ("d001", "thumbs_up"),
        ("d002", "thumbs_down"),
        ("d003", "thumbs_up"),
        ("d004", "thumbs_down"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/retrieve", {"queries": []}, "queries"),
        ("/retrieve", {"queries": ["a"], "topk": 101}, "topk=101; use an integer from 1 to 100"),
        ("/retrieve?collection=none", {"queries": ["a"]}, "no collection 'none'"),
        ("/reward", {"rewards": [{"ids": ["a"], "reward": 1.0}]}, "give a query, or the query_id"),
        (
            "/reward",
            {"rewards": [{"query": "a", "query_id": "b", "ids": ["a"], "reward": 1.0}]},
            "and not both",
        ),
        ("/reward", {"rewards": [{"query": "a", "ids": ["a"], "reward": 2.0}]}, "use a number from 0 to 1"),
    ],
)
def test_errors_say_what_to_do(client: httpx2.Client, path: str, body: dict[str, Any], said: str) -> None:
    answered = client.post(path, json=body)
    assert answered.status_code in (404, 422)
    assert said in answered.json()["detail"]


def test_among_several_collections_one_has_to_be_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("a").ingest(documents(3))
        engine.create("b")
    with serving(home) as (origin, _), httpx2.Client(base_url=origin) as client:
        refused = client.post("/retrieve", json={"queries": ["cat"]})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "?collection=NAME; there are: a, b" in refused.json()["detail"]
        assert len(ask(client, "/retrieve?collection=a", {"queries": ["cat"]})["result"][0]) == 3
