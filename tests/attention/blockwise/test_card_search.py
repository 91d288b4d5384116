"""The parts of the search on a card that torch computes: plans, capacities and stable orders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsearch.attention.blockwise import card as module
from dsearch.attention.blockwise.card import SearchPlan, choose_plan, search

VALUES = torch.tensor([[0.0, -0.0, -1.0, 3.0, 3.0], [-2.5, -2.5, float("-inf"), 1e-30, -1e-30]])


def test_floats_become_integers_of_the_same_order() -> None:
    rising = module._rising(VALUES)
    assert rising.dtype == torch.int32
    for line, numbers in zip(VALUES.tolist(), rising.tolist(), strict=True):
        for one, other in zip(line, numbers, strict=True):
            for value, number in zip(line, numbers, strict=True):
                assert (one < value) == (other < number)
                assert (one == value) == (other == number)  # of zeros, too


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_of_equal_values_the_leftmost_are_taken(k: int) -> None:
    order = VALUES.sort(dim=1, descending=True, stable=True).indices[:, :k]
    assert module._stable_places(VALUES, k).tolist() == order.sort(dim=1).values.tolist()


def test_scores_and_rows_come_back_from_integers() -> None:
    rows = torch.tensor([[7, 3, 2, 0xFFFFFFFE, 0]])
    packed = (module._rising(VALUES[:1]).long() << 32) | (0xFFFFFFFF - rows)
    scores, found = module._sorted(packed, 5)
    assert scores.tolist() == [[3.0, 3.0, 0.0, 0.0, -1.0]]
    assert found.tolist() == [[0, 0xFFFFFFFE, 3, 7, 2]]  # of equal scores the lower row


def test_groups_are_chosen_within_the_best_tiles() -> None:
    """Two tiles of four groups are taken of three; among equal groups the first ones."""
    plan = SearchPlan(rows=1, keys=16, pairs=2, stages=1, warps=1)
    maxima = torch.tensor([[1.0, 5, 5, 1, 9, 9, 9, 9, 5, 0, 7, 7]])
    tiles = maxima.view(1, 3, 4).amax(-1)
    chosen = module._stable_groups(maxima, tiles, 2, plan)
    assert chosen.dtype == torch.int32
    assert chosen.tolist() == [[4, 5, 6, 7, 10]]  # k + 3 of the tiles 1 and 2
    few = module._stable_groups(maxima[:, :4], tiles[:, :1], 1, plan)
    assert few.tolist() == [[0, 1, 2, 3]]


PLANS = [
    (1, 1000, 64, 4, 4, 4),
    (64, 4_000_000, 64, 4, 4, 4),
    (65, 4_000_001, 128, 8, 3, 8),
    (64, 4_000_001, 64, 8, 4, 4),
]


@pytest.mark.parametrize(("batch", "documents", "rows", "pairs", "stages", "warps"), PLANS)
def test_plans_follow_the_numbers_of_queries_and_documents(
    batch: int, documents: int, rows: int, pairs: int, stages: int, warps: int
) -> None:
    assert choose_plan(batch, documents) == SearchPlan(rows, 256, pairs, stages, warps)


@pytest.mark.parametrize(
    ("k", "capacity"), [(1, 16), (7, 16), (8, 32), (20, 32), (22, 32), (23, 64), (100, 128)]
)
def test_capacities_are_powers_of_two_above_k(k: int, capacity: int) -> None:
    assert module._capacity(k) == capacity


def test_without_a_card_there_is_no_search() -> None:
    assert search(torch.zeros(1, 4), torch.zeros(9, 4), 1) is None


class Kernels:
    """In place of a card's: the first call is unsure of the second query, a listed one is right."""

    def __init__(self, different: list[int]):
        self.different, self.listed = different, []

    def group_maxima(self, queries: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(len(queries) * 8.0).view(-1, 8), torch.arange(len(queries) * 4.0).view(-1, 4)

    def best_keys(self, queries: torch.Tensor, *_: object, listed: Any = None, **__: object) -> Any:
        again = listed is not None
        rows = queries[:, :1].int() + (100 if again else 0)
        unsure = torch.arange(len(queries)) == (-1 if again else 1)
        flags = torch.tensor([int(unsure.any()), self.different[again]])
        return SimpleNamespace(scores=rows.float(), rows=rows, flags=flags, unsure=unsure)


@pytest.mark.parametrize("different", [[0, 0], [1, 0], [0, 1]])
def test_queries_that_are_unsure_are_searched_again_and_sums_that_differ_are_no_answer(
    different: list[int],
) -> None:
    plan = SearchPlan(rows=1, keys=16, pairs=4, stages=1, warps=1)
    queries = torch.tensor([[5.0], [6.0], [7.0]])
    found = module.search_part(Kernels(different), queries, torch.zeros(64, 1), 1, plan)
    if any(different):
        assert found is None
        return
    assert found is not None
    scores, rows = found
    assert rows.tolist() == [[5], [106], [7]]
    assert scores.tolist() == [[5.0], [106.0], [7.0]]
