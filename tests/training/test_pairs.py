"""Positions of each query are found in rankings, as by comparing all with all."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsearch.training.relevant import Pairs, Relevant

_OF_A_QUERY = st.lists(st.integers(0, 9), unique=True, max_size=6)


@given(
    positions=st.lists(_OF_A_QUERY, min_size=1, max_size=5),
    top=st.lists(st.lists(st.integers(-1, 12), min_size=4, max_size=4), min_size=5, max_size=5),
)
def test_found_where_a_comparison_of_all_finds_them(positions: list[list[int]], top: list[list[int]]) -> None:
    ranked = np.array(top[: len(positions)], np.int64)
    found = Pairs([np.array(of, np.int64) for of in positions]).among(ranked)
    expected = [[at in of for at in row] for row, of in zip(ranked.tolist(), positions, strict=True)]
    assert found.tolist() == expected


def test_without_positions_nothing_is_found() -> None:
    assert not Pairs([np.empty(0, np.int64)]).among(np.array([[0, -1, 3]])).any()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 12))
def test_gains_are_the_grades_of_relevant_documents(seed: int, queries: int, depth: int) -> None:
    chance = np.random.default_rng(seed)
    relevant = []
    for _ in range(queries):
        positions = chance.permutation(30)[: chance.integers(0, 8)]
        relevant.append((positions, chance.integers(1, 4, len(positions)).astype(np.float32)))
    ranked = np.stack([chance.permutation(32)[:depth] - 1 for _ in range(queries)])
    expected = [
        [dict(zip(at.tolist(), grades.tolist(), strict=True)).get(one, 0.0) for one in row]
        for row, (at, grades) in zip(ranked.tolist(), relevant, strict=True)
    ]
    assert Relevant(relevant).gains(ranked).tolist() == expected
