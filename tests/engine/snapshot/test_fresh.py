"""Fresh rows: a matrix that grows, and rows with their passages that follow."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.engine.snapshot import Fresh, GrowingMatrix
from dsearch.index import KeywordIndex
from dsearch.index.passages import PassageTable


def rows(*numbers: float) -> np.ndarray:
    return np.array([[number, -number] for number in numbers], np.float32).reshape(-1, 2)


def test_a_matrix_grows_and_what_was_given_out_stays() -> None:
    matrix = GrowingMatrix(rows(1, 2))
    first = matrix.appended(rows(3))
    second = matrix.appended(rows(4))
    third = matrix.appended(rows(5, 6, 7, 8, 9))
    assert [of[:, 0].tolist() for of in (first, second, third)] == [[1, 2, 3], [1, 2, 3, 4], [*range(1, 10)]]
    assert len(matrix) == 9
    assert matrix.appended(rows())[:, 0].tolist() == [*range(1, 10)]


def test_a_matrix_is_copied_seldom() -> None:
    matrix, places = GrowingMatrix(rows(*range(10))), set[int]()
    for number in range(100):
        places.add(matrix.appended(rows(number)).__array_interface__["data"][0])
    assert len(places) < 10


def table(*owners: int) -> PassageTable:
    count, long = len(owners), len(set(owners))
    spans = np.array([[owner, owner + 1] for owner in owners], np.int64).reshape(count, 2)
    firsts = np.zeros((long, 2), np.int64) + 9
    return PassageTable(np.array(owners, np.int64), spans, firsts, rows(*owners))


@pytest.mark.parametrize("more", [(), (1, 1)])
def test_rows_follow_with_their_passages(more: tuple[int, ...]) -> None:
    keyword = KeywordIndex.build([])
    fresh = Fresh.of(np.array([5, 6]), rows(5, 6), ["apple", "bread"], keyword, table(0, 0))
    longer = fresh.extended(np.array([8, 9]), rows(5, 6, 8, 9), ["honey", "ice"], table(*more))
    assert (len(fresh), len(longer), longer.rows.tolist()) == (2, 4, [5, 6, 8, 9])
    assert longer.passages.owners.tolist() == [0, 0, *(owner + 2 for owner in more)]
    assert len(longer.passages.spans) == len(longer.passages.embeddings) == 2 + len(more)
    assert len(longer.passages.first_spans) == (2 if more else 1)
    assert fresh.passages.owners.tolist() == [0, 0]
    assert len(Fresh.of(np.array([5]), rows(5), ["a"], keyword).passages) == 0
