"""Events become records of a page: whose they are, where the document stood, which of them are the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.guarded import guarded

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.service.collections import Catalogue
from dsearch.service.errors import UnknownQuery
from dsearch.service.feedback import Feedback, Impressions, asker
from dsearch.service.schemas.feedback import EventGiven
from dsearch.store import Event
from dsearch.types import AttentionSummary, Hit, SearchResult, Stamp

checked = guarded(Impressions, "_pages", "_bytes", free=("__len__", "bytes"))


def result(words: str = "cat", count: int = 3, first: int = 1) -> SearchResult:
    hits = [Hit(rank, f"d{rank}", 0.1, 1.0, "", "") for rank in range(first, first + count)]
    return SearchResult(words, hits, Stamp(1, "v0", 1), AttentionSummary(10, 1.0), 0.0)


@pytest.fixture
def shown(engine: SearchEngine, papers: Collection) -> tuple[Any, str]:
    """Records events of a page of three documents; and its query id."""
    pages = Impressions()
    _, query_id, _ = pages.show("papers", result())
    catalogue = Catalogue(engine)

    def record(*events: dict[str, Any], key: str = "") -> Any:
        given = [
            EventGiven(**({"query_id": query_id, "action_name": "click", "object_id": "d1"} | event))
            for event in events
        ]
        return Feedback(catalogue, pages, "papers", key, given)()

    return record, query_id


def stored(papers: Collection) -> list[Event]:
    return [event for page in papers.feedback.pages() for event in page.events]


def test_events_are_the_same_if_all_that_was_given_is(shown: tuple[Any, str], papers: Collection) -> None:
    """Without an id of its own an event is told by its page, client, action, document and time.

    Of one API key: those of another, or of another client without keys, are others whatever they say.
    """
    record, _ = shown
    base = {"client_id": "a", "timestamp": "2026-01-31T12:00:00Z"}
    others: list[dict[str, Any]] = [
        {"client_id": "b"},
        {"action_name": "thumbs_up"},
        {"object_id": "d2"},
        {"timestamp": "2026-01-31T12:00:01Z"},
        {"timestamp": None},
        {"event_id": "mine"},
    ]
    assert record(base, key="k").events == 1
    for other in others:
        assert record(base | other, key="k").events == 1, other
        assert record(base | other, key="k").repeated == 1, other
    assert len(stored(papers)) == 7


def test_a_key_takes_precedence_over_a_client(shown: tuple[Any, str], papers: Collection) -> None:
    record, _ = shown
    record({"client_id": "a"})
    record({"client_id": "a"}, key="key1")
    record({"object_id": "d2"})
    assert [(event.key, event.client_id) for event in stored(papers)] == [
        ("client:a", "a"),
        ("key1", "a"),
        ("", ""),
    ]


def test_a_document_has_the_position_that_it_was_shown_at(shown: tuple[Any, str], papers: Collection) -> None:
    record, query_id = shown
    at_two = {"event_attributes": {"position": {"ordinal": 2}}}
    record({"object_id": "d2"}, {"object_id": "d3", "action_name": "thumbs_up"})
    assert [event.position for event in stored(papers)] == [2, 3]
    assert record({"object_id": "d2", "event_id": "x", **at_two}).events == 1
    with pytest.raises(InvalidRequest, match="'d1' was shown at position 1: use that, or leave it out"):
        record(at_two)
    with pytest.raises(InvalidRequest, match=f"among the first 3 hits of query_id {query_id}"):
        record({"object_id": "d9"})
    # An opinion may be about a document that was not shown, a click not.
    assert record({"object_id": "d9", "action_name": "thumbs_down"}).events == 1
    assert stored(papers)[-1].position is None
    assert record({"query_id": "new", "user_query": "dog", "object_id": "d9", **at_two}).events == 1
    assert stored(papers)[-1].position == 2


def test_the_number_of_a_wrong_event_is_named_and_none_is_stored(
    shown: tuple[Any, str], papers: Collection
) -> None:
    record, _ = shown
    with pytest.raises(UnknownQuery, match=r"^1\.query_id='lost'; no search of this id is remembered"):
        record({}, {"query_id": "lost"})
    with pytest.raises(InvalidRequest, match=r"^2\.user_query='dog'; query_id .* names another query"):
        record({}, {}, {"user_query": "dog"})
    assert stored(papers) == []


def test_a_time_is_that_of_the_event_else_of_its_page(
    shown: tuple[Any, str], papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = shown
    record({}, {"object_id": "d2", "timestamp": "2026-01-31T12:00:00+01:00"})
    [page] = papers.feedback.pages()
    assert [event.time_s for event in page.events] == [page.impression.shown_s, 1769857200.0]
    assert all(event.received_s >= page.impression.shown_s for event in page.events)


def test_events_of_words_share_their_page(shown: tuple[Any, str], papers: Collection) -> None:
    record, _ = shown
    words = {"query_id": None, "user_query": "river", "action_name": "answer"}
    record({**words, "object_id": "d7"}, {**words, "object_id": "d8"}, key="key1")
    [page] = papers.feedback.pages()
    assert page.impression.query_id.startswith("text-")
    assert (page.impression.query, page.impression.key, page.impression.ids) == ("river", "key1", ())
    assert len(page.events) == 2


def test_a_page_is_remembered_for_its_collection_and_measured() -> None:
    pages = Impressions()
    answer, query_id, drawn = pages.show("papers", result("é" * 10, 2), key="k")
    assert drawn is None
    assert [hit.id for hit in answer.hits] == ["d1", "d2"]
    page = pages.find("papers", query_id)
    assert page is not None
    assert (page.query, page.key, page.ids, page.first) == ("é" * 10, "k", ("d1", "d2"), 1)
    assert pages.find("notes", query_id) is None
    assert pages.bytes == 600 + 2 * 130 + 4 * (10 + 4)
    assert len(pages) == 1


def test_the_share_of_a_search_takes_precedence_over_that_of_the_service() -> None:
    pages = Impressions(explore=0.2)
    shown = [pages.show("papers", result(count=10))[2] for _ in range(300)]
    assert 20 < sum(drawn is not None for drawn in shown) < 110
    assert all(pages.show("papers", result(), explore=0.0)[2] is None for _ in range(50))
    with pytest.raises(InvalidRequest, match=r"use a number from 0 to 0\.2"):
        pages.show("papers", result(), explore=0.3)


def test_the_asker_is_a_key_or_nobody() -> None:
    def request(**state: Any) -> Any:
        return SimpleNamespace(state=SimpleNamespace(**state))

    assert asker(request(key_id="k")) == "k"
    assert asker(request(key_id=None)) == asker(request()) == ""
