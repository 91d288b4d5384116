"""Options that decide a ranking are part of its cursor; others are not."""

from __future__ import annotations

from dataclasses import fields

from dsearch.search_options import SearchOptions


def test_thresholds_and_filters_decide_the_ranking_that_a_cursor_goes_on_with() -> None:
    shown = {"limit", "offset", "cursor", "fields", "explain", "highlight", "highlight_by"}
    shown |= {"coverage", "partial"}
    plain = SearchOptions()
    changed = {
        "mode": "dense",
        "model": "v1",
        "candidates": 300,
        "hops": 2,
        "hop_strength": 0.5,
        "operators": False,
        "score_threshold": 0.1,
        "weight_threshold": 0.1,
        "stages": 2,
        "rerank_candidates": 20,
        "group_by": "year",
        "collapse": True,
        "diversity": 0.5,
        "sort": "-year",
        "typos": True,
    }
    assert {field.name for field in fields(SearchOptions)} == shown | {"filter", *changed}
    for name, value in changed.items():
        assert SearchOptions(**{name: value}).ranking(None) != plain.ranking(None)
    assert plain.ranking("a filter") != plain.ranking(None)
