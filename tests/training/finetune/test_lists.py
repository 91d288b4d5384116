"""Candidates of judged queries: padded, chosen, ranked, and as evidence of an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.late_interaction import FEATURES
from dsearch.training.finetune import lists as module
from dsearch.training.finetune.lists import CandidateLists, near_calibration, near_rows

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


@pytest.fixture
def presence(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Any:
    """Which candidates count as evidence."""
    monkeypatch.setattr(module, "near_evidence", lambda scores, strength: scores.present.tolist())
    tokens: Any = [SimpleNamespace(weights=None)] * 9
    return lambda of, answers="all": near_rows(of, tokens, answers)


ONE = lists([[4, 2, 7, 9, -1]], [[0, 1, 0, 2, 0]])


def test_evidence_without_the_right_ones_and_as_many_with_them(presence: Any) -> None:
    """Both have two candidates: a fit to them cannot tell an answer by the number."""
    assert presence(ONE) == [[True, True, True, True, False]]
    assert presence(ONE, "hidden") == [[True, False, True, False, False]]
    assert presence(ONE, "as many") == [[True, True, False, False, False]]
    none = lists([[1, 2, -1]], [[0, 0, 0]])
    for answers in ("all", "hidden", "as many"):
        assert presence(none, answers) == [[True, True, False]]


def test_only_queries_with_an_answer_are_fitted(
    monkeypatch: pytest.MonkeyPatch, presence: Any, unchecked: None
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(module, "calibrate_near", lambda *rows: given.extend(rows))
    tokens: Any = [SimpleNamespace(weights=None)] * 9
    both = CandidateLists.joined([ONE, lists([[1, 2]], [[0, 0]], first=1)])
    near_calibration(both, tokens)
    assert [np.array(rows).sum(1).tolist() for rows in given] == [[2], [2]]
    assert near_calibration(lists([[1]], [[0]]), tokens) is None


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
