"""Two models query by query."""

from __future__ import annotations

import json

import pytest

from dsearch.errors import InvalidRequest
from dsearch.training import compare_values


def test_wins_losses_and_significance() -> None:
    first = {f"q{i}": 0.5 for i in range(40)}
    second = {f"q{i}": 0.9 if i < 20 else 0.5 for i in range(40)} | {"q39": 0.1}
    found = compare_values(first, second, groups={"seen": ["q0", "q39"], "unseen": []})
    whole, seen = found.groups
    assert (whole.wins, whole.losses, whole.queries) == (20, 1, 40)
    assert whole.p_value < 0.01
    assert (seen.name, seen.queries) == ("seen", 2)
    assert seen.p_value == 1.0
    text = found.to_text("v0", "v3", "nDCG@10", {"q39": "the lost one"}, show=2)
    assert "nDCG@10, v3 against v0" in text
    assert "20 wins, 1 losses, 19 ties" in text
    assert "0.500 → 0.100  q39  the lost one" in text
    assert text.count("0.500 → 0.900  q") == 2
    assert json.loads(json.dumps(found.to_dict()))["groups"][0]["wins"] == 20


def test_the_largest_wins_and_losses_are_shown_largest_first() -> None:
    first = dict.fromkeys("abcdefgh", 0.5)
    changes = {"a": -0.3, "b": 0.1, "c": -0.1, "d": 0.4, "e": -0.4, "f": 0.2, "g": 0.0, "h": -0.2}
    second = {name: 0.5 + by for name, by in changes.items()}
    lines = compare_values(first, second).to_text("v0", "v3", "nDCG@10", {}, show=2).splitlines()
    at, below = lines.index("largest wins"), lines.index("largest losses")
    assert [line.split()[-1] for line in lines[at + 1 : below]] == ["d", "f"]
    assert [line.split()[-1] for line in lines[below + 1 : -1]] == ["e", "a"]
    whole = compare_values(first, second).groups[0]
    assert (whole.wins, whole.losses) == (3, 4)
    assert (whole.first, whole.second) == (0.5, pytest.approx(0.5 + sum(changes.values()) / 8))
    assert whole.difference.mean == pytest.approx(whole.second - whole.first)


def test_equal_changes_are_listed_by_their_ids() -> None:
    first = dict.fromkeys(["q3", "q1", "q4", "q2"], 0.25)
    second = {"q3": 0.5, "q1": 0.5, "q4": 0.0, "q2": 0.0}
    assert [row[0] for row in compare_values(first, second).queries] == ["q1", "q3", "q2", "q4"]


def test_the_difference_has_no_direction() -> None:
    a = {f"q{i}": i / 40 for i in range(40)}
    b = {f"q{i}": (i + (i % 3)) / 40 for i in range(40)}
    forth, back = compare_values(a, b).groups[0], compare_values(b, a).groups[0]
    assert forth.p_value == pytest.approx(back.p_value, abs=0.01)
    assert (forth.wins, forth.losses) == (back.losses, back.wins)
    assert compare_values(a, a).groups[0].p_value == 1.0


def test_what_cannot_be_compared() -> None:
    with pytest.raises(InvalidRequest, match="1 value and 1, not of the same queries"):
        compare_values({"a": 1.0}, {"b": 1.0})
    with pytest.raises(InvalidRequest, match="no judged query"):
        compare_values({}, {})
