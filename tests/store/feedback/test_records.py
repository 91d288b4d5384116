"""Pages and events as text and as JSON: every field is where it belongs."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from dsearch.store.feedback import Event, Impression, digest_of

PAGE = Impression(
    query_id="q1",
    query="wing flutter",
    shown_s=86400.5,
    generation=3,
    model="v2",
    sequence=17,
    key="site",
    ids=("a", "b"),
    weights=(0.75, 0.25),
    first=11,
    pair=(1, 2),
    swapped=True,
)
EVENT = Event("e1", "q1", "site", "browser", "click", "b", 12, 86400.0, 86401.5)
CHANGED: dict[str, Any] = {
    "query_id": "x",
    "query": "x",
    "shown_s": 1.0,
    "generation": 9,
    "model": "x",
    "sequence": 9,
    "key": "x",
    "ids": ("x",),
    "weights": (0.5,),
    "first": 9,
    "pair": None,
    "swapped": False,
    "event_id": "x",
    "client_id": "x",
    "action": "x",
    "object_id": "x",
    "position": None,
    "time_s": 1.0,
}


def test_a_page_is_exported_with_each_field_in_its_place() -> None:
    assert PAGE.to_dict() == {
        "query_id": "q1",
        "user_query": "wing flutter",
        "timestamp": "1970-01-02T00:00:00.500000+00:00",
        "generation": 3,
        "model": "v2",
        "sequence": 17,
        "key": "site",
        "query_response_hit_ids": ["a", "b"],
        "weights": [0.75, 0.25],
        "first_position": 11,
        "randomised": {"pair": [1, 2], "swapped": True},
    }
    assert replace(PAGE, pair=None).to_dict()["randomised"] is None


def test_an_event_is_exported_with_each_field_in_its_place() -> None:
    assert EVENT.to_dict() == {
        "event_id": "e1",
        "query_id": "q1",
        "client_id": "browser",
        "key": "site",
        "action_name": "click",
        "object_id": "b",
        "event_attributes": {"position": {"ordinal": 12}},
        "timestamp": "1970-01-02T00:00:00+00:00",
    }


def test_contents_are_read_back() -> None:
    for page in (PAGE, replace(PAGE, pair=None, swapped=False, ids=(), weights=())):
        assert Impression.from_content(page.content()) == page
        assert json.loads(page.content())  # plain JSON
    assert Event.from_content(EVENT.content(), 86401.5) == EVENT
    assert Event.from_content(EVENT.content(), 5.0) == replace(EVENT, received_s=5.0)


@pytest.mark.parametrize("field", [field.name for field in fields(Impression)])
def test_each_field_of_a_page_changes_its_content(field: str) -> None:
    assert replace(PAGE, **{field: CHANGED[field]}).content() != PAGE.content()


@pytest.mark.parametrize("field", [field.name for field in fields(Event) if field.name != "received_s"])
def test_each_field_of_an_event_changes_its_content(field: str) -> None:
    assert replace(EVENT, **{field: CHANGED[field]}).content() != EVENT.content()


def test_an_event_sent_again_later_has_the_same_content() -> None:
    assert replace(EVENT, received_s=9e9).content() == EVENT.content()


def test_positions_count_from_the_first_of_the_page() -> None:
    assert [PAGE.position_of(id) for id in ("a", "b", "c")] == [11, 12, None]


def test_a_digest_is_of_content_and_time() -> None:
    digests = [digest_of("text"), digest_of("other"), digest_of("text", 5), digest_of("text", 6)]
    assert len(set(digests)) == 4
    assert {len(digest) for digest in digests} == {32}
    assert digest_of("text", 5) == digest_of("text", 5.0)
