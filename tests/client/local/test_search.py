"""Feedback and gradients of an engine in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes import HashingEncoder

import dsearch
from dsearch.client import LocalEngine
from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.service.collections import Catalogue
from dsearch.service.feedback import Feedback, Impressions
from dsearch.service.schemas.feedback import EventGiven
from dsearch.store import Event

CLICK = {"user_query": "apple", "action_name": "thumbs_up", "object_id": "a"}
NOON_S = 1769860800.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    with dsearch.open(tmp_path_factory.mktemp("search") / "home", encoder=HashingEncoder) as opened:
        opened.create_collection("food")
        texts = {"a": "apple", "b": "bread", "c": "apple bread", "d": "dough"}
        opened.upsert("food", [{"id": id, "text": text} for id, text in texts.items()])
        yield opened


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    with dsearch.open(tmp_path / "home", encoder=HashingEncoder) as opened:
        opened.create_collection("food")
        yield opened


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine stands five hours east of Greenwich."""
    monkeypatch.setenv("TZ", "East-5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def stored(engine: SearchEngine) -> list[Event]:
    return [event for page in engine.collection("food").feedback.pages() for event in page.events]


@pytest.mark.parametrize(
    "moment", ["2026-01-31T12:00:00", "2026-01-31T12:00:00Z", "2026-01-31T14:00:00+02:00"]
)
def test_a_time_without_a_zone_is_utc_wherever_the_machine_stands(
    engine: LocalEngine, elsewhere: None, moment: str
) -> None:
    engine.feedback("food", [{**CLICK, "timestamp": moment}])
    assert [event.time_s for event in stored(engine.engine)] == [NOON_S]
    assert EventGiven(**CLICK, timestamp=moment).time_s == NOON_S


def test_events_have_the_ids_that_a_server_gives_them(engine: LocalEngine) -> None:
    """Sent to one after the other, an event counts once."""
    more: list[dict[str, Any]] = [{}, {"client_id": "me"}, {"timestamp": "2026-01-31T12:00:00Z"}]
    events = [{**CLICK, **each} for each in more]
    assert engine.feedback("food", events).events == 3
    assert engine.feedback("food", events).repeated == 3
    ours = sorted(event.event_id for event in stored(engine.engine))
    served = [EventGiven(**event) for event in events]
    sent = Feedback(Catalogue(engine.engine), Impressions(), "food", "", served)()
    assert (sent.events, sent.repeated) == (0, 3)
    assert sorted(event.event_id for event in stored(engine.engine)) == ours
    keys = {event.client_id: event.key for event in stored(engine.engine)}
    assert keys == {"": "", "me": "client:me"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_id": "x"}, "1: unknown field 'query_id'; use action_name, object_id, user_query"),
        ({"action_name": "stare"}, "1.action_name='stare'; use click"),
        ({"action_name": None}, "1.action_name=None; use click"),
        ({"object_id": " "}, "1.object_id=' '; give text"),
        ({"user_query": 7}, "1.user_query=7; give text"),
        ({"timestamp": "soon"}, "1.timestamp='soon'; use a time such as 2026-01-31T12:00:00Z"),
        ({"timestamp": 7}, "1.timestamp=7; use a time such as"),
    ],
)
def test_a_wrong_event_is_named_and_none_is_stored(
    engine: LocalEngine, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        engine.feedback("food", [CLICK, {**CLICK, **change}])
    assert str(refused.value).startswith(message)
    assert stored(engine.engine) == []
    with pytest.raises(InvalidRequest, match="no events; give one or more"):
        engine.feedback("food", [])


def test_opinions_of_a_client_are_its_own(engine: LocalEngine) -> None:
    engine.upsert("food", [{"id": "a", "text": "apple"}, {"id": "b", "text": "bread"}])
    engine.feedback("food", [{**CLICK, "client_id": "me"}, {**CLICK, "client_id": "you", "object_id": "b"}])
    mine = engine.own_judgements("food", client_id="me").judgements
    assert [list(of) for of in mine.values()] == [["a"]]
    both = engine.own_judgements("food").judgements
    assert sorted(id for of in both.values() for id in of) == ["a", "b"]


def test_gradients_of_the_head_come_where_they_are_wanted(built: LocalEngine) -> None:
    answer = built.attend("food", ["apple"], mode="dense", candidates=3)
    weights = [[1.0] + [0.0] * (len(answer.ids[0]) - 1)]
    options: Any = {"weights": weights, "stamp": answer.stamp, "mode": "dense", "candidates": 3}
    whole = built.vjp("food", ["apple"], **options)
    assert whole.head
    alone = built.vjp("food", ["apple"], head=False, **options)
    assert alone.head == {}
    assert (alone.states == whole.states).all()


def test_a_batch_is_of_queries_or_of_vectors(built: LocalEngine) -> None:
    by_text = built.search_batch("food", ["apple", "bread"], mode="dense", limit=1)
    assert [result.hits[0].id for result in by_text] == ["a", "b"]
    states = HashingEncoder().encode_queries(["bread", "apple"])
    by_vector = built.search_batch("food", vectors=states, limit=1)
    assert [(result.query, result.hits[0].id) for result in by_vector] == [("", "b"), ("", "a")]
    with pytest.raises(InvalidRequest, match="neither queries nor vectors; give at least one"):
        built.search_batch("food")
    assert built.search_batch("food", []) == []


@pytest.mark.parametrize(
    ("ways", "message"),
    [
        ({}, "neither queries nor vectors nor ids; give one"),
        ({"queries": ["a"], "ids": ["a"]}, "queries and ids; give one of queries, vectors and ids"),
    ],
)
def test_a_prediction_is_asked_in_one_way(built: LocalEngine, ways: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        built.predict("food", field="value", **ways)


@pytest.mark.parametrize("call", ["search", "search_batch", "similar", "attend"])
def test_unknown_options_are_refused_by_name(built: LocalEngine, call: str) -> None:
    unknown: Any = {"limitt": 3}
    with pytest.raises((InvalidRequest, TypeError), match="limitt"):
        getattr(built, call)("food", "apple" if call == "search" else ["a"], **unknown)


def test_what_servers_alone_do_is_left_out_here(built: LocalEngine) -> None:
    assert built.search("food", "apple", explore=0.2, limit=1).hits[0].id == "a"
