"""Rankings of positions against judged positions, by numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.training.relevant import DEPTH, Pairs, Relevant, ndcg_at_10, padded, without


def judged(*of: dict[int, float]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.array([*one], np.int64), np.array([*one.values()], np.float32)) for one in of]


def test_gains_are_the_grades_of_the_own_documents() -> None:
    relevant = Relevant(judged({3: 2.0, 1: 1.0}, {3: 0.5}, {}))
    top = np.array([[1, 3, 7, -1], [3, 1, -1, -1], [3, 1, 99, -1]])
    assert relevant.gains(top).tolist() == [[1, 2, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 0]]
    assert Relevant(judged({}, {})).gains(top[:2]).tolist() == [[0] * 4] * 2
    assert Relevant([]).gains(np.zeros((0, 4), np.int64)).shape == (0, 4)


def test_ndcg_of_ten_ranks() -> None:
    found = np.array([[5, 6, 7], [9, 5, 6]])
    discount = 1 / np.log2(np.arange(2, 12))
    values = ndcg_at_10(found, judged({5: 1.0, 7: 2.0}, {5: 1.0}))
    ideal = 2 * discount[0] + discount[1]
    assert values.tolist() == pytest.approx([(discount[0] + 2 * discount[2]) / ideal, discount[1]])
    deep = np.arange(12)[None]
    assert ndcg_at_10(deep, judged({9: 1.0})).tolist() == pytest.approx([discount[9]])
    assert ndcg_at_10(deep, judged({10: 1.0})).tolist() == [0.0]
    many = judged(dict.fromkeys(range(30), 1.0))
    assert ndcg_at_10(np.arange(30)[None], many).tolist() == [1.0]  # ideal of ten, not of thirty
    assert DEPTH == 10
    assert np.isnan(ndcg_at_10(deep, judged({}))).all()


def test_documents_are_taken_out_and_the_rest_moves_up() -> None:
    top = np.array([[4, 5, 6, 7], [4, 5, 6, 7]])
    out = np.array([[True, False, True, False], [False, False, False, True]])
    assert without(top, out).tolist() == [[5, 7, -1, -1], [4, 5, 6, -1]]
    deep = np.arange(100)[None]
    odd = deep % 2 == 1
    assert without(deep, odd).tolist() == [[*range(0, 100, 2), *[-1] * 50]]


def test_pairs_are_of_their_query_alone() -> None:
    pairs = Pairs([np.array([7, 2]), np.array([], np.int64), np.array([2])])
    top = np.array([[2, 7, 8, -1], [2, 7, 8, -1], [2, 7, 8, 9]])
    assert pairs.among(top).tolist() == [[True, True, False, False], [False] * 4, [True, False, False, False]]
    inside, at = pairs.places(top[:1])
    assert [[7, 2, 2][pairs.first[place]] for place in at[0][inside[0]]] == [2, 7]
    assert not Pairs([]).among(np.zeros((0, 3), np.int64)).any()
    assert not Pairs([np.array([], np.int64)]).among(top[:1]).any()


def test_rows_are_padded_to_the_longest() -> None:
    at, grades = padded(judged({3: 2.0, 1: 1.0}, {}))
    assert at.tolist() == [[3, 1], [-2, -2]]
    assert grades.tolist() == [[2, 1], [0, 0]]
    assert padded([])[0].shape == (0, 1)
