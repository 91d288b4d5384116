"""Types of a table's records, decided by its first rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dsearch.corpus import records
from dsearch.corpus.records import parse_types, typed, typed_rows


def cells_of(cells: list[str], **declared: Any) -> list[Any]:
    rows = ((number, {"c": cell}) for number, cell in enumerate(cells, start=1))
    return [row.get("c") for _, row in typed_rows(rows, declared, set())]


def test_whole_numbers_have_64_bits() -> None:
    edges = [2**63 - 1, -(2**63)]
    assert cells_of([str(edge) for edge in edges]) == edges
    for beyond in (2**63, -(2**63) - 1):
        assert cells_of([str(beyond)]) == [str(beyond)]
        assert typed(str(beyond), "number") == str(beyond)


def test_a_number_has_at_most_32_characters() -> None:
    longest = "0." + "3" * 30
    assert cells_of([longest]) == [float(longest)]
    assert cells_of([f"{longest}3"]) == [f"{longest}3"]


@pytest.mark.parametrize("cell", ["007", "1,5", "+3", ".5", "5.", "1e", "0x1", "٣", "1 2", "nan", "1e999"])
def test_what_json_does_not_write_as_a_number_is_text(cell: str) -> None:
    assert cells_of([cell]) == [cell]


@pytest.mark.parametrize("cell", ["0", "-0", "-1.5", "2e3", "2E+3", "1.5e-2", " 7 "])
def test_what_json_writes_as_a_number_is_one(cell: str) -> None:
    [number] = cells_of([cell])
    assert number == float(cell)
    assert isinstance(number, int) == cell.strip().lstrip("-").isdigit()


def test_a_column_is_decided_by_its_first_thousand_rows() -> None:
    assert cells_of(["1"] * 1000 + ["x"]) == [1] * 1000 + ["x"]
    assert cells_of(["1"] * 999 + ["x"]) == ["1"] * 999 + ["x"]
    assert cells_of(["true"] * 1000 + ["maybe", " FALSE "]) == [True] * 1000 + ["maybe", False]


def test_long_rows_decide_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more is held in memory than a number of characters, whatever the number of rows."""
    monkeypatch.setattr(records, "_DECIDING_CHARACTERS", 10)
    taken = 0

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        nonlocal taken
        for number in range(20):
            taken += 1
            yield number, {"a": "12", "b": "34"}

    first = next(typed_rows(rows(), {}, set()))
    assert taken == 3
    assert first == (0, {"a": 12, "b": 34})


def test_empty_cells_of_numbers_are_absent_and_of_texts_empty() -> None:
    assert cells_of(["1", " ", ""]) == [1, None, None]
    assert cells_of(["x", " ", ""]) == ["x", " ", ""]
    assert cells_of(["", " "]) == ["", " "]


def test_a_declared_type_holds_whatever_the_cells_say() -> None:
    assert cells_of(["1", "2"], c="text") == ["1", "2"]
    assert cells_of(["x", "2"], c="number") == ["x", 2]
    assert cells_of(["1", "true"], c="boolean") == ["1", True]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("7", "7"),
        (" ", " "),
        (7, "7"),
        (-0.5, "-0.5"),
        (True, True),
        (None, None),
        ([1], [1]),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_a_text_is_made_of_numbers_alone(value: Any, text: Any) -> None:
    assert typed(value, "text") == text
    assert type(typed(value, "text")) is type(text)


def test_columns_that_stay_text_are_left_alone() -> None:
    rows = [(1, {"id": "7", "n": "7"})]
    assert list(typed_rows(rows, {"id": "number"}, {"id", None})) == [(1, {"id": "7", "n": 7})]
    assert list(typed_rows([], {}, set())) == []


def test_a_declaration_is_a_column_and_a_type() -> None:
    assert parse_types(["a=b=number", "c=text", "d=boolean"]) == {
        "a=b": "number",
        "c": "text",
        "d": "boolean",
    }
