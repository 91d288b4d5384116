"""Attention weights, losses and the start of learned values, against their definitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.training.opened_heads import opened_head, unit
from support.training.opened_heads import seeded as seeded  # a fixture for every test here

from dsearch.attention.retrieval.head import Head
from dsearch.training.finetune.values import _in_own_units
from dsearch.training.values import (
    _candidates,
    attention_weights,
    log_loss,
    loss_of_values,
    squared_error,
    start_output,
)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("with_keywords", [True, False])
def test_weights_are_their_definition_and_leave_each_document_out(heads: int, with_keywords: bool) -> None:
    head, states, corpus = opened_head(6, heads), unit(4, 6), unit(9, 6)
    keyword = torch.rand(4, 9, dtype=torch.float64) if with_keywords else None
    own = torch.tensor([3, -1, 0, 8])
    found = attention_weights(head, states, corpus, own, keyword=keyword)
    for row in range(4):
        others = [d for d in range(9) if d != own[row]]
        raw = head.queries(states)[row] @ head.keys(corpus[others]).T
        if keyword is not None:
            raw = raw + head.keyword_weight[:, None] * keyword[row, others]
        expected = head.mixture @ (raw / head.temperature).softmax(-1)
        torch.testing.assert_close(found[row, others], expected)
        assert own[row] == -1 or found[row, own[row]] == 0


def test_a_document_that_is_alone_pools_nothing() -> None:
    head, corpus = opened_head(6, 1), unit(1, 6)
    assert attention_weights(head, corpus, corpus, torch.tensor([0])).tolist() == [[0.0]]
    assert attention_weights(head, corpus, corpus, torch.tensor([-1])).tolist() == [[1.0]]


def test_candidates_are_the_nearest_and_those_with_a_word() -> None:
    """The nearest of any head, and the best of the words among documents that have one."""
    scores = torch.tensor([[[5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 9.0, 4.0, 5.0]]])
    assert _candidates(scores, None, 2).tolist() == [[True, True, True, False, True]]
    one = scores[:, :1]
    assert _candidates(one, None, 1).tolist() == [[True, False, False, False, False]]
    words = torch.tensor([[0.0, 0.0, 0.0, 0.7, 0.2]])
    assert _candidates(one, words, 1).tolist() == [[True, False, False, True, False]]
    assert _candidates(one, words, 3).tolist() == [[True, True, True, True, True]]
    assert _candidates(one, torch.zeros(1, 5), 2).tolist() == [[True, True, False, False, False]]
    assert _candidates(one, words, 99).all()


def test_losses_by_hand() -> None:
    predicted, wanted = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
    assert squared_error(predicted, wanted).tolist() == [2.5]
    shares, right = torch.tensor([[0.25, 0.75], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    expected = -torch.tensor([0.99 * 0.75 + 0.005, 0.005]).log()  # s = .01, shared among two labels
    torch.testing.assert_close(log_loss(shares, right), expected)
    for kind in ("number", "vector"):
        assert loss_of_values(kind, predicted, wanted).tolist() == [2.5]  # type: ignore[arg-type]
    torch.testing.assert_close(loss_of_values("label", shares, right), expected)


@pytest.mark.parametrize(("count", "noise"), [(30, 0.5), (8, 2.0)])  # of few rows the mean counts too
def test_the_start_is_ridge_regression_and_its_penalty_is_of_left_out_rows(count: int, noise: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(5, 2, generator=generator, dtype=torch.float64) + 3
    y = y + noise * torch.randn(y.shape, generator=generator, dtype=torch.float64)

    def ridge(rows: torch.Tensor, penalty: float) -> tuple[torch.Tensor, torch.Tensor]:
        centre, middle = x[rows].mean(0), y[rows].mean(0)
        a = x[rows] - centre
        weight = torch.linalg.solve(a.T @ a + penalty * torch.eye(5), a.T @ (y[rows] - middle)).T
        return weight, middle - weight @ centre

    def left_out_error(penalty: float) -> float:
        errors = list[float]()
        for row in range(count):
            weight, bias = ridge(torch.arange(count) != row, penalty)
            errors.append((y[row] - weight @ x[row] - bias).square().mean().item())
        return float(np.mean(errors))

    best = min((10.0**power for power in range(-4, 4)), key=left_out_error)
    output = torch.nn.Linear(5, 2).double()
    start_output(output, x, y, labels=False)
    weight, bias = ridge(torch.ones(count, dtype=torch.bool), best)
    torch.testing.assert_close(output.weight, weight, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(output.bias, bias, atol=1e-9, rtol=1e-6)


@pytest.mark.usefixtures("unchecked")  # the examples are a stand-in
def test_values_are_in_the_units_of_the_field() -> None:
    head, contexts = Head(4), torch.randn(3, 4)
    torch.nn.init.ones_(head.open_output(2).bias)
    standard = head.outputs(contexts).detach()
    scale, centre = np.array([2.0, 10.0], np.float32), np.array([50.0, -7.0], np.float32)
    examples: Any = SimpleNamespace(kind="number", scale=scale, centre=centre)
    _in_own_units(head, examples)
    torch.testing.assert_close(head.outputs(contexts), standard * torch.tensor(scale) + torch.tensor(centre))
