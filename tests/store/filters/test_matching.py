"""Rows that match a filter: live, waiting and deleted ones, counted, kept by filter, and their facets."""

from __future__ import annotations

from typing import Any

import pytest
from support.guarded import guarded
from support.store.matching import matching_rows

from dsearch.store import Store, filters
from dsearch.store.filters import RowMatches, compared_fields, meant_among, names_of, parse_filter
from dsearch.types import Document

checked = guarded(RowMatches, "_rows_of")


YEARS: dict[str, Any] = {
    "a": 1,
    "b": 1.0,
    "c": True,
    "d": "1",
    "e": [1, 2, 2, {"x": 1}],
    "f": None,
    "g": {"x": 1},
}


@pytest.fixture
def filled(store: Store, embed: Any) -> Store:
    documents = [Document(id, id, metadata={"y": year}) for id, year in YEARS.items()]
    store.upsert(documents, embed(*YEARS))
    store.upsert([Document("waiting", "waiting", metadata={"y": 1})])
    store.upsert([Document("gone", "gone", metadata={"y": 1})], embed("gone"))
    store.delete(["gone"])
    return store


def ids(store: Store, rows: Any) -> str:
    present = dict(zip(store.rows_of([*YEARS, "waiting"]).values(), [*YEARS, "waiting"], strict=True))
    return " ".join(present.get(int(row), "gone") for row in rows)


def test_searches_find_rows_with_an_embedding_and_counts_have_the_others(filled: Store) -> None:
    equal = {"y": {"eq": 1}}
    assert ids(filled, matching_rows(filled, equal)) == "a b e"
    counts = filled.count(equal)
    assert (counts.documents, counts.pending, counts.tombstones) == (4, 1, 0)
    assert ids(filled, filled.rows_matching_ever(equal)) == "a b e waiting gone"
    nothing = filled.count({"y": {"eq": "none"}})
    assert (nothing.documents, nothing.pending) == (0, 0)


def test_filters_that_begin_alike_have_rows_of_their_own(filled: Store) -> None:
    nobody = [f"none{number}" for number in range(90)]
    found = [ids(filled, filled.rows_matching_ever({"y": {"in": [*nobody, one]}})) for one in (1, "1")]
    assert found == ["a b e waiting gone", "d"]


def test_matches_are_kept_and_only_later_rows_are_looked_at(filled: Store, embed: Any) -> None:
    equal = {"y": {"eq": 1}}
    before = filled.rows_matching_ever(equal)
    assert not before.flags.writeable
    filled.upsert([Document("new", "new", metadata={"y": 1})], embed("new"))
    after = filled.rows_matching_ever(equal)
    assert after[:-1].tolist() == before.tolist()
    assert filled.rows_matching_ever(equal, after=int(before[-1])).tolist() == after[-1:].tolist()
    # True is another value than 1, though equal in Python.
    assert ids(filled, filled.rows_matching_ever({"y": {"eq": True}})) == "c"


def test_an_empty_collection_has_no_matches_and_later_ones_are_found(store: Store, embed: Any) -> None:
    equal = {"y": {"eq": 1}}
    for _ in range(2):
        assert store.rows_matching_ever(equal).tolist() == []
    store.upsert([Document("a", "a", metadata={"y": 1})], embed("a"))
    for after, rows in ((0, [1]), (1, []), (1, [])):
        assert store.rows_matching_ever(equal, after=after).tolist() == rows


def test_a_reader_of_an_older_state_gets_no_row_of_a_newer_one(filled: Store, embed: Any) -> None:
    equal, matches = parse_filter({"y": {"eq": 1}}), filters.RowMatches()
    with filled._readers.reading() as older:
        before = filters.live_rows(older, equal)  # its state is that of now
        filled.upsert([Document("new", "new", metadata={"y": 1})], embed("new"))
        with filled._readers.reading() as newer:
            after = matches.rows(newer, equal).tolist()
        assert ids(filled, matches.rows(older, equal)) == "a b e waiting gone"
        assert filters.live_rows(older, equal) == before
        with filled._readers.reading() as newer:  # what is kept is still that of the newer state
            assert matches.rows(newer, equal).tolist() == after
    assert len(after) == 6


def test_only_the_last_filters_are_kept(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_RECENT", 2)
    for value in (1, 2, 1, 3):
        filled.rows_matching_ever({"y": {"eq": value}})
    assert len(filled._matches._rows_of) == 2
    assert ["'1'" in key or "(1,)" in key for key in filled._matches._rows_of] == [True, False]


def test_facets_count_documents_once_by_kind_and_value(filled: Store) -> None:
    """Equal numbers are one value, most documents first, ties by kind and value; objects have no facets."""
    found = [(value.value, value.documents) for value in filled.facets("y")]
    assert found == [(1, 4), (None, 1), (2, 1), ("1", 1), (True, 1)]
    assert [type(value) for value, _ in found] == [int, type(None), int, str, bool]
    assert [(value.value, value.documents) for value in filled.facets("y", limit=1)] == [(1, 4)]
    assert [(value.value, value.documents) for value in filled.facets("y", {"y": {"eq": 2}})] == [
        (1, 1),
        (2, 1),
    ]
    assert list(filled.facets("none")) == []


def test_names_of_fields_are_paths_and_near_ones_are_suggested() -> None:
    documents = [
        Document("a", "", metadata={"year": 1, "author": {"name": "x"}}),
        Document("b", "", metadata={"price": 1}),
    ]
    assert names_of(documents) == ["author", "author.name", "price", "year"]
    assert meant_among("yaer", documents) == " (did you mean year?)"
    assert meant_among("author.nmae", documents) == " (did you mean author.name?)"
    assert meant_among("year", documents) == meant_among("zzz", documents) == ""


def test_fields_that_a_filter_compares_are_those_whose_value_counts() -> None:
    tree = parse_filter(
        {"and": [{"a": {"eq": 1}}, {"or": [{"b": {"gt": 1}}, {"c.d": {"in": [1]}}]}, {"e": {"exists": True}}]}
    )
    assert [*compared_fields(tree)] == [("a",), ("b",), ("c", "d")]
    assert [*compared_fields(parse_filter({"not": {"a": {"eq": 1}}}))] == []


def test_a_text_with_a_zero_character_is_no_other_text(store: Store, embed: Any) -> None:
    """SQLite ends a text at one, so that it would stand for what is before."""
    store.upsert(
        [Document("a", "a", metadata={"y": "x"}), Document("b", "b", metadata={"y": "x\0z"})], embed("a", "b")
    )
    assert matching_rows(store, {"y": {"eq": "x\0z"}}).tolist() == []
    assert matching_rows(store, {"y": {"in": ["x\0z", "other"]}}).tolist() == []
    assert len(matching_rows(store, {"y": {"in": ["x\0z", "x"]}})) >= 1
