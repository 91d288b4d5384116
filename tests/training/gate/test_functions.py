"""A function scores examples by a layer, which is afterwards as it was before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsearch.errors import InvalidRequest
from dsearch.training.gate.functions import scores_by


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_is_scored_as_it_is_used_and_left_as_it_was(training: bool) -> None:
    layer = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1)).train(training)
    modes: list[tuple[bool, bool]] = []

    def score(given: torch.nn.Module) -> list[float]:
        assert given is layer
        modes.append((given.training, torch.is_grad_enabled()))
        return [0.5, 1]

    assert scores_by(score, layer) == [0.5, 1.0]
    assert modes == [(False, False)]
    assert layer.training is training
    assert layer[0].training is training


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_whose_function_fails_is_left_as_it_was(training: bool) -> None:
    layer = torch.nn.Linear(2, 1).train(training)

    def score(_: Any) -> list[float]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scores_by(score, layer)
    assert layer.training is training


@pytest.mark.parametrize(
    ("score", "shape"),
    [(lambda _: [[1.0]], r"\[1, 1\]"), (lambda _: torch.tensor(1.0), r"\[\]")],
)
def test_there_is_one_number_for_each_example(score: Callable[[Any], Any], shape: str) -> None:
    with pytest.raises(InvalidRequest, match=f"scores of shape {shape}; give one number for each held-out"):
        scores_by(score, torch.nn.Linear(2, 1))


def test_scores_may_be_tensors_of_any_kind_that_are_part_of_a_graph() -> None:
    scores = torch.ones(2, dtype=torch.bfloat16, requires_grad=True) * 2
    assert scores_by(lambda _: scores, torch.nn.Linear(2, 1)) == [2.0, 2.0]
    assert scores_by(lambda _: [], torch.nn.Linear(2, 1)) == []
