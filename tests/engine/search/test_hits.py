"""How far hits reach, and the summary of an answer."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine.search.hits import HitPage, summaries_of

pytestmark = pytest.mark.usefixtures("unchecked")  # outputs are stand-ins


def output(**more: Any) -> Any:
    positions = np.array([[4, 2, 9, -1], [1, -1, -1, -1], [-1, -1, -1, -1]])
    scores = torch.tensor([[3.0, 2.0, 1.0, -math.inf], [0.5, *[-math.inf] * 3], [-math.inf] * 4])
    weights = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0, 0, 0], [0.0, 0, 0, 0]])
    return SimpleNamespace(positions=positions, scores=scores, weights=weights, **more)


@pytest.mark.parametrize(
    ("thresholds", "reached"),
    [
        ({}, [3, 1, 0]),
        ({"score_threshold": 2.0}, [2, 0, 0]),
        ({"score_threshold": 2.1}, [1, 0, 0]),
        ({"weight_threshold": 0.25}, [3, 1, 0]),
        ({"weight_threshold": 0.26}, [1, 1, 0]),
        ({"weight_threshold": 0.25, "score_threshold": 0.5}, [3, 1, 0]),
        ({"weight_threshold": 0.3, "score_threshold": 1.0}, [1, 0, 0]),
        ({"score_threshold": -math.inf}, [3, 1, 0]),
    ],
)
def test_hits_end_where_a_threshold_is_missed(thresholds: dict[str, float], reached: list[int]) -> None:
    assert HitPage(10, 0, **thresholds).reached(output()).tolist() == reached


def test_hits_end_at_the_first_that_misses_though_later_ones_do_not() -> None:
    """In an order that was asked for scores do not fall."""
    mixed = output()
    mixed.scores = torch.tensor([[3.0, 1.0, 2.0, -math.inf]] * 3)
    assert HitPage(10, 0, score_threshold=2.0).reached(mixed).tolist() == [1, 1, 0]


def test_a_summary_has_the_number_of_candidates_and_their_spread() -> None:
    summaries = summaries_of(output(), torch.tensor([0.5, 1.0, 0.0]))
    assert [one.candidates for one in summaries] == [3, 1, 0]
    expected = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)
    assert [one.entropy for one in summaries] == pytest.approx([expected, 0.0, 0.0])
    assert [math.copysign(1, one.entropy) for one in summaries] == [1, 1, 1]  # never −0
    assert [one.covered_mass for one in summaries] == [0.5, 1.0, 0.0]
    assert [one.covered_mass for one in summaries_of(output(), None)] == [None] * 3
