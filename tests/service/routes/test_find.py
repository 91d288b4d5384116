"""Filters, pages, highlights, likeness, facets, deletion and changes of metadata over HTTP: as in Python."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.service_fakes import WordEncoder
from support.service.shapes import checked

from dsearch.engine import Collection, SearchEngine
from dsearch.results import DeleteResult, DocumentPage, Facets, MetadataResult
from dsearch.service.schemas.answers import BatchAnswer, SearchAnswer
from dsearch.types import Document

URL = "/v1/collections/papers"
FILTER = {"i": {"gte": 20, "lt": 80}, "not": {"i": {"in": [30, 40]}}}


def ask(client: TestClient, route: str, **body: Any) -> Any:
    answered = client.post(f"{URL}/{route}", json=body)
    assert answered.status_code == 200, answered.text
    return answered.json()


def test_search_with_every_option_gives_what_python_gives(client: TestClient, papers: Collection) -> None:
    options: dict[str, Any] = {
        "filter": FILTER,
        "highlight": True,
        "explain": True,
        "score_threshold": 0.2,
        "weight_threshold": 1e-4,
        "limit": 6,
    }
    for query in ("cat attention", 'cat "river stone"', "dog +lamp -cat", "-cat"):
        got = ask(client, "search", query=query, **options)
        checked(SearchAnswer, got)
        expected = papers.search(query, **options)
        assert got["next_cursor"] == expected.next_cursor
        assert [hit["id"] for hit in got["hits"]] == [hit.id for hit in expected.hits]
        for mine, theirs in zip(got["hits"], expected.hits, strict=True):
            assert mine["score"] == pytest.approx(theirs.score, abs=1e-6)
            assert mine["highlights"] == json.loads(json.dumps([asdict(p) for p in theirs.highlights or []]))
            assert mine["explain"]["terms"].keys() == theirs.explain.terms.keys()  # type: ignore[union-attr]
    assert "highlights" not in ask(client, "search", query="cat")["hits"][0]


def test_the_url_takes_filters_and_cursors_too(client: TestClient, papers: Collection) -> None:
    posted = ask(client, "search", query="cat", filter=FILTER, limit=4, highlight=True)
    asked = {"q": "cat", "filter": json.dumps(FILTER), "limit": "4", "highlight": "true"}
    by_url = client.get(f"{URL}/search", params=asked).json()
    assert by_url["hits"] == posted["hits"]
    more = client.get(f"{URL}/search", params={**asked, "cursor": by_url["next_cursor"]}).json()
    assert [hit["rank"] for hit in more["hits"]] == [5, 6, 7, 8]
    plain = client.get(f"{URL}/search", params={"q": "cat -dog", "operators": "false", "limit": "500"}).json()
    assert len(plain["hits"]) == 148


@pytest.mark.parametrize(
    "options", [{"filter": FILTER}, {"operators": False}, {"highlight": True, "limit": 3}]
)
def test_a_batch_takes_the_same_options(
    client: TestClient, papers: Collection, options: dict[str, Any]
) -> None:
    queries = ["cat -dog", "river", '"stone lamp"']
    batch = ask(client, "search/batch", queries=queries, **options)
    checked(BatchAnswer, batch)
    for query, one in zip(queries, batch["results"], strict=True):
        single = ask(client, "search", query=query, **options)
        assert [hit["id"] for hit in one["hits"]] == [hit["id"] for hit in single["hits"]]
        assert one["next_cursor"] == single["next_cursor"]


def test_attention_and_predictions_are_filtered(client: TestClient, papers: Collection) -> None:
    attended = ask(client, "attend", queries=["cat"], filter={"i": {"lt": 5}})
    assert sorted(attended["results"][0]["ids"]) == ["d000", "d001", "d002", "d004"]
    predicted = ask(client, "predict", queries=["cat"], field="i", filter={"i": {"eq": 7}})
    assert predicted["results"][0]["mean"] == pytest.approx(7.0)


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


def test_similar_gives_what_python_gives(client: TestClient, papers: Collection) -> None:
    body: dict[str, Any] = {"like": ["d001", "d142"], "unlike": ["d005"], "limit": 7, "filter": FILTER}
    got = ask(client, "similar", **body)
    checked(SearchAnswer, got)
    options = {name: value for name, value in body.items() if name != "like"}
    expected = papers.similar(body["like"], **options)
    assert [(hit["id"], pytest.approx(hit["score"])) for hit in got["hits"]] == [
        (hit.id, hit.score) for hit in expected.hits
    ]
    more = ask(client, "similar", **body, cursor=got["next_cursor"])
    assert more["hits"][0]["rank"] == 8
    missing = client.post(f"{URL}/similar", json={"like": ["nobody"]})
    assert (missing.status_code, missing.json()["code"]) == (404, "document_not_found")


def test_similar_by_ids_encodes_nothing(client: TestClient, papers: Collection, encoder: WordEncoder) -> None:
    before = list(encoder.batches)
    assert ask(client, "similar", like=["d001"])["hits"]
    assert encoder.batches == before
    assert ask(client, "similar", like=["d001"], query="cat")["hits"]
    assert encoder.batches == [*before, 1]


def test_facets(client: TestClient, engine: SearchEngine) -> None:
    collection = engine.create("papers")
    collection.ingest(
        [
            Document(
                f"d{i}", f"text {i}", metadata={"kind": "ab"[i % 2], "tags": ["x", i % 3], "by": {"n": i}}
            )
            for i in range(12)
        ]
    )
    got = ask(client, "facets", fields=["kind", "tags", "by.n"], limit=2, filter={"by.n": {"lt": 7}})
    checked(Facets, got)
    assert got["documents"] == 7
    assert got["facets"]["kind"] == [{"value": "a", "documents": 4}, {"value": "b", "documents": 3}]
    assert got["facets"]["tags"] == [{"value": "x", "documents": 7}, {"value": 0, "documents": 3}]
    assert len(got["facets"]["by.n"]) == 2
    by_url = client.get(
        f"{URL}/facets",
        params={"field": ["kind", "tags", "by.n"], "limit": 2, "filter": '{"by.n": {"lt": 7}}'},
    )
    assert by_url.json() == got


def test_documents_are_deleted_by_filter_and_by_ids(client: TestClient, papers: Collection) -> None:
    got = ask(client, "documents/delete", filter={"i": {"lt": 10}})
    checked(DeleteResult, got)
    assert (got["deleted"], got["missing"]) == (9, 0)  # d003 was gone before
    assert got["sequence"] == papers.store.sequence
    got = ask(client, "documents/delete", ids=["d020", "d149", "nobody"])
    assert (got["deleted"], got["missing"]) == (2, 1)
    found = ask(client, "search", query="cat", limit=500)["hits"]
    assert len(found) == 148 - 11
    assert not {hit["id"] for hit in found} & {"d000", "d009", "d020", "d149"}


def test_metadata_is_changed_in_part_and_the_embedding_stays(
    client: TestClient, papers: Collection, encoder: WordEncoder
) -> None:
    encoded = encoder.encoded
    answered = client.patch(f"{URL}/documents/d010", json={"metadata": {"i": None, "by": {"name": "ann"}}})
    assert answered.status_code == 200
    got = answered.json()
    checked(MetadataResult, got)
    assert (got["id"], got["metadata"]) == ("d010", {"by": {"name": "ann"}})
    assert got["sequence"] == papers.store.sequence
    assert encoder.encoded == encoded
    hits = ask(client, "search", query="cat", filter={"by.name": {"eq": "ann"}})["hits"]
    assert [hit["id"] for hit in hits] == ["d010"]
    missing = client.patch(f"{URL}/documents/nobody", json={"metadata": {}})
    assert (missing.status_code, missing.json()["code"]) == (404, "document_not_found")


def test_documents_are_listed_by_filter(client: TestClient, papers: Collection) -> None:
    listed: list[str] = []
    parameters = {"filter": json.dumps(FILTER), "limit": "25"}
    while True:
        page = client.get(f"{URL}/documents", params=parameters).json()
        checked(DocumentPage, page)
        listed += [document["id"] for document in page["documents"]]
        if page["next"] is None:
            break
        parameters["cursor"] = page["next"]
    assert listed == [f"d{i:03}" for i in range(20, 80) if i not in (30, 40)]


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


def test_a_collection_is_made_for_a_language(client: TestClient) -> None:
    url = "/v1/collections/deutsch"
    made = client.put(url, json={"language": "german"})
    assert (made.status_code, made.json()["language"]) == (201, "german")
    assert client.put(url).status_code == 200
    other = client.put(url, json={"language": "french"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    unknown = client.put("/v1/collections/nowhere", json={"language": "klingon"})
    assert unknown.status_code == 422
    assert "use one of arabic" in unknown.json()["detail"]
    assert client.get("/v1/collections/nowhere").status_code == 404


def test_searches_with_different_filters_are_not_one_batch(client: TestClient, papers: Collection) -> None:
    """1 and true are equal in Python, and so would the works of these two searches be."""
    from dsearch.service.batching.search import Searches
    from dsearch.service.schemas.search import SearchRequest

    one, same, true = (
        Searches(None, "papers", SearchRequest(query="cat", filter={"done": {"eq": value}}).options())  # type: ignore[arg-type]
        for value in (1, 1, True)
    )
    assert one == same
    assert one != true
    first = Searches(None, "papers", SearchRequest(query="cat").options())  # type: ignore[arg-type]
    assert first != one
    assert first.largest_batch > 1
    paged = Searches(None, "papers", SearchRequest(query="cat", cursor="abc").options())  # type: ignore[arg-type]
    assert paged.largest_batch == 1


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
        for route in ("search?q=cat&", "documents?", "facets?field=i&"):
            answered = client.get(
                f"{URL}/{route}", params=None if "?" not in route else {"filter": given, **_of(route)}
            )
            assert (answered.status_code, answered.json()["code"]) == (422, "invalid_json")


def _of(route: str) -> dict[str, str]:
    return dict(part.split("=") for part in route.partition("?")[2].split("&") if part)
