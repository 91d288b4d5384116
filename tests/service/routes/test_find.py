"""Filters, pages, highlights, likeness, facets, deletion and changes of metadata over HTTP: as in Python."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.service_fakes import WordEncoder

from dsearch.engine import Collection
from dsearch.types import Document

URL = "/v1/collections/papers"
FILTER = {"i": {"gte": 20, "lt": 80}, "not": {"i": {"in": [30, 40]}}}


def ask(client: TestClient, route: str, **body: Any) -> Any:
    answered = client.post(f"{URL}/{route}", json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


def test_the_url_takes_filters_and_cursors_too(client: TestClient, papers: Collection) -> None:
    posted = ask(client, "search", query="cat", filter=FILTER, limit=4, highlight=True)
    asked = {"query": "cat", "filter": json.dumps(FILTER), "limit": "4", "highlight": "true"}
    by_url = client.get(f"{URL}/search", params=asked).json()
    assert by_url["hits"] == posted["hits"]
    more = client.get(f"{URL}/search", params={**asked, "cursor": by_url["next_cursor"]}).json()
    assert [hit["rank"] for hit in more["hits"]] == [5, 6, 7, 8]
    asked = {"query": "cat -dog", "operators": "false", "limit": "500"}
    plain = client.get(f"{URL}/search", params=asked).json()
    assert len(plain["hits"]) == 148


def test_pages_go_on_in_their_state_until_it_is_gone(client: TestClient, papers: Collection) -> None:
    whole = ask(client, "search", query="cat", limit=40)
    page = ask(client, "search", query="cat", limit=10)
    hits = page["hits"]
    papers.upsert([Document("new", "cat cat", metadata={"i": 1})])
    while len(hits) < 40:
        page = ask(client, "search", query="cat", limit=10, cursor=page["next_cursor"])
        hits = hits + page["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in whole["hits"]]
    assert page["sequence"] == whole["sequence"]
    papers.refresh()
    gone = client.post(f"{URL}/search", json={"query": "cat", "cursor": page["next_cursor"]})
    assert (gone.status_code, gone.json()["code"]) == (410, "gone")
    other = client.post(f"{URL}/search", json={"query": "dog", "cursor": page["next_cursor"]})
    assert (other.status_code, other.json()["code"]) == (422, "invalid_cursor")


def test_similar_by_ids_encodes_nothing(client: TestClient, papers: Collection, encoder: WordEncoder) -> None:
    before = list(encoder.batches)
    assert ask(client, "similar", like=["d001"])["hits"]
    assert encoder.batches == before
    assert ask(client, "similar", like=["d001"], query="cat")["hits"]
    assert encoder.batches == [*before, 1]


def test_a_collection_is_made_with_passages_and_keys_of_a_kind(client: TestClient) -> None:
    url = "/v1/collections/cut"
    asked = {"passages": {"tokens": 20, "overlap": 3}, "kind": "SQ8"}
    made = client.put(url, json=asked)
    assert made.status_code == 201
    assert made.json()["passages"] == {"tokens": 20, "overlap": 3}
    assert made.json()["keys"]["asked"] == "SQ8"
    assert client.put(url, json=asked).status_code == client.put(url).status_code == 200
    for other in ({"passages": {"tokens": 30}}, {"passages": {"none": True}}, {"kind": "Flat"}):
        answer = client.put(url, json=other)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), other
    whole = client.put("/v1/collections/whole", json={"passages": {"none": True}})
    assert whole.json()["passages"] is None
    for wrong in (
        {"kind": "magic"},
        {"passages": {"tokens": 2}},
        {"passages": {"tokens": 10**6}},
        {"passages": {"tokens": 20, "none": True}},
        {"passages": {"size": 20}},
    ):
        assert client.put("/v1/collections/nowhere", json=wrong).status_code == 422, wrong
    assert client.get("/v1/collections/nowhere").status_code == 404


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        ("search", {"query": "a", "filter": 3}, "filter=3; use an object such as"),
        (
            "search",
            {"query": "a", "filter": {"not": {}}},
            "filter.not: an empty object; leave the filter out",
        ),
        (
            "search",
            {"query": "a", "filter": {"i": {"near": 1}}},
            "filter.i: the condition 'near'; use one of eq",
        ),
        ("search", {"query": "a", "cursor": ""}, "cursor=''; use the next_cursor of an answer"),
        ("search", {"query": "a", "cursor": "!"}, "cursor='!'; use the next_cursor of an answer"),
        ("search", {"query": "a", "highlight": 1}, "highlight=1; use true or false"),
        ("search", {"query": "a", "score_threshold": "high"}, "score_threshold='high'; use a number"),
        ("search/batch", {"queries": ["a"] * 20, "limit": 60, "highlight": True}, "use at most 1000 in all"),
        ("attend", {"queries": ["a"], "filter": {"i": [1]}}, "filter.i: [1]; use a value, or an object"),
        ("similar", {}, "like is missing"),
        ("similar", {"like": []}, "like=[]"),
        ("similar", {"like": ["d001"], "unlike": ["d001"]}, "'d001' is in like and in unlike"),
        ("similar", {"like": ["d001"], "mode": "keyword"}, "use hybrid or dense"),
        ("facets", {"fields": []}, "fields=[]"),
        ("facets", {"fields": ["a..b"]}, "field: the field 'a..b' with an empty key"),
        ("facets", {"fields": ["i"], "limit": 101}, "limit=101; use an integer from 1 to 100"),
        ("documents/delete", {}, "neither ids nor filter; give one of the two"),
        ("documents/delete", {"ids": ["a"], "filter": FILTER}, "ids and filter; give one of the two"),
        ("documents/delete", {"filter": {}}, "filter: an empty object"),
    ],
)
def test_bad_requests_are_told_what_is_allowed(
    client: TestClient, papers: Collection, route: str, body: Any, says: str
) -> None:
    answered = client.post(f"{URL}/{route}", json=body)
    assert answered.status_code == 422, answered.text
    assert says in answered.json()["detail"]
    assert len(papers.store.list(limit=1000)) == 148


def test_filters_in_urls_are_strict_json(client: TestClient, papers: Collection) -> None:
    for given in ("{i", '{"i": NaN}', '{"i": {"eq": 1}, "i": {"eq": 2}}'):
        for route in ("search?query=cat&", "documents?", "facets?fields=i&"):
            answered = client.get(
                f"{URL}/{route}", params=None if "?" not in route else {"filter": given, **_of(route)}
            )
            assert (answered.status_code, answered.json()["code"]) == (422, "invalid_json")


def _of(route: str) -> dict[str, str]:
    return dict(part.split("=") for part in route.partition("?")[2].split("&") if part)
