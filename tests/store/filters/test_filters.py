"""Filters against a plain evaluator of the same table of conditions, and what is refused with which words."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.store.matching import matching_rows

from dsearch.errors import InvalidRequest
from dsearch.results import FacetValue
from dsearch.store import DocumentCounts, Store, filters, parse_filter
from dsearch.types import Document

# ---- an evaluator written from the table in filters.py, over JSON as given

ABSENT = object()


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__


def equal(one: Any, other: Any) -> bool:
    return kind(one) == kind(other) and one == other


def in_order(operator: str, value: Any, operand: Any) -> bool:
    if kind(value) != kind(operand) or kind(value) not in ("number", "str"):
        return False
    return {
        "gt": value > operand,
        "gte": value >= operand,
        "lt": value < operand,
        "lte": value <= operand,
    }[operator]


def look_up(metadata: Any, field: str) -> Any:
    for key in field.split("."):
        if not isinstance(metadata, dict) or key not in metadata:
            return ABSENT
        metadata = metadata[key]
    return metadata


def condition_holds(value: Any, operator: str, operand: Any) -> bool:
    if operator == "exists":
        return (value is not ABSENT) == operand
    if operator in ("ne", "nin"):
        return not condition_holds(value, {"ne": "eq", "nin": "in"}[operator], operand)
    candidates = value if isinstance(value, list) else [value]
    candidates = [c for c in candidates if c is not ABSENT and not isinstance(c, list | dict)]
    if operator == "eq":
        return any(equal(candidate, operand) for candidate in candidates)
    if operator == "in":
        return any(equal(candidate, one) for candidate in candidates for one in operand)
    return any(in_order(operator, candidate, operand) for candidate in candidates)


def holds(filter: dict[str, Any], metadata: dict[str, Any]) -> bool:
    for key, entry in filter.items():
        if key == "and":
            met = all(holds(part, metadata) for part in entry)
        elif key == "or":
            met = any(holds(part, metadata) for part in entry)
        elif key == "not":
            met = not holds(entry, metadata)
        else:
            value = look_up(metadata, key)
            met = all(condition_holds(value, operator, operand) for operator, operand in entry.items())
        if not met:
            return False
    return True


# ---- few values, so that they meet

NUMBERS = st.sampled_from(
    [0, -0.0, 1, 1.0, -1, 0.1, 0.30000000000000004, 2**53 + 1, float(2**53), 2**63 - 1, 1e300]
)
TEXTS = st.sampled_from(["", "0", "1", "true", "null", "é", "z", "𝔸", "\uffff", 'a"b', "a\\b", "a\nb", "A"])
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "é k"]), inner, max_size=2)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(["a", "b", "a.x", "a.é k", "b.x.x", "no$[0]"])
METADATA = st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2)
OPERANDS = {
    **dict.fromkeys(["eq", "ne"], SCALARS),
    **dict.fromkeys(["in", "nin"], st.lists(SCALARS, max_size=4)),
    **dict.fromkeys(["gt", "gte", "lt", "lte"], NUMBERS | TEXTS),
    "exists": st.booleans(),
}
CONDITION = st.one_of([st.tuples(st.just(name), operand) for name, operand in OPERANDS.items()])
CONDITIONS = st.one_of(CONDITION.map(lambda c: dict([c])), st.tuples(CONDITION, CONDITION).map(dict))
ONE_FIELD = st.tuples(FIELDS, CONDITIONS)
LEAVES = st.one_of(ONE_FIELD.map(lambda f: dict([f])), st.tuples(ONE_FIELD, ONE_FIELD).map(dict))


def branches(inner: st.SearchStrategy) -> st.SearchStrategy:
    parts = st.one_of(inner.map(lambda part: [part]), st.tuples(inner, inner).map(list))
    return st.one_of(
        parts.map(lambda p: {"and": p}),
        parts.map(lambda p: {"or": p}),
        inner.map(lambda p: {"not": p}),
        st.tuples(inner, parts).map(lambda p: {**p[0], "or": p[1]}),
    )


FILTERS = st.one_of(LEAVES, branches(LEAVES), branches(branches(LEAVES)))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("home") / "papers"
    with Store.create(folder, name="papers", encoder={}, dimension=1) as store:
        yield store


@given(st.lists(METADATA, min_size=1, max_size=8), st.lists(FILTERS, min_size=1, max_size=8))
def test_filters_find_what_a_plain_evaluator_finds(shared, metadata, filters):
    shared.delete_matching({"here": {"exists": False}})
    documents = [Document(f"d{i}", "x", metadata=fields) for i, fields in enumerate(metadata)]
    rows = shared.upsert(documents, np.ones((len(documents), 1))).rows
    for filter in filters:
        met = [holds(filter, fields) for fields in metadata]
        assert matching_rows(shared, filter).tolist() == [row for row, m in zip(rows, met, strict=True) if m]
        assert [document.id for document in shared.list(filter=filter)] == [
            document.id for document, m in zip(documents, met, strict=True) if m
        ]
        assert shared.count(filter).documents == sum(met)


@given(st.lists(METADATA, min_size=1, max_size=8), FIELDS, FILTERS)
def test_facets_count_what_eq_finds(shared, metadata, field, filter):
    shared.delete_matching({"here": {"exists": False}})
    shared.upsert([Document(f"d{i}", "x", metadata=fields) for i, fields in enumerate(metadata)])
    for condition in (None, filter):
        found = shared.facets(field, condition)
        for facet in found:
            both = {field: {"eq": facet.value}}
            both = both if condition is None else {"and": [condition, both]}
            assert facet.documents == shared.count(both).documents > 0
        assert len({(kind(facet.value), facet.value) for facet in found}) == len(found)
        total: set[Any] = set()
        for fields in metadata:
            if condition is None or holds(condition, fields):
                value = look_up(fields, field)
                listed = value if isinstance(value, list) else [value]
                total |= {(kind(v), v) for v in listed if v is not ABSENT and not isinstance(v, list | dict)}
        assert len(found) == min(10, len(total))
        assert [facet.documents for facet in found] == sorted((f.documents for f in found), reverse=True)


# ---- examples that a reader can follow


@pytest.fixture
def library(store, embed):
    metadata: list[dict[str, Any]] = [
        {"year": 1999, "tags": ["x", "y"], "author": {"name": "Ada"}},
        {"year": "1999", "tags": "x"},
        {"year": 2005.5, "tags": ["y", "y"], "draft": True},
        {"year": None, "tags": [], "dc.title": "T", "or": 1},
        {"draft": 1},
    ]
    documents = [Document(f"d{i}", f"text {i}", metadata=fields) for i, fields in enumerate(metadata)]
    store.upsert(documents, embed("text 0", "text 1", "text 2", "text 3"), positions=[0, 1, 2, 3])
    return store


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ({"year": {"eq": 1999}}, "0"),
        ({"year": {"eq": 1999.0}}, "0"),
        ({"year": {"eq": "1999"}}, "1"),
        ({"year": {"ne": 1999}}, "1234"),
        ({"year": {"gte": 1999, "lt": 2005.5}}, "0"),
        ({"year": {"gt": ""}}, "1"),
        ({"year": {"exists": True}}, "0123"),
        ({"year": {"eq": None}}, "3"),
        ({"draft": {"eq": True}}, "2"),
        ({"draft": {"eq": 1}}, "4"),
        ({"tags": {"eq": "x"}}, "01"),
        ({"tags": {"in": ["x", "y"]}}, "012"),
        ({"tags": {"in": []}}, ""),
        ({"tags": {"nin": ["x"]}}, "234"),
        ({"author.name": {"eq": "Ada"}}, "0"),
        ({"author": {"eq": "Ada"}}, ""),
        ({r"dc\.title": {"eq": "T"}}, "3"),
        ({r"\or": {"eq": 1}}, "3"),
        ({"year": {"exists": True}, "or": [{"tags": {"eq": "y"}}, {"draft": {"exists": True}}]}, "02"),
        ({"not": {"tags": {"exists": True}}}, "4"),
    ],
)
def test_examples(library, filter, ids):
    assert [document.id for document in library.list(filter=filter)] == [f"d{n}" for n in ids]
    assert [document.id for document in library.export(filter)] == [f"d{n}" for n in ids]
    assert matching_rows(library, parse_filter(filter)).tolist() == [int(n) + 1 for n in ids if n != "4"]
    assert library.count(filter) == DocumentCounts(len(ids), pending="4" in ids, tombstones=0)


def test_a_filter_pages_like_a_list(library):
    filter = {"tags": {"exists": True}}
    assert [d.id for d in library.list(limit=2, filter=filter)] == ["d0", "d1"]
    assert [d.id for d in library.list(after="d1", limit=9, filter=filter)] == ["d2", "d3"]


def test_facets_of_a_field(library):
    assert library.facets("tags") == [FacetValue("x", 2), FacetValue("y", 2)]
    assert library.facets("tags", limit=1) == [FacetValue("x", 2)]
    assert library.facets("tags", {"draft": {"eq": True}}) == [FacetValue("y", 1)]
    assert library.facets("draft") == [FacetValue(1, 1), FacetValue(True, 1)]
    assert library.facets("author.name") == [FacetValue("Ada", 1)]
    assert library.facets("author") == []
    with pytest.raises(InvalidRequest, match="limit=0; use 1 to 1000"):
        library.facets("tags", limit=0)


def test_deleting_by_filter_takes_pending_ones_too_and_is_one_operation(library):
    receipt = library.delete_matching({"draft": {"exists": True}})
    assert (receipt.sequence, receipt.deleted, receipt.rows) == (2, 2, (3, 5))
    assert library.count() == DocumentCounts(3, 0, 2)
    assert library.delete_matching({"draft": {"exists": True}}).sequence == 2
    assert matching_rows(library, {"draft": {"exists": True}}).tolist() == []
    assert library.verify().ok


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        (None, 'filter: None; use an object such as {"year": {"gte": 1990}}'),
        ([{"a": {"eq": 1}}], "filter: [{'a': {'eq': 1}}]; use an object"),
        ({}, "filter: an empty object; leave the filter out to have every document"),
        ({"a": [3]}, "filter.a: [3]; use a value, or an object of conditions (eq, ne, gt, gte, lt, lte, in"),
        ({"a": {}}, "filter.a: an empty object; use a value, or an object of conditions"),
        ({"a": {"like": "x"}}, "filter.a: the condition 'like'; use one of eq, ne, gt"),
        ({"a": {"b": {"eq": 1}}}, "filter.a: the condition 'b'; use one of eq, ne, gt"),
        ({"and": {"a": {"eq": 1}}}, "filter.and: {'a': {'eq': 1}}; use a list of one or more filters"),
        ({"or": []}, "filter.or: []; use a list of one or more filters"),
        ({"or": [{"c": {"eq": 1}}, {"not": {"b": {"gt": True}}}]}, "or[1].not.b.gt: True; only numbers"),
        ({"a": {"lt": None}}, "filter.a.lt: None; only numbers and strings"),
        ({"a": {"in": "xy"}}, "filter.a.in: 'xy'; use a list of strings, numbers, booleans or nulls"),
        ({"a": {"in": [1, [2]]}}, "filter.a.in[1]: [2]; use a string, a finite number"),
        ({"a": {"eq": float("nan")}}, "filter.a.eq: nan; use a string, a finite number"),
        ({"a": {"eq": 2**63}}, "9223372036854775808; use a string, a finite number (integers of 64 bits)"),
        ({"a": {"eq": 10**5000}}, "filter.a.eq: an integer of over 64 bits; use"),
        ({"a": {"eq": "x" * 4097}}, "filter.a.eq: 4097 characters; use at most 4096"),
        ({"a": {"eq": "\ud800"}}, "filter.a.eq: a lone surrogate"),
        ({"a": {"exists": 1}}, "filter.a.exists: 1; use true or false"),
        ({"a..b": {"eq": 1}}, "the field 'a..b' with an empty key; join keys by single dots: a.b"),
        ({"": {"eq": 1}}, "the field '' with an empty key"),
        ({'a"b': {"eq": 1}}, "quotes, backslashes, control characters and lone surrogates cannot"),
        ({"a\\\\b": {"eq": 1}}, "quotes, backslashes, control characters"),
        ({"a\0": {"eq": 1}}, "quotes, backslashes, control characters"),
        ({"a\ud800": {"eq": 1}}, "quotes, backslashes, control characters"),
        ({"a" * 1025: {"eq": 1}}, "a field of 1025 characters; use at most 1024"),
        ({".".join("a" * 33): {"eq": 1}}, "a field of 33 keys; metadata has at most 32 levels"),
        ({1: {"eq": 1}}, "filter: the key 1; JSON keys are strings"),
        ({"a": {"in": list(range(10_001))}}, "a.in[10000]: more operands; use at most 10000 in a filter"),
        ({"and": [{"a": {"eq": 1}}] * 257}, "and[256].a: more conditions; use at most 256 in a filter"),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_where_and_what_is_allowed(store, filter, message):
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        matching_rows(store, filter)


def test_nesting_is_bounded_and_the_bounds_themselves_are_allowed(library):
    filter: dict[str, Any] = {"year": {"eq": 1999}}
    for _ in range(15):
        filter = {"not": filter}
    assert library.count(filter).documents == 4
    with pytest.raises(InvalidRequest, match=r"filter\.not.*: more nesting; use at most 16 levels"):
        library.count({"not": filter})
    most = {"or": [{"year": {"in": [1999, i, f"{i}"]}} for i in range(256)]}
    assert library.count(most).documents == 1
    assert library.count({"year": {"in": [*range(9_999), "x"]}}).documents == 1


def test_what_a_filter_matches_is_remembered_and_only_new_rows_are_looked_at(library, monkeypatch):
    library.upsert([Document("t", "t", metadata={"draft": True})], np.ones((1, 8)))
    ask = {"draft": {"eq": True}}
    rows = library.rows_matching_ever(ask)
    assert set(matching_rows(library, ask)) <= set(rows.tolist())
    assert library.rows_of(["t"])["t"] in rows
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 7
    queries: list[str] = []
    find = filters._rows
    monkeypatch.setattr(filters, "_rows", lambda c, query, p: queries.append(query) or find(c, query, p))
    assert library.rows_matching_ever(ask).tolist() == rows.tolist()
    assert queries == []
    last = library.rows_of(["t"])["t"]
    library.upsert([Document("u", "u", metadata={"draft": True}), Document("v", "v", metadata={"draft": 1})])
    assert library.rows_matching_ever(ask).tolist() == [*rows, library.rows_of(["u"])["u"]]
    assert [f"row > {last} " in query for query in queries] == [True]
    assert library.rows_matching_ever({"draft": {"eq": 1}}).tolist()[-1] == library.rows_of(["v"])["v"]
    for n in range(100):
        library.rows_matching_ever({"n": {"eq": n}})
    assert len(library._matches._rows_of) == 8


def test_rows_that_went_still_match_and_a_purge_takes_nothing_away(library):
    ask = {"n": {"gte": 0}}
    library.upsert([Document(id, id, metadata={"n": n}) for n, id in enumerate("abc")], np.ones((3, 8)))
    rows = library.rows_matching_ever(ask)
    library.upsert([Document("a", "a", metadata={"n": -1}), Document("d", "d", metadata={"n": 4})])
    library.delete(["b"])
    later = library.rows_matching_ever(ask)
    assert later.tolist() == [*rows, library.rows_of(["d"])["d"]]
    library.set_embeddings(library.pending().rows, np.ones((len(library.pending().rows), 8)))
    now = library.rows_of(["c", "d"])
    assert matching_rows(library, ask).tolist() == sorted(now.values())
    library.purge()
    assert matching_rows(library, ask).tolist() == sorted(now.values())
    assert set(now.values()) <= set(library.rows_matching_ever(ask).tolist())


def test_operands_never_become_sql(library):
    hostile = "') OR 1=1; DROP TABLE document; --"
    for filter in ({"year": {"eq": hostile}}, {"year": {"in": [hostile]}}, {hostile: {"eq": 1}}):
        assert library.count(filter).documents == 0
    assert library.count().documents == 5
