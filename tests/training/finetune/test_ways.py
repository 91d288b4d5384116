"""Which way of fitting a second stage is chosen, by made up measures; and whose encoder saw a fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.training.data.examples import Examples
from dsearch.training.finetune import second_stage, stage_fit
from dsearch.training.finetune.second_stage import FoldHeads, OwnQueries
from dsearch.training.finetune.stage_fit import METHODS, RERANKED_METHODS, FitMethod, chosen_method, fitted

COUNT = 40
UNITS = np.where(np.arange(COUNT) % 2, 1.0, -1.0)  # mean 0, deviation 1


@dataclass
class MadeUp:
    """Candidate lists with a measure for each way and query; where there is none, .5."""

    values: dict[FitMethod, np.ndarray]
    queries: np.ndarray
    reranked: bool = False

    def __len__(self) -> int:
        return len(self.queries)

    def subset(self, which: Sequence[int]) -> MadeUp:
        return replace(self, queries=self.queries[which])

    def ranked(self, way: FitMethod) -> np.ndarray:
        return self.values.get(way, np.full(COUNT, 0.5))[self.queries]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Any:
    monkeypatch.setattr(stage_fit, "fitted", lambda lists, way: way)
    monkeypatch.setattr(stage_fit, "ndcg_at_10", lambda values, _: values)
    examples: Any = SimpleNamespace(relevant=[None] * COUNT)

    def choose(values: dict[FitMethod, np.ndarray], *, reranked: bool = False) -> FitMethod:
        lists: Any = MadeUp(values, np.arange(COUNT), reranked)
        return chosen_method(lists, examples, seed=0)

    return choose


def gain(mean: float, spread: float = 0.0) -> np.ndarray:
    return 0.5 + mean + spread * UNITS


def test_the_best_way_has_to_gain_more_than_its_standard_error(choose: Any) -> None:
    error = 0.1 / np.sqrt(COUNT)
    assert choose({}) == METHODS[0]
    assert choose({METHODS[2]: gain(1.1 * error, 0.1)}) == METHODS[2]
    assert choose({METHODS[2]: gain(0.9 * error, 0.1)}) == METHODS[0]
    assert choose({METHODS[2]: gain(0.01), METHODS[4]: gain(0.02), METHODS[5]: gain(-0.1)}) == METHODS[4]


def test_a_way_is_measured_by_queries_that_it_was_not_fitted_to(
    choose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query once by each way, whose weights the other parts gave."""
    measured: dict[FitMethod, list[int]] = {}

    def ranked(self: MadeUp, weights: tuple[FitMethod, np.ndarray]) -> np.ndarray:
        way, learned = weights
        assert not np.isin(self.queries, learned).any()
        assert len(self) + len(learned) == COUNT
        measured.setdefault(way, []).extend(self.queries.tolist())
        return self.values.get(way, np.full(COUNT, 0.5))[self.queries]

    monkeypatch.setattr(stage_fit, "fitted", lambda lists, way: (way, lists.queries))
    monkeypatch.setattr(MadeUp, "ranked", ranked)
    assert choose({METHODS[2]: gain(0.1)}, reranked=True) == METHODS[2]
    assert set(measured) == {*METHODS, *RERANKED_METHODS}
    assert all(sorted(of) == [*range(COUNT)] for of in measured.values())


def test_a_reranker_has_to_gain_over_the_best_way_without_it(choose: Any) -> None:
    error = 0.1 / np.sqrt(COUNT)
    way, other = METHODS[3], RERANKED_METHODS[1]
    for above, chosen in ((0.9, way), (1.1, other)):
        values = {way: gain(0.05), other: gain(0.05 + above * error, 0.1)}
        assert choose(values, reranked=True) == chosen
    assert choose({other: gain(0.2)}, reranked=True) == other
    assert choose({other: gain(0.2)}) == METHODS[0]  # lists without its score


def test_a_reranker_with_a_weight_below_0_is_left_out_and_the_others_are_fitted_without_it(
    monkeypatch: pytest.MonkeyPatch, unchecked: None
) -> None:
    rounds: list[list[float]] = []

    def made_up(_: Any, way: FitMethod, open_to: torch.Tensor) -> torch.Tensor:
        rounds.append(open_to.tolist())
        return torch.tensor([1.0, -2.0, -0.5]) * open_to

    monkeypatch.setattr(stage_fit, "_fitted", made_up)
    lists: Any = SimpleNamespace(features=torch.zeros(1, 1, 3), reranked=True)
    weights = fitted(lists, FitMethod(pull=0.1, reranked=True))
    torch.testing.assert_close(weights, torch.tensor([1.0, -2.0, 0.0]))
    assert rounds == [[1, 1, 1], [1, 1, 0]]
    rounds.clear()
    fitted(lists, FitMethod(pull=0.1))  # the score of a reranker has no part in a way without it
    assert rounds == [[1, 1, 0]]
    rounds.clear()
    lists.reranked = False
    fitted(lists, METHODS[1])  # any other feature may have a weight below 0
    assert rounds == [[1, 1, 1]]


def test_only_the_queries_of_a_fold_are_seen_by_its_own_encoder(
    monkeypatch: pytest.MonkeyPatch, unchecked: None
) -> None:
    monkeypatch.setattr(second_stage, "query_tokens", lambda tokens, text, _: (tokens, text))
    none: Any = None
    examples = Examples(none, ["a", "b", "c"], np.zeros((3, 2), np.float32), [], {}, "")
    tokens: Any = ["ta", "tb", "tc"]
    own: Any = OwnQueries(np.array([[1.0, 1.0], [2.0, 2.0]], np.float32), ["own c", "own a"])
    fold = FoldHeads([2, 0], {}, own)
    for base, of in (("start", fold), ("tuned", fold), ("head", replace(fold, own=None))):
        seen, by = of.seen_by(base, examples, tokens)
        assert (seen, by) == (examples, tokens)
    seen, by = fold.seen_by("head", examples, tokens)
    assert seen.states.tolist() == [[2, 2], [0, 0], [1, 1]]
    assert by == [("own a", "a"), "tb", ("own c", "c")]
    assert not examples.states.any()
    assert tokens == ["ta", "tb", "tc"]
