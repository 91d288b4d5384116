"""Feedback over HTTP: search, click, and what is stored; nothing else of a search is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN
from support.service.shapes import checked

from dsearch.engine import Collection, SearchEngine
from dsearch.service.feedback import Impressions
from dsearch.service.keys import ApiKeys
from dsearch.service.schemas.answers import SearchAnswer
from dsearch.service.schemas.feedback import ACTION_NAMES
from dsearch.store import Page
from dsearch.training import ACTIONS, judging
from dsearch.types import AttentionSummary, Hit, QueriesToJudge, SearchResult, Stamp

URL = "/v1/collections/papers"


@pytest.fixture
def answer(client: TestClient, papers: Collection) -> dict[str, Any]:
    return client.post(f"{URL}/search", json={"query": "cat attention", "limit": 5}).json()


def click(answer: dict[str, Any], place: int = 1, **more: Any) -> dict[str, Any]:
    hit = answer["hits"][place]
    return {"query_id": answer["query_id"], "action_name": "click", "object_id": hit["id"], **more}


def pages_of(collection: Collection) -> list[Page]:
    return list(collection.feedback.pages())


def test_a_click_is_stored_with_its_page(
    client: TestClient, papers: Collection, answer: dict[str, Any]
) -> None:
    given = click(answer, 1, client_id="browser", timestamp="2026-01-31T12:00:00+01:00")
    given["event_attributes"] = {"position": {"ordinal": 2}}
    sent = client.post(f"{URL}/feedback", json=[given])
    assert (sent.status_code, sent.json()) == (200, {"events": 1, "repeated": 0})
    (page,) = pages_of(papers)
    assert page.impression.query == "cat attention"
    assert page.impression.query_id == answer["query_id"]
    assert list(page.impression.ids) == [hit["id"] for hit in answer["hits"]]
    assert list(page.impression.weights) == [hit["weight"] for hit in answer["hits"]]
    stamp = (page.impression.generation, page.impression.model, page.impression.sequence)
    assert stamp == (answer["generation"], answer["model"], answer["sequence"])
    assert page.impression.pair is None
    (event,) = page.events
    assert (event.action, event.object_id, event.position) == ("click", answer["hits"][1]["id"], 2)
    assert (event.client_id, event.key, event.time_s) == ("browser", "client:browser", 1769857200.0)


def test_searches_that_nobody_reacts_to_are_not_written(
    client: TestClient, papers: Collection, engine: SearchEngine
) -> None:
    for words in ("quaternion", "cat", "dog"):
        answer = client.post(f"{URL}/search", json={"query": words}).json()
    client.post(f"{URL}/feedback", json=[click(answer)])
    assert [page.impression.query for page in pages_of(papers)] == ["dog"]
    files = b"".join(path.read_bytes() for path in engine.home.path.rglob("*") if path.is_file())
    assert b"quaternion" not in files


def test_a_page_is_known_after_a_restart(engine: SearchEngine, papers: Collection) -> None:
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        answer = client.get(f"{URL}/search", params={"query": "river stone"}).json()
        client.post(f"{URL}/feedback", json=[click(answer)])
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        sent = client.post(f"{URL}/feedback", json=[click(answer, 0)])
        assert sent.status_code == 200
        lost = client.post(f"{URL}/feedback", json=[{**click(answer), "query_id": "0" * 32}])
        assert (lost.status_code, lost.json()["code"]) == (422, "unknown_query")
        assert "give its words as user_query" in lost.json()["detail"]
    assert [event.position for event in pages_of(papers)[0].events] == [2, 1]


def test_words_take_the_place_of_an_unknown_search(client: TestClient, papers: Collection) -> None:
    judged = {"user_query": "cat", "action_name": "thumbs_up", "object_id": "d001"}
    for expected in (1, 0):
        sent = client.post(f"{URL}/feedback", json=[judged, {**judged, "query_id": "abc"}])
        assert sent.json()["events"] == 2 * expected
    pages = pages_of(papers)
    assert {page.impression.query for page in pages} == {"cat"}
    assert {page.impression.ids for page in pages} == {()}
    other = client.post(f"{URL}/feedback", json=[{**judged, "query_id": "abc", "user_query": "dog"}])
    assert (other.status_code, other.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda e: e.update(object_id="nobody"), "0.object_id='nobody'; it was not among the first 5 hits"),
        (
            lambda e: e.update(event_attributes={"position": {"ordinal": 4}}),
            "0.event_attributes.position.ordinal=4",
        ),
        (lambda e: e.update(action_name="stare"), "0.action_name='stare'; use click, watch"),
        (lambda e: e.pop("query_id"), "neither query_id nor user_query"),
        (lambda e: e.update(user_query="other words"), "names another query"),
        (lambda e: e.update(timestamp="yesterday"), "use a time such as"),
        (lambda e: e.update(timestamp="1969-12-31T23:59:59Z"), "use a time such as"),
        (lambda e: e.update(position=1), "unknown field 'position'"),
        (lambda e: e.update(event_id="x" * 129), "at most 128"),
        (lambda e: e.update(object_id=""), "the id of a document"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_stored(
    client: TestClient,
    papers: Collection,
    answer: dict[str, Any],
    change: Callable[[dict[str, Any]], object],
    detail: str,
) -> None:
    event = click(answer)
    change(event)
    refused = client.post(f"{URL}/feedback", json=[event])
    assert refused.status_code == 422
    assert detail in refused.json()["detail"]
    good_and_bad = client.post(f"{URL}/feedback", json=[click(answer), event])
    assert good_and_bad.status_code == 422
    assert pages_of(papers) == []


def test_contributions_bear_the_key(engine: SearchEngine, papers: Collection) -> None:
    text, key = ApiKeys(engine.home.path).create("site", "write")
    headers = {"Authorization": f"Bearer {text}"}
    with TestClient(patient_app(engine), base_url=ORIGIN, headers=headers) as client:
        answer = client.post(f"{URL}/search", json={"query": "cat"}).json()
        client.post(f"{URL}/feedback", json=[click(answer, client_id="somebody")])
    (page,) = pages_of(papers)
    assert page.impression.key == page.events[0].key == key.id


def test_a_key_reads_its_own_opinions_whatever_client_it_names(
    engine: SearchEngine, papers: Collection
) -> None:
    opinion = {"user_query": "cat", "action_name": "thumbs_up", "object_id": "d001", "client_id": "ann"}
    keys = ApiKeys(engine.home.path)
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        assert client.post(f"{URL}/feedback", json=[opinion]).status_code == 200  # before there are keys
        for name, expected in (("one", {}), ("other", {"dog": {"d002": 2.0}})):
            text, _ = keys.create(name, "write")
            client.headers["Authorization"] = f"Bearer {text}"
            if expected:
                own = {**opinion, "user_query": "dog", "object_id": "d002"}
                assert client.post(f"{URL}/feedback", json=[own]).status_code == 200
            for named in ({}, {"client_id": "ann"}):
                answer = client.get(f"{URL}/judgements", params=named).json()
                assert answer["judgements"] == expected, (name, named)


def test_what_was_judged_is_not_proposed_again(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed: list[Any] = []

    def propose(collection: Collection, **options: Any) -> QueriesToJudge:
        proposed.append((options["judged"], options["version"], options["limit"]))
        return choose(collection, **options)

    choose = judging.queries_to_judge
    monkeypatch.setattr(judging, "queries_to_judge", propose)
    opinion = {"user_query": "cat", "action_name": "thumbs_up", "object_id": "d001", "client_id": "ann"}
    assert client.post(f"{URL}/feedback", json=[opinion]).status_code == 200
    for person in ("ann", "bob"):
        answer = client.get(f"{URL}/judgements/next", params={"client_id": person, "limit": 3})
        assert answer.status_code == 200, answer.text
    missing = client.get(f"{URL}/judgements/next", params={"version": "v9"})
    assert (missing.status_code, missing.json()["code"]) == (404, "model_not_found")
    assert proposed == [(["cat"], None, 3), ([], None, 3), (["cat"], "v9", 10)]


def test_an_order_that_was_asked_for_is_not_explored(client: TestClient, papers: Collection) -> None:
    body = {"query": "cat", "explore": 0.2, "sort": "-n", "limit": 5}
    answers = [client.post("/v1/collections/papers/search", json=body).json() for _ in range(40)]
    assert [answer.get("explored") for answer in answers] == [None] * 40
    assert len({tuple(hit["id"] for hit in answer["hits"]) for answer in answers}) == 1


def test_explored_pages_are_swapped_and_say_so(client: TestClient, papers: Collection) -> None:
    plain = [hit["id"] for hit in client.post(f"{URL}/search", json={"query": "cat"}).json()["hits"]]
    seen: Counter[str] = Counter()
    for _ in range(150):
        raw = client.post(f"{URL}/search", json={"query": "cat", "explore": 0.2}).json()
        answer = checked(SearchAnswer, raw)
        ids = [hit.id for hit in answer.hits]
        assert [hit.rank for hit in answer.hits] == list(range(1, 11))
        if answer.explored is None or not answer.explored.swapped:
            assert ids == plain
            seen["drawn" if answer.explored else "plain"] += 1
            continue
        a, b = (position - 1 for position in answer.explored.pair)
        ids[a], ids[b] = ids[b], ids[a]
        assert ids == plain
        seen["swapped"] += 1
        if seen["swapped"] == 1:
            client.post(f"{URL}/feedback", json=[click(raw, a)])
            (page,) = pages_of(papers)
            assert page.impression.pair == tuple(answer.explored.pair)
            assert page.impression.swapped
            assert page.events[0].position == a + 1
    assert min(seen["drawn"], seen["swapped"]) > 2
    assert seen["plain"] > 90
    refused = client.post(f"{URL}/search", json={"query": "cat", "explore": 0.3})
    assert "use a share of the pages from 0 to 0.2" in refused.json()["detail"]


def test_exploring_is_a_setting_of_the_service(engine: SearchEngine, papers: Collection) -> None:
    with TestClient(patient_app(engine, explore=0.2), base_url=ORIGIN) as client:
        queries = {"queries": ["cat"] * 100}
        drawn = [
            one["explored"] is not None
            for one in client.post(f"{URL}/search/batch", json=queries).json()["results"]
        ]
        off = client.post(f"{URL}/search/batch", json={**queries, "explore": 0.0}).json()["results"]
    assert 4 < sum(drawn) < 50
    assert all(one["explored"] is None for one in off)


def result(words: str) -> SearchResult:
    hits = [Hit(rank, f"d{rank}", 0.1, 1.0, "", "") for rank in range(1, 11)]
    return SearchResult(words, hits, Stamp(1, "v0", 1), AttentionSummary(10, 1.0), 0.0)


def test_remembered_pages_are_bounded_and_the_oldest_go_first() -> None:
    pages = Impressions(max_bytes=200_000)
    ids = [pages.show("c", result(f"query {n}"))[1] for n in range(1000)]
    assert pages.bytes <= 200_000
    assert 50 < len(pages) < 200
    assert pages.find("c", ids[-1]) is not None
    assert pages.find("c", ids[0]) is None
    assert pages.find("other", ids[-1]) is None
    pages.show("c", result("long " * 2000))
    kept = len(pages)
    assert kept < 200
    assert pages.bytes <= 200_000


def test_the_service_takes_every_action_that_training_knows() -> None:
    assert set(ACTION_NAMES) == set(ACTIONS)


def test_damaged_feedback_stops_no_search(client: TestClient, papers: Collection, tmp_path: Path) -> None:
    (papers.store.path / "feedback.db").write_bytes(b"nonsense" * 1000)
    answer = client.post(f"{URL}/search", json={"query": "cat"})
    assert answer.status_code == 200
    refused = client.post(f"{URL}/feedback", json=[click(answer.json())])
    assert (refused.status_code, refused.json()["code"]) == (500, "corrupt_data")
    assert str(tmp_path) not in refused.text
    assert "feedback" in refused.json()["detail"]


def test_deleting_a_collection_takes_its_feedback(
    client: TestClient, papers: Collection, answer: dict[str, Any]
) -> None:
    client.post(f"{URL}/feedback", json=[click(answer)])
    path = papers.store.path
    assert client.delete(URL).status_code in (200, 204)
    assert not path.exists()
