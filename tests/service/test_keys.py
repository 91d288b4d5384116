"""Each part of a key counts: searches that differ in one are not one batch, events not one event."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from dsearch.declared import options_of
from dsearch.search_options import SearchOptions
from dsearch.service.feedback import Impressions, _made_id
from dsearch.service.schemas.feedback import EventGiven
from dsearch.service.searching import Searches
from dsearch.store import Impression

OTHERS: dict[str, Any] = {
    "filter": {"year": {"eq": 1937}},
    "coverage": True,
    **{
        name: about.choices[-1] if about.choices and about.choices[-1] != field.default else f"given-{name}"
        for name, (field, about) in options_of(SearchOptions).items()
    },
}


def searches(catalogue: Any = "one", collection: str = "papers", **options: Any) -> Searches:
    return Searches(catalogue, collection, replace(SearchOptions(), **options))


@pytest.mark.parametrize("name", [field.name for field in fields(SearchOptions)])
def test_searches_that_differ_in_an_option_are_not_one_batch(name: str) -> None:
    other = {name: OTHERS[name]}
    assert searches(**other) == searches(**other)
    assert searches(**other) != searches()


def test_searches_of_other_collections_are_not_one_batch() -> None:
    assert searches() == searches()
    assert searches() != searches(collection="letters")
    assert searches([]) != searches([])  # of two services
    assert searches() != "papers"


EVENT = {"action_name": "click", "object_id": "d1", "query_id": "q1"}
OTHER_EVENTS = {
    "client_id": "browser-17",
    "action_name": "thumbs_up",
    "object_id": "d2",
    "timestamp": "2026-01-31T12:00:00Z",
}


def _id_of(query_id: str = "q1", **changed: str) -> str:
    return _made_id(EventGiven.model_validate(EVENT | changed), Impression(query_id, "river", 0.0))


@pytest.mark.parametrize("name", OTHER_EVENTS)
def test_events_that_differ_in_a_field_are_counted_apart(name: str) -> None:
    assert _id_of(**{name: OTHER_EVENTS[name]}) != _id_of()


def test_events_of_other_pages_are_counted_apart_and_the_same_one_once() -> None:
    assert _id_of("q2") != _id_of()
    assert _id_of() == _id_of()


def test_pages_are_found_in_their_collection_by_their_query() -> None:
    pages = Impressions()
    one, other = (Impression(query_id, "river", 0.0) for query_id in ("q1", "q2"))
    pages._add("papers", one)
    pages._add("papers", other)
    assert (pages.find("papers", "q1"), pages.find("papers", "q2")) == (one, other)
    assert pages.find("letters", "q1") is None
