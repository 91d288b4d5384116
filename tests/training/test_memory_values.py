"""Rounds in which judged documents are hidden, and scores of pools by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dsearch.training.memory_values import _distinct, _Judged, _mean_of_rounds, _Pool, hidings_of


def examples(embeddings: Any, relevant: list[list[int]]) -> Any:
    table = np.array(embeddings, np.float32)
    snapshot = SimpleNamespace(positions=len(table), embeddings=lambda at: table[at])
    judged = [(np.array(at, np.int64), np.ones(len(at), np.float32)) for at in relevant]
    return SimpleNamespace(relevant=judged, snapshot=snapshot)


def test_every_judged_document_is_hidden_in_one_round_with_those_of_its_embedding(unchecked: None) -> None:
    """A document whose copy stays would be seen through it."""
    embeddings = [[number // 2, 1.0] for number in range(40)]
    hidings = np.stack(hidings_of(examples(embeddings, [[*range(30)], [3, 4]])))
    assert hidings.shape == (5, 40)
    assert hidings.sum(0).tolist() == [1] * 30 + [0] * 10
    assert (hidings[:, 0:30:2] == hidings[:, 1:30:2]).all()
    assert sorted(hidings.sum(1).tolist()) == [6] * 5


def test_the_mean_is_over_the_rounds_that_hid_something(unchecked: None) -> None:
    rows = [np.array([1.0, np.nan, 0.0]), np.array([0.0, np.nan, np.nan])]
    means = _mean_of_rounds(rows)
    assert means[:1].tolist() == [0.5]
    assert np.isnan(means[1])
    assert means[2] == 0.0


def test_a_pool_has_each_position_once_ascending(unchecked: None) -> None:
    assert _distinct(np.array([[5, 2, 5, -1], [7, 7, 7, 7]])).tolist() == [[2, 5], [7, -1]]
    assert _distinct(np.array([[-1, -1]])).tolist() == [[-1]]
    assert _distinct(np.array([[4, 0, -1, 0], [0, 0, 0, 0]])).tolist() == [[0, 4], [0, -1]]


def test_what_is_hidden_is_judged_by_itself(unchecked: None) -> None:
    """Other relevant documents are taken out of the ranking; what nobody judged stays in it."""
    grades = torch.tensor([[0.0, 1.0, 2.0, 0.0]])
    relevant = np.array([[1, 2, -1]]), np.array([[1.0, 2.0, 0.0]], np.float32)
    pool = _Pool(np.array([[0, 1, 2, -1]]), {}, grades, relevant)
    whole, part = pool.judged(None), pool.judged(np.array([False, False, True]))
    assert whole.outside is None
    assert whole.ideal.tolist() == [[2.0, 1.0, 0.0]]  # the better one first
    assert part.outside is not None
    assert part.outside.tolist() == [[False, True, False, False]]
    assert part.grades.tolist() == [[0, 0, 2, 0]]
    assert part.ideal.tolist() == [[2.0, 0.0, 0.0]]


def test_values_by_hand(unchecked: None) -> None:
    grades = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    ideal = np.array([[2.0, 1.0], [0.0, 0.0]])
    best = 2 + 1 / np.log2(3)
    values, precisions = _Judged(grades, None, ideal).values(scores)
    assert np.isclose(values[0], (1 / np.log2(3) + 2 / 2) / best)
    assert np.isclose(precisions[0], (1 / 2 + 2 / 3) / 2)
    assert np.isnan(values[1])
    assert np.isnan(precisions[1])
    outside = torch.tensor([[True, False, False], [False] * 3])
    without, precisions = _Judged(grades, outside, ideal).values(scores)
    assert np.isclose(without[0], (1 + 2 / np.log2(3)) / best)
    assert precisions[0] == 1.0
    absent = scores.masked_fill(torch.tensor([[False, True, True], [False] * 3]), -torch.inf)
    assert [of[0] for of in _Judged(grades, None, ideal).values(absent)] == [0.0, 0.0]
