"""Filters as trees, and each bound of a filter at its edge."""

from __future__ import annotations

from typing import Any

import pytest

from dsearch.errors import InvalidRequest
from dsearch.search_options import MAX_FIELD_CHARACTERS
from dsearch.store.filters import (
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_OPERAND_CHARACTERS,
    MAX_OPERANDS,
    AllOf,
    AnyOf,
    Compares,
    Equals,
    Exists,
    Filter,
    Negation,
    filter_of,
    parse_field,
    parse_filter,
    value_at,
)
from dsearch.store.validate import MAX_METADATA_DEPTH
from dsearch.types import ROOT_KEYS

TREES: list[tuple[dict[str, Any], Filter]] = [
    ({"a": {"eq": 1}}, Equals(("a",), (1,))),
    ({"a": {"ne": 1}}, Negation(Equals(("a",), (1,)))),
    ({"a": {"in": [1, "x", None, True]}}, Equals(("a",), (1, "x", None, True))),
    ({"a": {"in": (1, 2)}}, Equals(("a",), (1, 2))),
    ({"a": {"in": []}}, Equals(("a",), ())),
    ({"a": {"nin": [1]}}, Negation(Equals(("a",), (1,)))),
    *(({"a.b": {order: 2}}, Compares(("a", "b"), order, 2)) for order in ("gt", "gte", "lt", "lte")),
    ({"a": {"gt": "x"}}, Compares(("a",), "gt", "x")),
    ({"a": {"exists": True}}, Exists(("a",))),
    ({"a": {"exists": False}}, Negation(Exists(("a",)))),
    ({"a": {"gt": 1, "lt": 3}}, AllOf((Compares(("a",), "gt", 1), Compares(("a",), "lt", 3)))),
    ({"a": {"eq": 1}, "b": {"eq": 2}}, AllOf((Equals(("a",), (1,)), Equals(("b",), (2,))))),
    ({"and": [{"a": {"eq": 1}}]}, AllOf((Equals(("a",), (1,)),))),
    ({"or": [{"a": {"eq": 1}}, {"b": {"eq": 2}}]}, AnyOf((Equals(("a",), (1,)), Equals(("b",), (2,))))),
    ({"not": {"a": {"eq": 1}}}, Negation(Equals(("a",), (1,)))),
]


@pytest.mark.parametrize(("condition", "tree"), TREES)
def test_conditions_become_a_tree_that_is_parsed_once(condition: dict[str, Any], tree: Filter) -> None:
    parsed = parse_filter(condition)
    assert parsed == tree
    assert parse_filter(parsed) is parsed


FIELDS = [
    ("a", ("a",)),
    ("a.b.c", ("a", "b", "c")),
    (r"dc\.title", ("dc.title",)),
    (r"\or", ("or",)),
    (r"a\b.c", ("ab", "c")),
    ("é k", ("é k",)),
]


@pytest.mark.parametrize(("field", "keys"), FIELDS)
def test_fields_are_split_at_dots_that_are_not_escaped(field: str, keys: tuple[str, ...]) -> None:
    assert parse_field(field) == keys


OPERANDS = [2**63 - 1, -(2**63), 1.5, -0.0, 1e308, "", "x" * MAX_OPERAND_CHARACTERS, "é", True, False, None]


@pytest.mark.parametrize("operand", OPERANDS)
def test_operands_up_to_their_bounds_are_taken(operand: Any) -> None:
    assert parse_filter({"a": {"eq": operand}}) == Equals(("a",), (operand,))
    assert parse_filter({"a": {"in": [operand]}}) == Equals(("a",), (operand,))


REFUSED: list[tuple[Any, str]] = [
    (2**63, "filter.a.eq: 9223372036854775808; use a string, a finite number"),
    (-(2**63) - 1, "integers of 64 bits"),
    (2**64, "filter.a.eq: an integer of over 64 bits; use a string, a finite"),
    (float("nan"), "filter.a.eq: nan; use"),
    (float("inf"), "filter.a.eq: inf; use"),
    ("x" * (MAX_OPERAND_CHARACTERS + 1), "filter.a.eq: 4097 characters; use at most 4096"),
    ("a\ud800", "filter.a.eq: a lone surrogate; use text"),
    ([1], "filter.a.eq: [1]; use a string"),
    ({"b": 1}, "filter.a.eq: {'b': 1}; use a string"),
]


