"""Search options are named once more where their defaults are: both must say the same."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

from dsearch.engine.options import SearchChoices, SearchOptions


def test_every_option_has_a_default_of_its_type() -> None:
    defaults = get_type_hints(SearchChoices)
    assert defaults == get_type_hints(SearchOptions)
    assert [field.name for field in fields(SearchChoices)] == [*SearchOptions.__annotations__]


def test_thresholds_and_filters_decide_the_ranking_that_a_cursor_goes_on_with() -> None:
    shown = {"limit", "offset", "cursor", "explain", "highlight", "coverage", "partial"}
    plain = SearchChoices()
    changed = {
        "mode": "dense",
        "model": "v1",
        "hops": 2,
        "hop_strength": 0.5,
        "operators": False,
        "score_threshold": 0.1,
        "weight_threshold": 0.1,
    }
    assert {field.name for field in fields(SearchChoices)} == shown | {"filter", *changed}
    for name, value in changed.items():
        assert SearchChoices(**{name: value}).ranking(None) != plain.ranking(None)
    assert plain.ranking("a filter") != plain.ranking(None)
