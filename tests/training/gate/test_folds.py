"""How queries are divided into folds: of about equal size, with seen and unseen documents in each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.training.gate.held_out import Answers, Headroom, joined, split_folds


def examples(*relevant: list[int]) -> Any:
    """Queries by the positions of their relevant documents."""
    pairs = [(np.array(of, np.int64), np.ones(len(of), np.float32)) for of in relevant]

    class Queries(SimpleNamespace):
        def __len__(self) -> int:
            return len(relevant)

    return Queries(relevant=pairs)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("groups", [[20], [20, 20], [1] * 40, [4] * 10, [30, 1, 1, 1, 1]])
def test_every_query_is_in_one_fold_and_folds_are_about_equal(groups: list[int], seed: int) -> None:
    queries = examples(*([number] for number, size in enumerate(groups) for _ in range(size)))
    parts = split_folds(queries, 4, seed)
    assert sorted(query for part in parts for query in part) == list(range(len(queries)))
    assert all(part == sorted(part) for part in parts)
    sizes = [len(part) for part in parts]
    largest = max((size for size in groups if size <= len(queries) / 4), default=1)
    assert max(sizes) - min(sizes) <= largest, sizes  # a group too large for a fold is spread


@pytest.mark.parametrize("seed", range(6))
def test_half_of_the_groups_stay_together_and_half_are_spread(seed: int) -> None:
    queries = examples(*([number] for number in range(10) for _ in range(4)))
    fold = {query: number for number, part in enumerate(split_folds(queries, 4, seed)) for query in part}
    places = [len({fold[4 * group + member] for member in range(4)}) for group in range(10)]
    assert places.count(1) == 5, places
    assert all(count > 1 for count in places if count != 1)


@pytest.mark.parametrize("seed", range(3))
def test_an_episode_is_in_one_fold_though_its_group_is_spread(seed: int) -> None:
    """Twelve pairs with the same three answers, one of which the next pair has as well."""
    pairs = [[2 * number, 2 * number + 1, 2 * number + 2] for number in range(12) for _ in range(2)]
    parts = split_folds(examples(*pairs), 3, seed)
    assert [len(part) for part in parts] == [8, 8, 8]
    assert all(query ^ 1 in part for part in parts for query in part)


def test_queries_connected_over_others_are_one_group() -> None:
    chain = examples([0, 1], [1, 2], [2, 3], [3, 4], *([10 + n] for n in range(12)))
    together = sum(
        any({0, 1, 2, 3} <= set(part) for part in split_folds(chain, 4, seed)) for seed in range(12)
    )
    assert 0 < together < 12


def test_means_are_none_where_nothing_is_to_average() -> None:
    nan = np.nan
    answers = Answers(np.array([0.5, 1.0]), np.array([True, False]), np.array([nan, 1.0]))
    assert answers.means() == {"all": 0.75, "seen": 0.5, "unseen": 1.0}
    assert answers.subset(np.array([0])).means() == {"all": 0.5, "seen": 0.5, "unseen": None}
    both = joined([answers, answers.subset(np.array([1]))])
    assert both.all.tolist() == [0.5, 1.0, 1.0]
    assert both.seen.tolist() == [True, False, False]
    assert both.means()["unseen"] == 1.0


@pytest.mark.parametrize(
    ("queries", "recall_at_10", "recall_at_100", "answered", "doubts"),
    [
        (100, 0.5, 0.9, 0.5, []),
        (100, 0.5, 0.9, 0.95, ["answered at rank 1 already"]),
        (100, 0.5, 0.9, 0.94, []),
        (100, 0.89, 0.9, 0.6, ["among the first ten already"]),
        (100, 0.88, 0.9, 0.6, []),
        (100, 0.89, 0.9, 0.5, []),  # few are answered: candidates are missing, not an order
        (99, 0.5, 0.9, 0.5, ["99 training queries are too few"]),
    ],
)
def test_doubts_begin_at_their_bounds(
    queries: int, recall_at_10: float, recall_at_100: float, answered: float, doubts: list[str]
) -> None:
    room = Headroom(queries, 300, recall_at_10, recall_at_100, answered)
    assert len(room.doubts) == len(doubts)
    assert all(wanted in said for wanted, said in zip(doubts, room.doubts, strict=True))
    assert room.to_text().count("training is unlikely to help") == len(doubts)
