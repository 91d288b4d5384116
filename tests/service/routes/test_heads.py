"""Draft heads and draws answer who handed them in, by any route."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from dsearch.engine import Collection, SearchEngine, head_bytes
from dsearch.service.auth.keys import ApiKeys

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


def test_a_draw_is_rewarded_by_who_drew_it(
    client: TestClient, papers: Collection, holders: list[dict[str, str]]
) -> None:
    ann, bob = holders
    draft = handed_in(client, papers, ann)
    ask = {"queries": ["cat"], "samples": 3, "seed": 1, "draft": draft, "mode": "dense"}
    drawn = client.post(f"{URL}/draws", json=ask, headers=ann).json()
    assert drawn["draft"] == draft
    [result] = drawn["results"]
    assert len(result["ids"]) == 3
    path, body = f"{URL}/draws/{drawn['draw']}/rewards", {"rewards": [[1.0, 0.0, 2.0]], "include": ["states"]}
    assert client.post(path, json=body, headers=bob).status_code == 410
    rewarded = client.post(path, json=body, headers=ann).json()
    assert rewarded["mean_reward"] == 1.0
    assert rewarded["draft"] is None
    assert len(rewarded["states"][0]) == 32
    assert "head" not in rewarded
    assert client.post(path, json=body, headers=ann).status_code == 410


@pytest.mark.parametrize("include", [[], ["head"], ["states"], ["head", "states"]], ids=str)
def test_rewards_come_with_the_gradients_that_were_asked_for(
    client: TestClient, papers: Collection, include: list[str]
) -> None:
    drawn = client.post(f"{URL}/draws", json={"queries": ["cat"], "samples": 2, "seed": 1}).json()
    body = {"rewards": [[1.0, 0.0]], "include": include}
    answer = client.post(f"{URL}/draws/{drawn['draw']}/rewards", json=body).json()
    assert [name for name in ("head", "states") if name in answer] == include


def test_rewards_come_as_tensors_where_they_are_wanted(client: TestClient, papers: Collection) -> None:
    from safetensors.numpy import load

    drawn = client.post(f"{URL}/draws", json={"queries": ["cat"], "samples": 2, "seed": 1}).json()
    body = {"rewards": [[1.0, 0.0]], "include": ["head", "states"]}
    answer = client.post(f"{URL}/draws/{drawn['draw']}/rewards", json=body, headers={"Accept": TENSORS})
    tensors = load(answer.content)
    assert tensors["states"].shape == (1, 32)
    assert len(tensors) > 1
    assert all(name == "states" or name.startswith("head.") for name in tensors)


def test_a_parent_that_is_not_there_is_refused(client: TestClient, papers: Collection) -> None:
    body = head_bytes(papers.head("v0"))
    answer = client.post(
        f"{URL}/heads", params={"parent": "v9"}, content=body, headers={"Content-Type": TENSORS}
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
