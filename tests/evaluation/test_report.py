"""The text of a report: a column for each system, differences where there is one to compare with."""

from __future__ import annotations

import pytest

from dsearch.errors import InvalidRequest
from dsearch.evaluation.report import build_report

MEASURE = "nDCG@10"
VALUES = {MEASURE: {"q1": 0.5, "q2": 1.0}}


def test_one_system_has_no_differences() -> None:
    lines = build_report({"hybrid": VALUES}).to_text().splitlines()
    assert lines == [
        "queries  measure  hybrid",
        "-" * 24,
        "all (2)  nDCG@10  0.7500",
    ]


def test_labels_stand_to_the_left_and_numbers_to_the_right() -> None:
    lines = build_report({"a system": VALUES, "hybrid": VALUES}, samples=10).to_text().splitlines()
    assert lines[0].startswith("queries  measure  a system ")
    assert lines[2].startswith("all (2)  nDCG@10    0.7500 ")
    assert lines[0].endswith(" hybrid")
    assert lines[3].endswith("+0.0000 [+0.0000, +0.0000]")
    assert lines[4].startswith("Below each mean: its difference to a system")


@pytest.mark.parametrize("systems", [("dense",), ("dense", "keyword"), ("hybrid",)])
def test_legs_are_compared_with_a_search_that_joins_them(systems: tuple[str, ...]) -> None:
    assert build_report(dict.fromkeys(systems, VALUES), samples=10).better_leg is None


def test_a_cell_is_found_by_all_its_names() -> None:
    report = build_report({"hybrid": VALUES})
    assert report.cell("hybrid", MEASURE).mean == 0.75
    for system, measure, group in (
        ("x", MEASURE, "all"),
        ("hybrid", "AP", "all"),
        ("hybrid", MEASURE, "seen"),
    ):
        with pytest.raises(InvalidRequest, match=r"no cell for .* there are systems \['hybrid'\]"):
            report.cell(system, measure, group)


def test_a_group_is_the_same_in_whatever_order_it_is_named() -> None:
    ids = [f"q{number}" for number in range(12)]
    systems = {
        "a": {MEASURE: {query: 1 / (at + 1) for at, query in enumerate(ids)}},
        "b": {MEASURE: {query: at / 12 for at, query in enumerate(ids)}},
    }
    groups = {"seen": ids[:7], "turned": [*ids[6::-1], "of no value"]}
    report = build_report(systems, groups=groups, samples=50)
    assert report.cell("b", MEASURE, "seen") == report.cell("b", MEASURE, "turned")
    assert [line.queries for line in report.lines] == [12, 7, 7]
