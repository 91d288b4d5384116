"""Search and attention over HTTP: the same numbers as in Python, and as plain tensors give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.service.service_fakes import DIMENSION

from dsearch.engine import Collection
from dsearch.errors import InvalidRequest

URL = "/v1/collections/papers"
MODES = ("hybrid", "dense", "keyword")


def test_the_url_form_gives_the_same_hits(client: TestClient, papers: Collection) -> None:
    posted = client.post(f"{URL}/search", json={"query": "cat", "limit": 3, "explain": True}).json()
    by_url = client.get(f"{URL}/search", params={"query": "cat", "limit": "3", "explain": "true"}).json()
    assert by_url["hits"] == posted["hits"]
    assert by_url["query_id"] != posted["query_id"]


def test_attend_leaves_out_what_was_not_asked_for(client: TestClient, papers: Collection) -> None:
    got = client.post(f"{URL}/attend", json={"queries": ["cat"]}).json()["results"][0]
    assert set(got) == {"ids", "weights", "scores", "context", "candidates", "covered_mass"}


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_collection_answers_with_nothing(client: TestClient, mode: str) -> None:
    client.put("/v1/collections/empty")
    got = client.post("/v1/collections/empty/search", json={"query": "cat", "mode": mode}).json()
    assert got["hits"] == []
    assert got["attention"]["candidates"] == 0
    attended = client.post("/v1/collections/empty/attend", json={"queries": ["cat"], "mode": mode}).json()
    nothing = {"ids": [], "weights": [], "scores": [], "candidates": 0, "covered_mass": 1.0}
    assert attended["results"] == [{**nothing, "context": [0.0] * DIMENSION}]


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        ("search", {}, "neither query nor vector; give at least one"),
        ("search", {"query": ""}, "query=''; use 1 to 8192 characters, at least one word"),
        ("search", {"query": " \t"}, "query=' \\t'; use 1 to 8192 characters"),
        ("search", {"query": "x" * 8193}, "use 1 to 8192 characters"),
        ("search", {"query": 3}, "query=3; use 1 to 8192 characters"),
        ("search", {"query": "cat", "limit": 0}, "limit=0; use an integer from 1 to 1000"),
        ("search", {"query": "cat", "limit": 1001}, "limit=1001; use an integer from 1 to 1000"),
        ("search", {"query": "cat", "limit": "10"}, "limit='10'; use an integer"),
        ("search", {"query": "cat", "limit": 1.5}, "limit=1.5; use an integer"),
        ("search", {"query": "cat", "limit": True}, "limit=True; use an integer"),
        ("search", {"query": "cat", "offset": -1}, "offset=-1; use an integer from 0 to 10000"),
        ("search", {"query": "cat", "mode": "magic"}, "mode='magic'; use hybrid, dense or keyword"),
        ("search", {"query": "cat", "model": "../v1"}, "model='../v1'; use a registered version"),
        ("search", {"query": "cat", "explain": 1}, "explain=1; use true or false"),
        ("search", {"query": "cat", "hops": 9}, "hops=9; use an integer from 1 to 4"),
        ("search", {"query": "cat", "hop_strength": -1}, "hop_strength=-1; use a number from 0 to 10"),
        ("search", {"query": "cat", "limits": 3}, "unknown field 'limits' (did you mean limit?); use query"),
        ("search", ["cat"], "a body of type array; use a JSON object"),
        ("search/batch", {"queries": []}, "queries=[]; "),
        ("search/batch", {"queries": ["a"] * 257}, "queries=a list of 257; "),
        ("search/batch", {"queries": ["a", ""]}, "queries.1=''; use 1 to 8192 characters"),
        (
            "search/batch",
            {"queries": ["a"] * 26, "limit": 1000},
            "26000 hits of 26 queries with limit + offset 1000; use",
        ),
        ("attend", {}, "neither queries nor vectors; give one of the two"),
        ("predict", {"queries": ["a"], "vectors": [[1.0]], "field": "i"}, "queries and vectors; give one"),
        ("attend", {"queries": ["a", "b"], "vectors": [[1.0]]}, "2 queries and 1 vector; give as many"),
        (
            "attend",
            {"vectors": [[1.0, 2.0]]},
            "vectors.0 has 2 numbers; this collection's embeddings have 32",
        ),
        ("attend", {"vectors": [[1.0, "x"]]}, "vectors.0.1='x'; input should be a valid number"),
        ("attend", {"vectors": [[1.0] * 32], "mode": "keyword"}, "mode='keyword' without texts"),
        (
            "attend",
            {"queries": ["a"], "include": ["weights"]},
            "include.0='weights'; use keys, values, parts, slopes, positions or texts",
        ),
        ("attend", {"queries": ["a"], "candidates": 0}, "candidates=0; use an integer from 1 to 1000"),
    ],
)
def test_bad_requests_are_told_what_is_allowed(
    client: TestClient, papers: Collection, route: str, body: Any, says: str
) -> None:
    answered = client.post(f"{URL}/{route}", json=body)
    assert answered.status_code == 422
    assert answered.headers["content-type"] == "application/problem+json"
    assert says in answered.json()["detail"]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("", "query is missing"),
        ("query=cat&limit=0", "limit='0'; use an integer from 1 to 1000"),
        ("query=cat&limit=ten", "limit='ten'; use an integer from 1 to 1000"),
        ("query=cat&hop_strength=nan", "hop_strength='nan'; use a number from 0 to 10"),
        ("query=cat&q=dog", "unknown field 'q'; use query, limit, offset"),
    ],
)
def test_bad_urls_are_told_what_is_allowed(
    client: TestClient, papers: Collection, parameters: str, says: str
) -> None:
    answered = client.get(f"{URL}/search?{parameters}")
    assert answered.status_code == 422
    assert says in answered.json()["detail"]


def test_what_is_not_there_is_named(client: TestClient, papers: Collection) -> None:
    missing = client.post("/v1/collections/nothing/search", json={"query": "cat"})
    assert (missing.status_code, missing.json()["code"]) == (404, "collection_not_found")
    assert "there are: papers" in missing.json()["detail"]
    model = client.post(f"{URL}/search", json={"query": "cat", "model": "v7"})
    assert (model.status_code, model.json()["code"]) == (404, "model_not_found")
    name = client.post("/v1/collections/No.Name/search", json={"query": "cat"})
    assert (name.status_code, name.json()["code"]) == (422, "invalid_request")


def test_keys_are_those_of_the_state_that_was_attended_to(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = Collection.attend

    def attend_and_rebuild(collection: Collection, *given: Any, **options: Any) -> Any:
        attended = attend(collection, *given, **options)
        monkeypatch.setattr(Collection, "attend", attend)
        collection.refresh()  # deleted documents leave, and every position behind them moves
        return attended

    monkeypatch.setattr(Collection, "attend", attend_and_rebuild)
    answered = client.post(f"{URL}/attend", json={"queries": ["cat"], "include": ["keys"]}).json()
    got = answered["results"][0]
    rows = papers.store.rows_of(got["ids"])
    embeddings = papers.store.embeddings(np.array([rows[id] for id in got["ids"]]))
    np.testing.assert_allclose(got["keys"], embeddings, atol=1e-6)
    assert answered["generation"] == papers.snapshot.generation.number


@pytest.mark.parametrize(
    ("body", "suggestion"),
    [
        ({"mode": "hybird"}, "mode='hybird'; use hybrid, dense or keyword (did you mean hybrid?)"),
        ({"highlight_by": "meening"}, "use one of words, meaning (did you mean meaning?)"),
        ({"limt": 3}, "(did you mean limit?)"),
        ({"mode": "x" * 5000}, "use hybrid, dense or keyword"),
    ],
)
def test_misspelt_names_and_values_get_a_suggestion(
    client: TestClient, papers: Collection, body: dict[str, Any], suggestion: str
) -> None:
    problem = client.post(f"{URL}/search", json={"query": "cat", **body}).json()
    assert suggestion in problem["detail"]
    with pytest.raises(InvalidRequest, match=r"mode='hybird'; use hybrid, .*\(did you mean hybrid\?\)"):
        papers.search("cat", mode="hybird")  # type: ignore[arg-type]
