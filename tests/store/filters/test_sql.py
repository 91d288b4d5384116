"""Conditions as SQL: which values of a document each one meets."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from dsearch.store.filters import compile_filter, json_path, parse_filter

VALUES: list[Any] = [1, 1.0, 2, "1", "a", "b", True, False, None, [], [1, "a"], [[1]], {"x": 1}, -0.5]


def meeting(condition: dict[str, Any]) -> list[Any]:
    """The values of a field that meet a condition; the document without it as "absent"."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE document (number INTEGER, metadata TEXT)")
    rows = [(n, json.dumps({"f": value})) for n, value in enumerate(VALUES)]
    connection.executemany("INSERT INTO document VALUES (?, ?)", [*rows, (len(VALUES), "{}")])
    where, parameters = compile_filter(parse_filter({"f": condition}))
    found = connection.execute(f"SELECT number FROM document WHERE {where} ORDER BY number", parameters)
    return [[*VALUES, "absent"][number] for (number,) in found]


CASES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"eq": 1}, [1, 1.0, [1, "a"]]),
    ({"eq": "a"}, ["a", [1, "a"]]),
    ({"eq": "1"}, ["1"]),
    ({"eq": True}, [True]),
    ({"eq": False}, [False]),
    ({"eq": None}, [None]),
    ({"in": [1, "b", None]}, [1, 1.0, "b", None, [1, "a"]]),
    ({"in": [True, False]}, [True, False]),
    ({"in": []}, []),
    ({"gt": 1}, [2]),
    ({"gte": 1}, [1, 1.0, 2, [1, "a"]]),
    ({"lt": 1}, [-0.5]),
    ({"lte": 1}, [1, 1.0, [1, "a"], -0.5]),
    ({"gt": "a"}, ["b"]),
    ({"gte": "a"}, ["a", "b", [1, "a"]]),
    ({"lt": "a"}, ["1"]),
    ({"lte": "a"}, ["1", "a", [1, "a"]]),
    ({"gte": 1, "lt": 2}, [1, 1.0, [1, "a"]]),
    ({"exists": True}, [*VALUES]),
    ({"exists": False}, ["absent"]),
    ({"eq": "a\0"}, []),
]


@pytest.mark.parametrize(("condition", "expected"), CASES)
def test_a_condition_is_met_by_values_of_its_type(condition: dict[str, Any], expected: list[Any]) -> None:
    assert list(map(repr, meeting(condition))) == list(map(repr, expected))


@pytest.mark.parametrize(("one", "other"), [("eq", "ne"), ("in", "nin")])
@pytest.mark.parametrize("operand", [1, "a", None, True])
def test_a_negation_is_met_by_all_others(one: str, other: str, operand: Any) -> None:
    given = operand if one == "eq" else [operand]
    both = [*meeting({one: given}), *meeting({other: given})]
    assert sorted(map(repr, both)) == sorted(map(repr, [*VALUES, "absent"]))


def test_paths_are_quoted_and_parameters_numbered_from_one() -> None:
    assert json_path(("a b", "c.d")) == '$."a b"."c.d"'
    where, parameters = compile_filter(
        parse_filter({"and": [{"a": {"exists": True}}, {"b": {"exists": False}}]})
    )
    assert where == "((json_type(metadata, ?1) IS NOT NULL) AND (NOT (json_type(metadata, ?2) IS NOT NULL)))"
    assert parameters == ['$."a"', '$."b"']
    either, _ = compile_filter(parse_filter({"or": [{"a": {"exists": True}}, {"b": {"exists": True}}]}))
    assert " OR " in either
