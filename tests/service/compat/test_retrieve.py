"""`/retrieve`, in plain HTTP to a real server, as search agents in training call them."""

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


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/retrieve", {"queries": []}, "queries"),
        ("/retrieve", {"queries": ["a"], "topk": 101}, "topk=101; use an integer from 1 to 100"),
        ("/retrieve?collection=none", {"queries": ["a"]}, "no collection 'none'"),
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
