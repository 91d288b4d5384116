"""The field that was meant, where no document has the one that was named."""

from __future__ import annotations

from typing import Any

import pytest

from dsearch.errors import InvalidRequest
from dsearch.store import Store, filters, parse_filter
from dsearch.store.filters import compared_fields, meant_among, names_of
from dsearch.store.reader import refuse_misspelt
from dsearch.types import Document

METADATA: list[dict[str, Any]] = [
    {"price": 1, "at": {"year": 2000, "month": {"name": "May"}}},
    {"price": 2, "tags": [{"deep": 1}], "dc.title": "x"},
    {},
]
DOCUMENTS = [Document(f"d{n}", "text", "", metadata) for n, metadata in enumerate(METADATA)]


def test_names_are_paths_of_objects_and_not_of_lists() -> None:
    expected = ["at", "at.month", "at.month.name", "at.year", "dc.title", "price", "tags"]
    assert names_of(DOCUMENTS) == expected
    assert names_of([]) == []


COMPARED: list[tuple[dict[str, Any], list[tuple[str, ...]]]] = [
    ({"a": {"eq": 1}}, [("a",)]),
    ({"a.b": {"in": [1, 2]}}, [("a", "b")]),
    ({"a": {"gt": 1, "lt": 3}, "b": {"eq": 1}}, [("a",), ("a",), ("b",)]),
    ({"or": [{"a": {"eq": 1}}, {"and": [{"b": {"lte": 1}}, {"c": {"eq": None}}]}]}, [("a",), ("b",), ("c",)]),
    ({"a": {"ne": 1}}, []),
    ({"a": {"nin": [1]}}, []),
    ({"not": {"a": {"eq": 1}}}, []),
    ({"a": {"exists": True}}, []),
    ({"a": {"exists": False}}, []),
]


@pytest.mark.parametrize(("condition", "fields"), COMPARED)
def test_fields_that_are_compared(condition: dict[str, Any], fields: list[tuple[str, ...]]) -> None:
    assert list(compared_fields(parse_filter(condition))) == fields


def test_a_near_name_is_suggested_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meant_among("prise", DOCUMENTS) == " (did you mean price?)"
    assert meant_among("at.yeer", DOCUMENTS) == " (did you mean at.year?)"
    assert meant_among("price", DOCUMENTS) == ""
    assert meant_among("colour", DOCUMENTS) == ""
    monkeypatch.setattr(filters, "SAMPLE", 1)
    assert meant_among("tagz", DOCUMENTS) == ""  # only the first are looked at


def test_a_name_is_looked_for_in_the_first_documents_of_a_collection(store: Store) -> None:
    last = filters.SAMPLE - 1
    store.upsert(
        [Document(f"a{n:04}", "text", "", {"price": n} if n == last else {}) for n in range(last + 1)]
    )
    with pytest.raises(InvalidRequest, match="did you mean price"):
        refuse_misspelt(store, [("prise",)], "filter")
    store.upsert([Document("a", "text")])  # the one that has it is behind them now
    refuse_misspelt(store, [("prise",)], "filter")


@pytest.mark.parametrize("name", ["and", "or", "not", "plain", "dc.title", "two.dots.x"])
def test_a_field_of_any_name_is_looked_up_as_it_is(store: Store, name: str) -> None:
    """`refuse_misspelt` asks by a filter, where some names and all dots mean something else."""
    store.upsert([Document(f"a{n}", "text", "", {f"{name}s": n}) for n in range(3)])
    with pytest.raises(InvalidRequest, match="filter: no document has the field"):
        refuse_misspelt(store, [(name,)], "filter")
    store.upsert([Document("z", "text", "", {name: 1})])
    # Beyond the sample, so that only the filter finds it.
    store.upsert([Document(f"b{n:03}", "text", "", {f"{name}s": n}) for n in range(filters.SAMPLE)])
    refuse_misspelt(store, [(name,)], "filter")


def test_the_first_misspelt_field_is_named_with_its_place(store: Store) -> None:
    store.upsert(DOCUMENTS)
    refuse_misspelt(store, [("price",), ("colour",), ("at", "month", "name")], "group_by")
    message = r"^group_by: no document has the field 'at.yeer' \(did you mean at.year\?\); use a field of the"
    with pytest.raises(InvalidRequest, match=message):
        refuse_misspelt(store, [("price",), ("at", "yeer"), ("prise",)], "group_by")
    refuse_misspelt(store, [], "group_by")
