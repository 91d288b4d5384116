"""Orders by a field, and hits cut to the fields that were asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsearch.engine.search.arrangement import order_by, shaped_by
from dsearch.errors import InvalidRequest
from dsearch.types import Document, Hit, Passage

HIT = Hit(
    3,
    "d1",
    0.25,
    1.5,
    "a title",
    "a text",
    {"year": 1999, "place": {"city": "Ulm", "zip": 1}},
    passage=Passage(0, 0, 1, "a"),
)


def order(sort: str, *values: Any) -> list[str]:
    """Ids a, b, c … by the field x of documents with these values; "absent": without the field."""
    documents = [
        Document(chr(ord("a") + place), "", metadata={} if value == "absent" else {"x": value})
        for place, value in enumerate(values)
    ]
    return [documents[place].id for place in order_by(documents, sort)]


def test_ascending_and_descending_with_ties_by_id() -> None:
    assert order("x", 3, 1, 2, 1) == ["b", "d", "c", "a"]
    assert order("-x", 3, 1, 2, 1) == ["a", "c", "b", "d"]


def test_equal_values_go_by_id_whatever_the_order_of_documents() -> None:
    documents = [Document(id, "", metadata={"x": 1} if id < "d" else {}) for id in "cebad"]
    for sort in ("x", "-x"):
        assert [documents[place].id for place in order_by(documents, sort)] == [*"abcde"]


def test_documents_without_the_field_come_last_in_both_orders() -> None:
    assert order("x", "absent", 2, None, 1) == ["d", "b", "a", "c"]
    assert order("-x", "absent", 2, None, 1) == ["b", "d", "a", "c"]


def test_kinds_are_ordered_one_after_the_other() -> None:
    """Booleans before numbers before texts; lists and objects are not comparable and come last."""
    assert order("x", "1", 0.5, True, [1], False, {"y": 1}, -7) == ["e", "c", "g", "b", "a", "d", "f"]
    assert order("-x", "1", 0.5, True, [1], False, {"y": 1}, -7) == ["a", "b", "g", "c", "e", "d", "f"]


def test_nested_fields_order_too_and_no_documents_have_an_order() -> None:
    documents = [Document("a", "", metadata={"y": {"x": 2}}), Document("b", "", metadata={"y": {"x": 1}})]
    assert order_by(documents, "y.x") == [1, 0]
    assert order_by(documents, "-y.x") == [0, 1]
    assert order_by([], "x") == []


def test_a_misspelt_field_is_refused_and_one_that_no_candidate_has_is_not() -> None:
    documents = [Document("a", "", metadata={"year": 1}), Document("b", "", metadata={"year": 2})]
    with pytest.raises(InvalidRequest, match=r"sort='-yaer': none of the 2 candidates has this field .*year"):
        order_by(documents, "-yaer")
    assert order_by(documents, "-price") == [0, 1]


def test_without_fields_hits_stay() -> None:
    assert shaped_by(None)(HIT) is HIT


@pytest.mark.parametrize(
    ("fields", "title", "text", "passage", "metadata"),
    [
        ("title", True, False, False, {}),
        ("text", False, True, True, {}),
        ("metadata", False, False, False, HIT.metadata),
        ("title, text,metadata", True, True, True, HIT.metadata),
        ("year", False, False, False, {"year": 1999}),
        ("metadata.year", False, False, False, {"year": 1999}),
        ("place.city,year", False, False, False, {"place": {"city": "Ulm"}, "year": 1999}),
        ("place.city,place.zip", False, False, False, {"place": {"city": "Ulm", "zip": 1}}),
        ("place.street,year.day,missing", False, False, False, {}),
    ],
)
def test_only_the_named_fields_are_kept(
    fields: str, title: bool, text: bool, passage: bool, metadata: dict[str, Any]
) -> None:
    shown = shaped_by(fields)(HIT)
    assert (shown.title, shown.text) == (HIT.title if title else "", HIT.text if text else "")
    assert shown.passage == (HIT.passage if passage else None)
    assert shown.metadata == metadata
    assert (shown.rank, shown.id, shown.weight, shown.score) == (3, "d1", 0.25, 1.5)
    assert HIT.metadata == {"year": 1999, "place": {"city": "Ulm", "zip": 1}}


@pytest.mark.parametrize("value", [0, 0.0, False, "", None, [], {}], ids=repr)
def test_a_field_with_an_empty_value_is_kept_as_it_is(value: Any) -> None:
    hit = replace(HIT, metadata={"x": value, "in": {"x": value}, "y": 1})
    shown = shaped_by("x,in.x")(hit).metadata
    assert shown == {"x": value, "in": {"x": value}}
    assert type(shown["x"]) is type(value)


@pytest.mark.parametrize("fields", ["", "title,,text", " , "])
def test_an_empty_name_is_refused(fields: str) -> None:
    with pytest.raises(InvalidRequest, match=r"names nothing between commas; use names such as title,year"):
        shaped_by(fields)
