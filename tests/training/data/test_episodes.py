"""Queries with nearly the same judgements are one episode, which folds and memories hold out as a whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsearch.training.gate.held_out import AGREEMENT, FEWEST, episodes_of

_SETS = st.lists(st.sets(st.integers(0, 11), max_size=9), min_size=1, max_size=12)


def relevant_of(sets: list[set[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.array(sorted(of), np.int64), np.ones(len(of), np.float32)) for of in sets]


@given(_SETS)
def test_episodes_are_those_of_comparing_all_with_all(sets: list[set[int]]) -> None:
    numbers = list(range(len(sets)))
    for first, a in enumerate(sets):
        for second, b in enumerate(sets):
            if min(len(a), len(b)) >= FEWEST and len(a & b) >= AGREEMENT * len(a | b):
                numbers = [numbers[first] if of == numbers[second] else of for of in numbers]
    found = episodes_of(relevant_of(sets)).tolist()
    same = [[one == other for other in found] for one in found]
    assert same == [[one == other for other in numbers] for one in numbers]


def test_one_common_answer_makes_no_episode() -> None:
    assert len(set(episodes_of(relevant_of([{1}, {1}, {1, 2}, {1, 2}])).tolist())) == 4
