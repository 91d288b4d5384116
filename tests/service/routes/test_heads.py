"""Draft heads answer who handed them in, by any route."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from dsearch.engine import Collection, SearchEngine, head_bytes
from dsearch.service.keys import ApiKeys

URL = "/v1/collections/papers"
TENSORS = "application/x-safetensors"


@pytest.fixture
def holders(engine: SearchEngine) -> list[dict[str, str]]:
    keys = ApiKeys(engine.home.path)
    return [{"Authorization": f"Bearer {keys.create(name, 'admin')[0]}"} for name in ("ann", "bob")]


def handed_in(client: TestClient, papers: Collection, headers: dict[str, str]) -> str:
    body = head_bytes(papers.head("v0"))
    answer = client.post(f"{URL}/heads", content=body, headers={"Content-Type": TENSORS, **headers})
    assert answer.status_code == 201, answer.text
    return answer.json()["draft"]


def test_a_draft_is_known_to_its_owner_alone_until_it_is_dropped(
    client: TestClient, papers: Collection, holders: list[dict[str, str]]
) -> None:
    ann, bob = holders
    draft = handed_in(client, papers, ann)
    path = f"{URL}/heads/{draft}"
    assert client.get(path, headers=ann).content == head_bytes(papers.head("v0"))
    assert client.get(path, headers=ann).headers["content-type"] == TENSORS
    assert client.get(path, headers=bob).status_code == 410
    query: dict[str, Any] = {"queries": ["cat"], "draft": draft}
    assert client.post(f"{URL}/attend", json=query, headers=ann).status_code == 200
    assert client.post(f"{URL}/attend", json=query, headers=bob).status_code == 410
    assert client.delete(path, headers=bob).status_code == 204
    assert client.get(path, headers=ann).status_code == 200
    for _ in range(2):
        assert client.delete(path, headers=ann).status_code == 204
        assert client.get(path, headers=ann).status_code == 410


def test_a_parent_that_is_not_there_is_refused(client: TestClient, papers: Collection) -> None:
    body = head_bytes(papers.head("v0"))
    answer = client.post(
        f"{URL}/heads", params={"parent": "v9"}, content=body, headers={"Content-Type": TENSORS}
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
