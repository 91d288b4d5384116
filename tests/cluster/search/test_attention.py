"""Hops over shards: how many, by which strength, and what the rounds before the last leave out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.cluster.search import attention
from dsearch.cluster.search.attention import ShardedAttention, ShardQuery
from dsearch.errors import InvalidRequest


class _Head:
    """A head that learned a strength of hops, and has no memory."""

    memory = None

    def __init__(self, hop_strength: float):
        self.hop_strength = torch.tensor(hop_strength)

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        return states[:, None]

    def keys(self, contexts: torch.Tensor) -> torch.Tensor:
        return contexts


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> list[tuple[torch.Tensor, ShardQuery]]:
    """Queries of each round, whose context is always 10; a hop adds a share of it."""
    made: list[tuple[torch.Tensor, ShardQuery]] = []

    def read(_: Any, queries: torch.Tensor, head: Any, query: ShardQuery, lost: Any) -> Any:
        made.append((queries.clone(), query))
        return SimpleNamespace(output=SimpleNamespace(folded=queries))

    monkeypatch.setattr(ShardedAttention, "_read", read)
    monkeypatch.setattr(ShardedAttention, "_pool", lambda *_: [])
    monkeypatch.setattr(attention, "pooled", lambda parts, folded: torch.full_like(folded, 10.0))
    monkeypatch.setattr(attention, "turned", lambda query, pooled, strength: query + strength * pooled)
    return made


QUERY = ShardQuery(["cat"], "hybrid", 5, coverage=True, collapse=True, depth=3)


def attended(learned: float, **options: Any) -> None:
    release: Any = SimpleNamespace(documents=10)
    shards: Any = None
    head: Any = _Head(learned)
    ShardedAttention(release, shards).attend(torch.zeros(1, 2), head, QUERY, **options)


@pytest.mark.parametrize(
    ("learned", "options", "count"),
    [
        (0.0, {}, 1),
        (0.5, {}, 2),
        (0.5, {"hop_strength": 0.0}, 1),
        (0.0, {"hop_strength": 0.5}, 2),
        (0.5, {"hops": 1}, 1),
        (0.0, {"hops": 3}, 3),
    ],
)
def test_two_rounds_are_made_where_there_is_a_strength(
    rounds: list[Any], learned: float, options: dict[str, Any], count: int
) -> None:
    attended(learned, **options)
    assert len(rounds) == count


def test_the_given_strength_takes_precedence_over_the_learned_one(rounds: list[Any]) -> None:
    attended(0.5, hop_strength=0.25)
    attended(0.5)
    assert [queries.unique().tolist() for queries, _ in rounds] == [[0.0], [2.5], [0.0], [5.0]]


def test_only_the_last_round_has_what_is_for_the_answer(rounds: list[Any]) -> None:
    attended(0.5)
    (_, before), (_, last) = rounds
    assert last == QUERY
    assert (before.coverage, before.preview, before.rerank) == (False, None, None)
    assert (before.collapse, before.depth, before.candidates) == (False, None, 5)


@pytest.mark.parametrize("hops", [0, -1])
def test_there_is_one_round_at_least(rounds: list[Any], hops: int) -> None:
    with pytest.raises(InvalidRequest, match=f"^hops={hops}; use an integer of at least 1$"):
        attended(0.0, hops=hops)
    assert rounds == []


@pytest.mark.parametrize(("reached", "whole"), [([[0, 1], [1, 0]], True), ([[0, 1], [1, -1]], False)])
def test_all_is_covered_where_each_query_has_reached_each_document(
    monkeypatch: pytest.MonkeyPatch, unchecked: None, reached: list[list[int]], whole: bool
) -> None:
    estimated = torch.tensor([0.75, 0.5])
    monkeypatch.setattr(attention, "mass_of", lambda *_, **__: estimated)
    places = np.array(reached)
    output: Any = SimpleNamespace(positions=places, sharing=places, folded=None)
    answers: Any = {0: SimpleNamespace(partition=np.zeros((2, 1), np.float32))}
    head: Any = SimpleNamespace(temperature=1.0, mixture_of=lambda folded: None)
    mass = attention._mass(output, answers, 2, head)
    assert mass.tolist() == ([1.0, 1.0] if whole else [0.75, 0.5])
