"""Fields of the metadata as features that rise or fall."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dsearch.attention.retrieval.monotone import MOST_FIELDS, MonotoneField, number_of, parse_fields
from dsearch.errors import InvalidRequest


def test_a_feature_never_falls_and_stays_in_range() -> None:
    field = MonotoneField("year", 1).scaled([*range(1990, 2021), None, "no number"])
    values = field.of([1900, 1990, 2005, 2005.5, 2020, 3000])
    assert (np.diff(values) >= 0).all()
    assert (values[0], values[-1]) == (-0.5, 0.5)
    assert field.of([None, "no number", [3]]).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (3, 3.0),
        ("2.5", 2.5),
        ("1970-01-02", 1.0),
        ("1970-01-01T12:00:00+00:00", 0.5),
        ("1970-01-01T12:00:00Z", 0.5),
    ],
)
def test_numbers_and_dates_count(value: object, number: float) -> None:
    assert number_of(value) == number


def test_dates_are_ordered() -> None:
    field = MonotoneField("day", 0).scaled(["2020-01-01", "2021-06-01", "2024-02-29"])
    assert (np.diff(field.of(["2020-01-01", "2021-06-01", "2024-02-29"])) > 0).all()


def test_signs_are_read() -> None:
    names = [(field.name, field.sign) for field in parse_fields("+year, - price,a.b")]
    assert names == [("year", 1), ("price", -1), ("a.b", 0)]
    assert len(parse_fields(",".join(f"f{i}" for i in range(MOST_FIELDS)))) == MOST_FIELDS


@pytest.mark.parametrize(
    "text", ["", "year,", "+", "a,-a", ",".join(f"f{i}" for i in range(MOST_FIELDS + 1))]
)
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="monotone_fields"):
        parse_fields(text)


@pytest.mark.parametrize("values", [[], [None], [3, 3, 3], ["a", "b"]])
def test_what_orders_nothing_is_refused(values: list[object]) -> None:
    with pytest.raises(InvalidRequest, match="do not differ"):
        MonotoneField("year", 1).scaled(values)


def test_a_date_without_a_zone_is_in_universal_time_wherever_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert number_of("1970-01-02") == 1.0
        assert number_of("1970-01-01T12:00:00") == 0.5
        assert number_of("1970-01-01T12:00:00-12:00") == 1.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_feature_is_its_place_between_both_quantiles() -> None:
    field = MonotoneField("price", -1, low=10.0, high=30.0)
    assert field.of([10, 20, 30, 0, 99, None, float("nan")]).tolist() == [-0.5, 0.0, 0.5, -0.5, 0.5, 0.0, 0.0]
    scaled = MonotoneField("price", -1).scaled([*range(101), float("inf"), None])
    assert (scaled.name, scaled.sign, scaled.low, scaled.high) == ("price", -1, 5.0, 95.0)
    narrow = MonotoneField("price", 1).scaled([0.0] * 50 + [1.0])  # both quantiles are 0
    assert (narrow.low, narrow.high) == (0.0, 1.0)
