"""What people send is taken as it is meant: values as conditions, nulls, integer ids, lists of fields."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from dsearch.client import LocalEngine
from dsearch.engine import Collection, SearchEngine

URL = "/v1/collections/papers"


def ids_of(client: TestClient, **body: Any) -> list[str]:
    answer = client.post(f"{URL}/search", json={"query": "cat", "limit": 20, **body})
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


def test_a_value_in_a_filter_is_equality(client: TestClient, papers: Collection) -> None:
    for value in (7, 7.0):
        assert ids_of(client, filter={"i": value}) == ids_of(client, filter={"i": {"eq": 7}}) == ["d007"]
    assert ids_of(client, filter={"not": {"i": 7}}) == ids_of(client, filter={"i": {"ne": 7}})
    refused = client.post(f"{URL}/search", json={"query": "cat", "filter": {"i": [7]}})
    assert refused.status_code == 422
    assert "[7]" in refused.json()["detail"]


def test_an_empty_filter_is_met_by_all_but_deletes_nothing(client: TestClient, papers: Collection) -> None:
    assert ids_of(client, filter={}) == ids_of(client)
    count = client.post(f"{URL}/facets", json={"fields": ["i"], "filter": {}}).json()["documents"]
    assert count == papers.store.count(None).documents
    assert client.get(f"{URL}/search", params={"query": "cat", "filter": "{}"}).status_code == 200
    refused = client.post(f"{URL}/documents/delete", json={"filter": {}})
    assert (refused.status_code, papers.store.count(None).documents) == (422, count)


def test_null_stands_for_a_field_that_is_left_out(client: TestClient, papers: Collection) -> None:
    assert ids_of(client, mode=None, limit=20, explain=None, filter=None) == ids_of(client)
    stored = client.put(f"{URL}/documents", json=[{"id": "n", "text": "x", "title": None, "metadata": None}])
    assert stored.status_code == 200, stored.text
    refused = client.post(f"{URL}/facets", json={"fields": None})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "fields")


def test_an_integer_is_an_id_and_is_kept_as_text(client: TestClient, papers: Collection) -> None:
    assert client.put(f"{URL}/documents", json=[{"id": 7, "text": "seven"}]).status_code == 200
    assert client.get(f"{URL}/documents/7").json()["id"] == "7"
    assert client.post(f"{URL}/documents/delete", json={"ids": [7]}).json()["deleted"] == 1
    for id in (True, 7.5, [7], 2**64):
        assert client.put(f"{URL}/documents", json=[{"id": id, "text": "x"}]).status_code == 422


def test_members_of_other_names_are_metadata(
    client: TestClient, engine: SearchEngine, papers: Collection
) -> None:
    flat = {
        "id": "flat",
        "text": "cat",
        "kind": "class",
        "deep": {"a": [1, None]},
        "metadata": {"year": 2017},
    }
    assert client.put(f"{URL}/documents", json=[flat]).status_code == 200
    assert LocalEngine(engine).upsert("papers", [{**flat, "id": "here"}]).inserted == 1
    for id in ("flat", "here"):
        assert papers.store.get(id).metadata == {"year": 2017, "kind": "class", "deep": {"a": [1, None]}}
    assert ids_of(client, filter={"kind": "class"}) == ["flat", "here"]


def test_metadata_are_changed_by_the_media_type_of_merge_patch(
    client: TestClient, papers: Collection
) -> None:
    for kind in ("application/merge-patch+json", "application/json"):
        answer = client.patch(
            f"{URL}/documents/d001", content=b'{"metadata": {"new": 1}}', headers={"Content-Type": kind}
        )
        assert answer.json()["metadata"]["new"] == 1
    refused = client.post(
        f"{URL}/search", content=b'{"query": "cat"}', headers={"Content-Type": "application/merge-patch+json"}
    )
    assert refused.status_code == 415


def test_fields_may_be_a_list(client: TestClient, papers: Collection) -> None:
    hits = [
        client.post(f"{URL}/search", json={"query": "cat", "fields": fields}).json()["hits"]
        for fields in ("title,i", ["title", "i"])
    ]
    assert hits[0] == hits[1]
    refused = client.post(f"{URL}/search", json={"query": "cat", "fields": [1]})
    assert refused.status_code == 422


@pytest.mark.parametrize("fields", ["title,i", ["title", "i"], ("title", "i")])
def test_an_engine_of_this_process_takes_the_same(
    engine: SearchEngine, papers: Collection, fields: Any
) -> None:
    local = LocalEngine(engine)
    assert local.upsert("papers", [{"id": 8, "text": "cat"}]).inserted == 1
    assert local.get("papers", "8").text == "cat"
    found = local.search("papers", "cat", filter={"i": 7}, fields=fields)
    assert [(hit.id, hit.text) for hit in found.hits] == [("d007", "")]
    assert local.search("papers", "cat", filter={}).hits == local.search("papers", "cat").hits


def test_vectors_have_any_length_but_zero(
    client: TestClient, engine: SearchEngine, papers: Collection
) -> None:
    engine.create("own", dimension=2)
    url = "/v1/collections/own"
    documents = [
        {"id": "a", "text": "x", "embedding": [3e200, 4e200]},
        {"id": "b", "text": "y", "embedding": [0.6, 0.8]},
        {"id": "c", "text": "z", "embedding": [0.0, -1e-300]},
    ]
    assert client.put(f"{url}/documents", json=documents).json()["inserted"] == 3
    assert client.put(f"{url}/documents", json=documents).json()["unchanged"] == 3

    def answer(path: str, **body: Any) -> dict[str, float]:
        found = client.post(f"{url}/{path}", json=body)
        assert found.status_code == 200, found.text
        page = found.json()["results"][0] if "results" in found.json() else found.json()
        return {hit["id"]: hit["score"] for hit in page["hits"]}

    unit = answer("search", vector=[0.6, 0.8])
    assert unit["a"] == unit["b"]
    for long in ([3.0, 4.0], [3e300, 4e300], [3e-300, 4e-300]):
        assert answer("search", vector=long) == pytest.approx(unit)
        assert answer("search/batch", vectors=[long]) == pytest.approx(unit)
        assert [*answer("similar", like=["c"], vector=long)] == ["a", "b"]
    for wrong in ([0, 0], [1]):
        refused = client.post(f"{url}/search", json={"vector": wrong})
        assert (refused.status_code, refused.json()["code"]) == (
            422,
            "invalid_request" if len(wrong) == 2 else "dimension_mismatch",
        )
        written = client.put(f"{url}/documents", json=[{"id": "d", "text": "x", "embedding": wrong}])
        assert written.status_code == 422
    assert engine.collection("own").describe().documents == 3
