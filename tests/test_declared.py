"""Declared options: what is allowed, how it is said, and which keywords are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dsearch.declared import (
    Option,
    allowed_values,
    check_keywords,
    has_type,
    in_python,
    option,
    options_of,
    suggestion,
    type_of,
)
from dsearch.errors import InvalidRequest


@dataclass(frozen=True)
class Declaration:
    count: int = option(3, "how many", low=1, high=5)
    share: float = option(0.5, "a share", low=0, high=1, inside=True)
    ratio: float | None = option(None, "a ratio", low=0, high=2)
    name: str | None = option(None, "a name", longest=4)
    way: str = option("soft", "a way", choices=("soft", "hard"))
    only: str = option("one", "one way", choices=("one",))
    on: bool = option(False, "a switch")
    other: str | None = option(None, "said in words", allowed="a name such as x", longest=9)
    plain: object = None


OPTIONS = options_of(Declaration)
FIELDS = {name: field for name, (field, _) in OPTIONS.items()}


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("count", [1, 3, 5], [0, 6]),
        ("share", [1e-9, 0.5, 1 - 1e-9], [0, 1, -0.1, float("nan")]),
        ("ratio", [0, 2, 1.5], [-1e-9, 2.1, float("nan")]),
        ("name", ["a", "abcd"], ["", "abcde"]),
        ("way", ["soft", "hard"], ["Soft", "", None]),
        ("on", [True, False], []),
    ],
)
def test_values_at_the_bounds(name: str, allowed: list[Any], refused: list[Any]) -> None:
    about = OPTIONS[name][1]
    assert [about.allows(value) for value in allowed] == [True] * len(allowed)
    assert [about.allows(value) for value in refused] == [False] * len(refused)


def test_without_bounds_every_number_and_every_text_but_none_is_allowed() -> None:
    about = Option("help")
    assert about.allows(10**9)
    assert about.allows("x" * 1000)
    assert not about.allows("")
    assert Option("help", low=2).allows(0)  # one bound alone bounds nothing
    assert Option("help", low=2, high=3).allows(True)


def test_what_is_allowed_in_words() -> None:
    said = {name: allowed_values(field, about) for name, (field, about) in OPTIONS.items()}
    assert said == {
        "count": "an integer from 1 to 5",
        "share": "a number between 0 and 1",
        "ratio": "a number from 0 to 2",
        "name": "a text of 1 to 4 characters",
        "way": "one of soft, hard",
        "only": "one",
        "on": "true or false",
        "other": "a name such as x",
    }


def test_types_by_their_names() -> None:
    assert {name: type_of(field) for name, field in FIELDS.items()} == {
        "count": (int, False),
        "share": (float, False),
        "ratio": (float, True),
        "name": (str, True),
        "way": (str, False),
        "only": (str, False),
        "on": (bool, False),
        "other": (str, True),
    }


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("count", [1, -7], [1.0, True, None, "1"]),
        ("share", [1, 0.5], [True, None, "1"]),
        ("ratio", [1, 0.5, None], [True, "1"]),
        ("name", ["a", None], [1, True]),
        ("on", [True, False], [1, None, "true"]),
    ],
)
def test_a_boolean_is_no_number_and_none_is_for_what_is_optional(
    name: str, right: list[Any], wrong: list[Any]
) -> None:
    assert [has_type(value, FIELDS[name]) for value in right] == [True] * len(right)
    assert [has_type(value, FIELDS[name]) for value in wrong] == [False] * len(wrong)


def test_keywords_are_checked_by_name_and_type() -> None:
    check_keywords(
        Declaration,
        {"count": np.int64(3), "share": np.float32(0.5), "plain": object(), "extra": 1},
        ["extra"],
    )
    check_keywords(Declaration, {"count": None, "way": len})  # a way of one's own
    with pytest.raises(
        InvalidRequest, match=r"unknown option 'coutn' \(did you mean count\?\); use count, share, .*plain$"
    ):
        check_keywords(Declaration, {"coutn": 1})
    for name, value in {"count": 2.5, "share": "x", "on": 1, "name": len}.items():
        with pytest.raises(InvalidRequest, match=rf"{name}=.*; use "):
            check_keywords(Declaration, {name: value})


@pytest.mark.parametrize(
    ("name", "value", "use"),
    [
        ("count", 0, "an integer from 1 to 5"),
        ("count", np.int64(6), "an integer from 1 to 5"),
        ("share", 1.0, "a number between 0 and 1"),
        ("ratio", float("nan"), "a number from 0 to 2"),
        ("ratio", np.float32(2.5), "a number from 0 to 2"),
    ],
)
def test_keywords_out_of_bounds_are_refused_as_a_schema_refuses_them(name: str, value: Any, use: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"{name}=.*; use {use}$"):
        check_keywords(Declaration, {name: value})


def test_suggestions() -> None:
    assert suggestion("hybird", ["dense", "hybrid"]) == " (did you mean hybrid?)"
    assert suggestion("xyz", ["dense", "hybrid"]) == ""
    assert suggestion("h" * 500, ["hybrid"]) == ""
    assert (in_python("limit"), in_python("limit", 3), in_python("mode", "x")) == (
        "limit",
        "limit=3",
        "mode='x'",
    )
