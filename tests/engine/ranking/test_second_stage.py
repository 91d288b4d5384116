"""Parts of the second stage: neutral matches, scores spread to the other candidates, the best columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsearch.attention.late_interaction import FixedStage, Matches, RerankerIdentity
from dsearch.engine.ranking.second_stage import (
    CandidateEvidence,
    FirstStage,
    best_columns,
    neutral,
    spread,
    terms,
)

KINDS = [np.array, torch.tensor]


def matches(kind: object) -> Matches:
    make = kind  # type: ignore[assignment]
    return Matches(*(make([1.0, 2.0, 6.0, 8.0]) for _ in range(3)))  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_without_known_tokens_has_the_mean_of_the_others(kind: object) -> None:
    present = np.array([True, False, True, False])
    for of in neutral(matches(kind), present):
        assert of.tolist() == [1.0, 3.5, 6.0, 3.5]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("present", [[True] * 4, [False] * 4])
def test_where_all_or_none_have_tokens_matches_stay(kind: object, present: list[bool]) -> None:
    for of in neutral(matches(kind), np.array(present)):
        assert of.tolist() == [1.0, 2.0, 6.0, 8.0]


@pytest.mark.parametrize("kind", KINDS)
def test_others_stay_behind_all_that_were_looked_at(kind: object) -> None:
    """Raw scores 5, 1, 4 and 3 and padding; the second and the fourth get −1 and 2 from the stage."""
    make = kind  # type: ignore[assignment]
    raw = make([[5.0, 1.0, 4.0, 3.0, -math.inf]])  # type: ignore[operator]
    inside = make([-1.0, 2.0])  # type: ignore[operator]
    open_to = np.array([True, True, True, True, False])
    term = spread(inside, np.array([1, 3]), raw, open_to)
    assert term.tolist() == [-5.0, -1.0, -5.0, 2.0, -5.0]
    total = [sum(pair) for pair in zip(raw[0].tolist(), term.tolist(), strict=True)]
    assert max(total[0], total[2]) <= min(total[1], total[3])
    assert open_to.tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_others_that_are_behind_already_get_the_lowest_term(kind: object) -> None:
    make = kind  # type: ignore[assignment]
    raw = make([[9.0, 8.0, 1.0]])  # type: ignore[operator]
    term = spread(make([0.5, 0.25]), np.array([0, 1]), raw, np.array([True] * 3))  # type: ignore[operator]
    assert term.tolist() == [0.5, 0.25, 0.25]
    alone = spread(make([0.5, 0.25]), np.array([0, 1]), raw, np.array([True, True, False]))  # type: ignore[operator]
    assert alone.tolist() == [0.5, 0.25, 0.25]


def test_the_best_of_the_first_stage_are_looked_at_in_the_order_of_columns() -> None:
    positions = np.array([[4, 7, 9, -1], [2, -1, -1, -1], [-1] * 4])
    scores = np.array([[1.0, 3.0, 2.0, -np.inf], [0.5, -np.inf, -np.inf, -np.inf], [-np.inf] * 4])
    first = FirstStage(positions, scores[:, None], scores, scores[:, None], None)
    assert [columns.tolist() for columns in best_columns(first, 2)] == [[1, 2], [0], []]
    assert [columns.tolist() for columns in best_columns(first, 9)] == [[0, 1, 2], [0], []]
    tied = first._replace(scores=np.zeros((3, 4)))
    assert best_columns(tied, 2)[0].tolist() == [0, 1]


def test_a_first_stage_of_some_candidates_has_no_others() -> None:
    scores = np.array([[1.0, 3.0]])
    first = FirstStage(np.array([[4, 7]]), scores[:, None], scores, scores[:, None], None)
    part = first.of(np.array([[False, True]]))
    assert (part.positions.tolist(), part.scores.tolist()) == ([[-1, 7]], [[-np.inf, 3.0]])
    assert first.positions.tolist() == [[4, 7]]


def test_a_reranker_counts_by_its_weight() -> None:
    """γ M + v r of those that were looked at; v r is told apart."""
    tensors = {"strength": np.float32(0.5), "reranker_weight": np.float32(2.0)}
    stage = FixedStage(tensors, reranker=RerankerIdentity("some/model", "cross-encoder", "a" * 64))
    raw = np.array([[[1.0, 3.0, 2.0, 2.5]], [[0.0, 0.0, 0.0, 0.0]]])
    first = FirstStage(np.array([[4, 7, 9, 2], [-1] * 4]), raw, raw[:, 0], raw, None)
    scores = np.array([0.25, -0.25])

    def evidence(row: int, at: np.ndarray) -> CandidateEvidence:
        assert (row, at.tolist()) == (0, [1, 3])
        of = Matches(*(np.array([0.8, 0.4]) for _ in range(3)))
        return CandidateEvidence(of, np.array([3, 3]), None, scores)

    found = terms(stage, first, [np.array([1, 3]), np.array([], np.int64)], evidence)
    assert found.reranked is not None
    assert found.inside.tolist() == [[False, True, False, True], [False] * 4]
    assert found.reranked.tolist() == [[0.0, pytest.approx(0.5), 0.0, pytest.approx(-0.5)], [0.0] * 4]
    expected = [0.5 * 0.8 + 0.5, 0.5 * 0.4 - 0.5]
    assert found.values[0, [1, 3]].tolist() == pytest.approx(expected, abs=1e-6)
    assert found.values[0, 0] == found.values[0, 2] <= expected[1]
    assert not found.values[1].any()
