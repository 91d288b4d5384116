"""`/v1/vector_stores`, asked by the official client of a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from support.late import late
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine
from dsearch.types import Document

openai = late("openai")

pytestmark = pytest.mark.server

ODD = Document(
    "odd", "music lamp", metadata={"or": "x", "not": "y", "a.b": 1, "nested": {"c": 2}, "tags": ["t"]}
)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("stores") / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest([*documents(40), ODD])
        engine.create("empty")
    with serving(home) as (address, _):
        yield address


@pytest.fixture(scope="module")
def client(origin: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{origin}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def compared(kind: str, key: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "key": key, "value": value}


def joined(kind: str, *filters: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "filters": list(filters)}


def test_collections_are_stores(client: openai.OpenAI) -> None:
    stores = list(client.vector_stores.list())
    assert [(one.id, one.file_counts.total, one.status) for one in stores] == [
        ("empty", 0, "completed"),
        ("papers", 41, "completed"),
    ]
    assert client.vector_stores.retrieve("papers") == stores[1]
    with pytest.raises(openai.NotFoundError, match="no collection 'none'; there are: empty, papers"):
        client.vector_stores.retrieve("none")


def test_a_store_is_created_and_deleted(client: openai.OpenAI, origin: str) -> None:
    made = client.vector_stores.create(name="made")
    assert (made.id, made.name, made.file_counts.total) == ("made", "made", 0)
    assert client.vector_stores.create(name="made") == made
    body = [{"id": "d1", "text": "river music"}]
    assert httpx2.put(f"{origin}/v1/collections/made/documents", json=body).status_code == 200
    assert client.vector_stores.search("made", query="river").data[0].file_id == "d1"
    ended = client.vector_stores.delete("made")
    assert (ended.id, ended.deleted) == ("made", True)
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.delete("made")
    with pytest.raises(openai.UnprocessableEntityError, match="name"):
        client.vector_stores.create(name="../odd")
    with pytest.raises(openai.UnprocessableEntityError, match="expires_after"):
        client.vector_stores.create(name="made", expires_after={"anchor": "last_active_at", "days": 1})


def test_a_search_gives_what_the_collection_gives(client: openai.OpenAI, origin: str) -> None:
    found = client.vector_stores.search("papers", query="river music", max_num_results=5).data
    body = {"query": "river music", "limit": 5}
    hits = httpx2.post(f"{origin}/v1/collections/papers/search", json=body).json()["hits"]
    assert [(one.file_id, one.score, one.filename) for one in found] == [
        (hit["id"], hit["weight"], hit["title"] or hit["id"]) for hit in hits
    ]
    assert found[0].content[0].text == hits[0]["text"]
    assert {one.file_id: one.attributes for one in found} == {
        hit["id"]: {"or": "x", "not": "y", "a.b": 1} if hit["id"] == "odd" else hit["metadata"]
        for hit in hits
    }


def test_of_several_queries_each_document_counts_once(client: openai.OpenAI) -> None:
    each = [
        {one.file_id: one.score for one in client.vector_stores.search("papers", query=query).data}
        for query in ("river", "music")
    ]
    both = client.vector_stores.search("papers", query=["river", "music"], max_num_results=20).data
    best = {id: max(scores.get(id, 0) for scores in each) for id in each[0] | each[1]}
    first = [one for one in both if one.file_id in best][:5]
    assert [one.score for one in both] == sorted((one.score for one in both), reverse=True)
    for one in first:
        assert one.score == pytest.approx(best[one.file_id])
    assert len({one.file_id for one in both}) == len(both)


def test_a_document_has_the_score_of_the_query_that_finds_it_best(client: openai.OpenAI) -> None:
    *_, last = client.vector_stores.search("papers", query="river").data
    words = last.content[0].text
    first, *_ = client.vector_stores.search("papers", query=words).data
    assert (first.file_id, first.score > last.score) == (last.file_id, True)
    for queries in (["river", words], [words, "river"]):
        found = {one.file_id: one.score for one in client.vector_stores.search("papers", query=queries).data}
        assert found[first.file_id] == pytest.approx(first.score)


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (compared("eq", "i", 7), ["d007"]),
        (compared("in", "i", [7, 8]), ["d007", "d008"]),
        (compared("gte", "i", 38), ["d038", "d039"]),
        (joined("and", compared("gt", "i", 3), compared("lt", "i", 5)), ["d004"]),
        (joined("and", compared("lte", "i", 2), compared("ne", "i", 1)), ["d000", "d002"]),
        (joined("and", compared("lt", "i", 3), compared("nin", "i", [0, 1])), ["d002"]),
        (joined("or", compared("eq", "i", 1), joined("and", compared("eq", "or", "x"))), ["d001", "odd"]),
        (compared("eq", "not", "y"), ["odd"]),
        (compared("eq", "a.b", 1), ["odd"]),
        (compared("eq", "nested.c", 2), []),
    ],
)
def test_filters(client: openai.OpenAI, filters: Any, ids: list[str]) -> None:
    found = client.vector_stores.search("papers", query="music", filters=filters, max_num_results=50).data
    assert sorted(one.file_id for one in found) == ids


def test_weights_choose_the_legs_and_a_threshold_cuts(client: openai.OpenAI, origin: str) -> None:
    def ids(**ranking: Any) -> list[str]:
        found = client.vector_stores.search("papers", query="river", ranking_options=ranking).data
        return [one.file_id for one in found]

    def native(**options: Any) -> list[str]:
        body = {"query": "river", **options}
        hits = httpx2.post(f"{origin}/v1/collections/papers/search", json=body).json()["hits"]
        return [hit["id"] for hit in hits]

    assert ids() == ids(hybrid_search={"embedding_weight": 1, "text_weight": 3}) == native()
    assert ids(hybrid_search={"embedding_weight": 1, "text_weight": 0}) == native(mode="dense")
    assert ids(hybrid_search={"embedding_weight": 0, "text_weight": 1}) == native(mode="keyword")
    scores = [one.score for one in client.vector_stores.search("papers", query="river").data]
    assert len(ids(score_threshold=scores[2])) == 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_num_results": 51}, "max_num_results=51; use an integer from 1 to 50"),
        ({"filters": {"type": "like", "key": "i", "value": 1}}, "with type eq, ne, gt"),
        ({"filters": joined("and", {"key": "i"})}, "filters.0={'key': 'i'}; use"),
        ({"filters": compared("in", "i", 3)}, "in"),
        (
            {"ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}},
            "both weights are 0",
        ),
    ],
)
def test_errors_are_what_the_client_parses(client: openai.OpenAI, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        client.vector_stores.search("papers", query="cat", **asked)
    assert said in raised.value.message
    assert raised.value.code == "invalid_request"


def test_a_filter_too_deep_is_refused(client: openai.OpenAI) -> None:
    deep: dict[str, Any] = compared("eq", "i", 1)
    for _ in range(17):
        deep = joined("and", deep)
    with pytest.raises(openai.UnprocessableEntityError, match="use fewer levels"):
        client.vector_stores.search("papers", query="cat", filters=deep)  # pyright: ignore
