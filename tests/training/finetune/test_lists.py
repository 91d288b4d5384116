"""Candidates of judged queries: padded, chosen, ranked."""

from __future__ import annotations

import numpy as np
import torch

from dsearch.attention.late_interaction import FEATURES
from dsearch.training.finetune.stage_fit import CandidateLists

TERMS = 1 + len(FEATURES)


def lists(positions: list[list[int]], grades: list[list[float]], first: int = 0) -> CandidateLists:
    shape = np.array(positions).shape
    scores = torch.arange(float(np.prod(shape))).flip(0).reshape(shape)
    return CandidateLists(
        np.array(positions, np.int64),
        scores.masked_fill(torch.tensor(positions) < 0, -torch.inf),
        torch.zeros(*shape, TERMS),
        np.array(grades, np.float64),
        torch.ones(len(positions)),
        np.arange(first, first + len(positions)),
        True,
    )


def test_lists_of_different_lengths_are_joined_with_nothing_behind() -> None:
    joined = CandidateLists.joined([lists([[3]], [[1]]), lists([[5, 6]], [[0, 2]], first=1)])
    assert len(joined) == 2
    assert joined.positions.tolist() == [[3, -1], [5, 6]]
    assert joined.scores[0, 1] == -torch.inf
    assert joined.features[0, 1].tolist() == [0.0] * TERMS
    assert joined.grades.tolist() == [[1, 0], [0, 2]]
    assert joined.queries.tolist() == [0, 1]
    assert joined.reranked


def test_a_subset_keeps_each_part_of_its_queries() -> None:
    whole = lists([[1, 2], [3, 4], [5, 6]], [[1, 0], [0, 1], [2, 2]])
    part = whole.subset([2, 0])
    assert part.positions.tolist() == [[5, 6], [1, 2]]
    assert part.grades.tolist() == [[2, 2], [1, 0]]
    assert part.scores.tolist() == [whole.scores[2].tolist(), whole.scores[0].tolist()]
    assert part.queries.tolist() == [2, 0]
    assert part.reranked


def test_the_second_stage_orders_by_both_and_equal_ones_stay() -> None:
    whole = lists([[1, 2, 3, -1]], [[0, 0, 0, 0]])
    whole.features[0, 2, 0] = 9.0
    weights = torch.zeros(TERMS)
    assert whole.ranked(weights).tolist() == [[1, 2, 3, -1]]
    weights[0] = 1.0
    assert whole.ranked(weights).tolist() == [[3, 1, 2, -1]]
    whole.scores[0, :3] = 1.0
    assert whole.ranked(torch.zeros(TERMS)).tolist() == [[1, 2, 3, -1]]