@pytest.mark.parametrize(("operand", "message"), REFUSED)
def test_operands_beyond_are_refused(operand: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_filter({"a": {"eq": operand}})
    assert message in str(raised.value)


MALFORMED: list[tuple[Any, str]] = [
    ("a", "filter: 'a'; use an object such as"),
    ({}, "filter: an empty object; leave the filter out to have every document"),
    ({1: {"eq": 1}}, "filter: the key 1; JSON keys are strings"),
    (
        {"a": {}},
        "filter.a: an empty object; use a value, or an object of conditions (eq, ne, gt, gte, lt, lte, in",
    ),
    ({"a": [1]}, "filter.a: [1]; use a value, or an object of conditions"),
    ({"a": {"like": 1}}, "filter.a: the condition 'like'; use one of eq, ne, gt"),
    ({"a": {"in": "xy"}}, "filter.a.in: 'xy'; use a list of strings"),
    ({"a": {"nin": {"x": 1}}}, "filter.a.nin: {'x': 1}; use a list"),
    ({"a": {"in": [1, [2]]}}, "filter.a.in[1]: [2]; use a string"),
    ({"a": {"exists": 1}}, "filter.a.exists: 1; use true or false"),
    *(
        ({"a": {order: True}}, f"filter.a.{order}: True; only numbers")
        for order in ("gt", "gte", "lt", "lte")
    ),
    ({"a": {"gt": None}}, "filter.a.gt: None; only numbers and strings have an order"),
    ({"and": []}, "filter.and: []; use a list of one or more filters"),
    ({"or": {"a": {"eq": 1}}}, "filter.or: {'a': {'eq': 1}}; use a list of one or more filters"),
    ({"or": [{"a": {"eq": 1}}, 7]}, "filter.or[1]: 7; use an object such as"),
    ({"not": []}, "filter.not: []; use an object such as"),
    ({"a..b": {"eq": 1}}, "the field 'a..b' with an empty key; join keys by single dots: a.b"),
    ({"": {"eq": 1}}, "with an empty key"),
    ({"a.": {"eq": 1}}, "with an empty key"),
    *(({key: {"eq": 1}}, "cannot be asked for in keys") for key in ('a"b', r"a\\b", "a\nb", "a\ud800")),
    ({"x" * 100: {"eq": float("nan")}}, "filter." + "x" * 80 + ".eq: nan"),
    ({"a": {"eq": ["y" * 100]}}, "filter.a.eq: ['" + "y" * 78 + "…; use"),
]


@pytest.mark.parametrize(("condition", "message"), MALFORMED)
def test_what_is_malformed_is_named_with_its_place(condition: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_filter(condition)
    assert message in str(raised.value)


def nested(levels: int, key: str = "not") -> dict[str, Any]:
    inner: dict[str, Any] = {"a": {"eq": 1}}
    for _ in range(levels - 1):
        inner = {key: inner} if key == "not" else {key: [inner]}
    return inner


@pytest.mark.parametrize("key", ["not", "and", "or"])
def test_levels_are_bounded(key: str) -> None:
    parse_filter(nested(MAX_DEPTH, key))
    with pytest.raises(InvalidRequest, match="more nesting; use at most 16 levels"):
        parse_filter(nested(MAX_DEPTH + 1, key))


def test_conditions_and_operands_are_bounded_over_the_whole_filter() -> None:
    one = {"a": {"eq": 1}}
    parse_filter({"or": [one] * MAX_CONDITIONS})
    with pytest.raises(InvalidRequest, match=r"filter\.or\[256\]\.a: more conditions; use at most 256"):
        parse_filter({"or": [one] * (MAX_CONDITIONS + 1)})
    half = {"a": {"in": [1] * (MAX_OPERANDS // 2)}}
    parse_filter({"or": [half, half]})
    with pytest.raises(InvalidRequest, match="more operands; use at most 10000 in a filter"):
        parse_filter({"or": [half, half, one]})


def test_fields_are_bounded_in_characters_and_levels() -> None:
    assert parse_field("x" * MAX_FIELD_CHARACTERS) == ("x" * MAX_FIELD_CHARACTERS,)
    with pytest.raises(InvalidRequest, match=f"characters; use at most {MAX_FIELD_CHARACTERS}"):
        parse_field("x" * (MAX_FIELD_CHARACTERS + 1))
    assert len(parse_field(".".join("a" * MAX_METADATA_DEPTH))) == MAX_METADATA_DEPTH == 32
    with pytest.raises(InvalidRequest, match="a field of 33 keys; metadata has at most 32 levels"):
        parse_field(".".join("a" * 33))


def test_folders_that_documents_came_from_are_named_by_deletions_alone() -> None:
    field = ".".join(ROOT_KEYS)
    assert parse_field(field, roots=True) == ROOT_KEYS
    assert parse_filter({f"{field}.x": {"exists": True}}, roots=True) == Exists((*ROOT_KEYS, "x"))
    for asked in (field, f"{field}.x"):
        with pytest.raises(InvalidRequest, match="only deletions may name it; use path or folder"):
            parse_field(asked)
        with pytest.raises(InvalidRequest, match="only deletions may name it"):
            parse_filter({"not": {asked: {"exists": True}}})
    assert parse_field("x" + field)


def test_the_place_of_a_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^group_by: the field 'a\.\.b' with an empty key"):
        parse_field("a..b", "group_by")
    with pytest.raises(InvalidRequest, match=r"^field: "):
        parse_field("")


def test_values_are_looked_up_by_keys() -> None:
    metadata = {"a": {"b": 0, "c": [{"d": 1}]}, "n": None}
    assert value_at(metadata, ("a", "b")) == 0
    assert value_at(metadata, ("a",)) == metadata["a"]
    for keys in (("a", "x"), ("a", "b", "c"), ("a", "c", "d"), ("n",), ("n", "x")):
        assert value_at(metadata, keys) is None


@pytest.mark.parametrize("value", ["x", "", 0, 1.5, True, None])
def test_a_value_by_itself_is_equality(value: Any) -> None:
    assert parse_filter({"a.b": value}) == parse_filter({"a.b": {"eq": value}})


def test_an_empty_filter_of_a_search_is_none() -> None:
    assert filter_of({}) is filter_of(None) is None
    assert filter_of({"a": 1}) == parse_filter({"a": 1})
