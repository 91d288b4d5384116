"""Episodes over HTTP: searches and readings of a task, its outcome, and what is stored of it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from dsearch.engine import Collection, SearchEngine
from dsearch.service.keys import ApiKeys

URL = "/v1/collections/papers"


def searched(client: TestClient, episode: str, **headers: str) -> list[str]:
    asked = {"query": "river music", "limit": 5, "episode": episode}
    answer = client.post(f"{URL}/search", json=asked, headers=headers)
    assert answer.status_code == 200
    return [hit["id"] for hit in answer.json()["hits"]]


def outcome(client: TestClient, episode: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"episode": episode, "success": True, **fields}
    return client.post(f"{URL}/outcomes", json=body, headers=headers or {})


def stored(collection: Collection) -> list[tuple[str, str, str]]:
    return sorted(
        (event.action, event.object_id, event.key)
        for page in collection.feedback.pages()
        for event in page.events
    )


def test_what_was_read_is_graded_by_the_outcome(client: TestClient, papers: Collection) -> None:
    ids = searched(client, "t1")
    for id in ids[1:4]:
        assert client.get(f"{URL}/documents/{id}", params={"episode": "t1"}).status_code == 200
    client.get(f"{URL}/documents/{ids[0]}")  # not for the task
    told = outcome(client, "t1", useful_ids=[ids[2]], client_id="run1")
    assert told.json() == {"events": 3, "repeated": 0}
    expected = [("dismissed", ids[1]), ("dismissed", ids[3]), ("used", ids[2])]
    assert stored(papers) == sorted((*one, "client:run1") for one in expected)
    [page] = papers.feedback.pages()
    assert list(page.impression.ids) == ids

    assert outcome(client, "t1", useful_ids=[ids[2]], client_id="run1").json() == {"events": 0, "repeated": 3}
    contrary = outcome(client, "t1", success=False, client_id="run1")
    assert (contrary.status_code, contrary.json()["code"]) == (409, "conflict")


def test_searches_by_url_and_in_batches_belong_to_episodes_too(
    client: TestClient, papers: Collection
) -> None:
    first = client.get(f"{URL}/search", params={"query": "cat", "episode": "t2"}).json()["hits"][0]["id"]
    batch = {"queries": ["dog", "lamp"], "episode": "t2", "limit": 3}
    pages = client.post(f"{URL}/search/batch", json=batch).json()["results"]
    useful = {first, *(page["hits"][0]["id"] for page in pages)}
    assert outcome(client, "t2", useful_ids=sorted(useful)).status_code == 200
    queries = {page.impression.query for page in papers.feedback.pages()}
    assert queries == {"cat", "dog", "lamp"}


@pytest.fixture
def holders(engine: SearchEngine) -> dict[str, dict[str, str]]:
    keys = ApiKeys(engine.home.path)
    return {
        name: {"Authorization": f"Bearer {keys.create(name, scope)[0]}"}
        for name, scope in (("reader", "read"), ("writer", "write"), ("other", "write"))
    }


def test_an_episode_is_of_its_key_and_reports_need_a_writing_one(
    client: TestClient, papers: Collection, holders: dict[str, dict[str, str]]
) -> None:
    ids = searched(client, "t4", **holders["writer"])
    assert outcome(client, "t4", holders["reader"], useful_ids=ids[:1]).status_code == 403
    theirs = outcome(client, "t4", holders["other"], useful_ids=ids[:1])
    assert theirs.json()["code"] == "unknown_episode"
    assert outcome(client, "t4", holders["writer"], useful_ids=ids[:1]).json()["events"] == 1
    [(action, id, key)] = stored(papers)
    assert (action, id) == ("used", ids[0])
    assert not key.startswith("client:")
