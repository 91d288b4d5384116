"""Matches of a field: which of its texts count, and how alike two texts are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dsearch.engine.ranking.field_match import FieldMatch
from dsearch.errors import InvalidRequest

VALUES: list[Any] = ["Paris", ["paris", "Rome"], None, "Pari", 7, ["Rome", "Paris"], [], ["x", ["Paris"]], ""]


def kernels(name: str, *queries: str, values: list[Any] = VALUES, **options: Any) -> list[list[float]]:
    scores = FieldMatch(name, "city", values, **options).of_all(queries)
    assert scores.dtype == np.float32
    return [[round(math.exp(score), 4) for score in row] for row in scores.tolist()]


def test_one_equal_text_of_a_list_is_enough_wherever_it_stands() -> None:
    assert kernels("exact_match", "Paris", "7") == [[1, 0, 0, 0, 0, 1, 0, 1, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0]]
    assert kernels("exact_match", "PARIS", ignore_case=True) == [[1, 1, 0, 0, 0, 1, 0, 1, 0]]


def test_a_prefix_counts_by_its_share_of_the_text() -> None:
    assert kernels("prefix", "Par") == [[0.6, 0, 0, 0.75, 0, 0.6, 0, 0.6, 0]]
    assert kernels("prefix", "Ro", values=[["Roma", "Rome!", "Ro"], ["Rx"]]) == [[1.0, 0.0]]
    assert kernels("prefix", "", values=["a", ""]) == [[0.0, 0.0]]


def test_similar_texts_count_by_their_likeness_the_best_of_a_list() -> None:
    assert kernels("fuzzy", "Paris", values=["Paris", "Pari", ["zzz", "Parix", "zz"], "zzz"]) == [
        [1.0, round(2 * 4 / 9, 4), 0.8, 0.0]
    ]


def test_equivalent_characters_are_equal() -> None:
    assert kernels("exact_match", "caf\u0065\u0301", values=["caf\u00e9"]) == [[1.0]]
    assert kernels("exact_match", "STRASSE", values=["straße"], ignore_case=True) == [[1.0]]
    assert kernels("exact_match", "\u0345\u0301", values=["\u0301\u0345"], ignore_case=True)[0][0] in (
        0.0,
        1.0,
    )


def test_without_a_text_nothing_matches() -> None:
    assert kernels("exact_match", "a", "b", values=[None, []]) == [[0, 0], [0, 0]]
    assert FieldMatch("exact_match", "city", []).of_all(["a"]).shape == (1, 0)


def test_other_documents_need_another_layer() -> None:
    match = FieldMatch("exact_match", "city", ["a"])
    match.require(1)
    for positions in (0, 2):
        with pytest.raises(InvalidRequest, match="the field 'city' was read for another state"):
            match.require(positions)
