"""Judged queries are remembered over HTTP, and found from the next search on."""

from __future__ import annotations

from starlette.testclient import TestClient
from support.service.shapes import checked

from dsearch.engine import Collection
from dsearch.results import MemoryResult, RowsDropped

URL = "/v1/collections/papers"
BODY = {"queries": {"q": "zebra quantum"}, "judgements": {"q": {"d120": 1, "nothing": 1}}}


def test_a_judged_query_is_remembered_and_taken_back(client: TestClient, papers: Collection) -> None:
    refused = client.post(f"{URL}/models/remember", json=BODY)
    assert refused.status_code == 409
    assert "v0, which is live, has no query memory" in refused.json()["detail"]
    answered = client.post(f"{URL}/models/remember", json={**BODY, "accept": True})
    assert answered.status_code == 200, answered.text
    done = checked(MemoryResult, answered.json())
    assert (done.model, done.previous, done.queries, done.left_out) == (
        "v1",
        "v0",
        1,
        {"unknown documents": 1},
    )
    found = client.get(f"{URL}/search", params={"query": "zebra quantum", "explain": True}).json()
    assert found["model"] == "v1"
    assert found["hits"][0]["id"] == "d120"
    explained = found["hits"][0]["explain"]
    assert explained["past_queries"][0]["query"] == "zebra quantum"
    assert explained["memory"] > 0.5
    dropped = client.post(f"{URL}/models/rollback-rows", json={"sequence": done.sequence - 1})
    assert dropped.status_code == 200, dropped.text
    assert checked(RowsDropped, dropped.json()).dropped == 1
    found = client.get(f"{URL}/search", params={"query": "zebra quantum", "explain": True}).json()
    assert found["model"] == "v1"
    assert found["hits"][0]["explain"]["memory"] == 0
    later = client.post(f"{URL}/models/rollback-rows", json={"sequence": 10**6})
    assert later.status_code == 422
    assert client.post(f"{URL}/models/rollback-rows", json={}).status_code == 422
    assert client.post(f"{URL}/models/rollback").json()["model"] == "v0"
    assert client.get(f"{URL}/search?query=zebra quantum").json()["model"] == "v0"


def test_a_body_without_judgements_is_named(client: TestClient, papers: Collection) -> None:
    for body, field in (
        ({}, "queries"),
        ({"queries": {"q": "cat"}}, "judgements"),
        ({**BODY, "judgements": {"q": {"d001": "yes"}}}, "judgements"),
        ({**BODY, "strength": 2}, "strength"),
    ):
        answered = client.post(f"{URL}/models/remember", json=body)
        assert answered.status_code == 422, answered.text
        assert field in answered.text
    assert client.get(f"{URL}/models").json()["live"] == "v0"
