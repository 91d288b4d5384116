"""A query memory gives what its formula gives, and has gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import dsearch.attention.memory_rows as module
from dsearch.attention.memory_rows import in_eight_bits
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.errors import DimensionMismatch, InvalidRequest


def small(**setting: float) -> QueryMemory:
    """Three past queries along the axes: the first judged two documents, the others one."""
    return QueryMemory(
        np.eye(3, 4, dtype=np.float32),
        np.eye(3, 4, k=1, dtype=np.float32),
        np.array([10, 11, 12]),
        np.array([0, 0, 1, 2]),
        np.array([0, 1, 1, 2]),
        np.array([4.0, 2.0, 1.0, 3.0]),
        texts=["one", "two", "three"],
        **setting,
    )


def test_relevance_is_the_formula_by_hand() -> None:
    memory = small(strength=2.0, temperature=0.5, null_level=0.4)
    query = torch.tensor([[3.0, 4.0, 0.0, 0.0]])  # cosines .6, .8 and 0
    weights = [math.exp(0.6 / 0.5), math.exp(0.8 / 0.5), math.exp(0.0), math.exp(0.4 / 0.5)]
    a = [weight / sum(weights) for weight in weights]
    rows, attention = memory.attention(query)
    assert rows.tolist() == [[0, 1, 2]]
    assert attention[0].tolist() == pytest.approx(a[:3], rel=1e-5)
    # Grades by the best of their query: 1 and .5, 1, 1.
    expected = [2 * a[0], 2 * (0.5 * a[0] + a[1]), 2 * a[2]]
    assert memory(query).relevance[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_rows_that_are_the_same_query_can_be_left_out() -> None:
    memory = small(temperature=0.5, null_level=0.4)
    query = torch.tensor([[1.0, 0.01, 0.0, 0.0]])
    attention = memory.attention(query, above=0.98)[1][0]
    without = QueryMemory(
        memory.states.numpy()[1:],
        memory.embeddings.numpy()[1:],
        np.array([11, 12]),
        np.array([0, 1]),
        np.array([0, 1]),
        np.array([1.0, 1.0]),
        temperature=0.5,
        null_level=0.4,
    )
    assert attention[0] == 0
    assert attention[1:].tolist() == pytest.approx(without.attention(query)[1][0].tolist(), rel=1e-6)


def test_gradients_reach_query_strength_temperature_and_level() -> None:
    memory = small(strength=0.7, temperature=0.3, null_level=0.2).double()
    query = torch.randn(2, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0)).requires_grad_()
    parameters = tuple(memory.parameters())

    def relevance(query: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return memory(query).relevance

    assert torch.autograd.gradcheck(relevance, (query, *parameters))
    gradients = torch.autograd.grad(relevance(query).square().sum(), [query, *parameters])
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_only_the_nearest_share_the_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEAREST", 2)
    memory = small(strength=1.0, temperature=0.5, null_level=0.4)
    query = torch.tensor([[3.0, 4.0, 0.0, 0.0]])
    weights = [math.exp(0.6 / 0.5), math.exp(0.8 / 0.5), math.exp(0.4 / 0.5)]
    recalled = memory(query)
    assert recalled.rows.tolist() == [[1, 0]]
    assert recalled.weights[0, 1].item() == pytest.approx(weights[0] / sum(weights), rel=1e-5)
    assert recalled.relevance[0, 2] == 0


def test_a_memory_without_rows_recalls_nothing() -> None:
    none = np.zeros(0, np.int64)
    nothing = np.zeros((0, 4), np.float32)
    memory = QueryMemory(nothing, nothing, none, none, none, np.zeros(0), strength=1.0)
    assert memory(torch.ones(2, 4)).relevance.shape == (2, 0)
    assert len(memory.extended(small())) == 3


def test_eight_bits_hardly_change_a_product() -> None:
    drawn = np.random.default_rng(0).standard_normal((200, 384)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    codes, scales = in_eight_bits(drawn)
    rounded = codes * scales[:, None]
    assert np.abs(rounded @ drawn.T - drawn @ drawn.T).max() < 0.003


def test_an_extended_memory_keeps_the_numbers_of_its_rows() -> None:
    memory = small(strength=0.5)
    more = QueryMemory(
        np.eye(2, 4, k=2, dtype=np.float32),
        np.eye(2, 4, dtype=np.float32),
        np.array([9, 11]),
        np.array([0, 1]),
        np.array([0, 1]),
        np.array([1.0, 1.0]),
        texts=["Two", "four"],
    )
    longer = memory.extended(more)
    assert longer.texts == ["one", "two", "three", "four"]
    assert longer.rows.tolist() == [10, 11, 12, 9]
    pairs = zip(longer.of_query.tolist(), longer.of_document.tolist(), strict=True)
    assert list(pairs) == [(0, 0), (0, 1), (1, 1), (1, 3), (2, 2), (3, 1)]
    assert longer.inserted.tolist() == [False, False, False, True, False, True]


def test_a_memory_without_strength_adds_nothing() -> None:
    memory = small()
    assert not memory(torch.ones(1, 4)).relevance.any()


@pytest.mark.usefixtures("unchecked")
def test_wrong_parts_are_refused() -> None:
    one = np.ones((1, 4), np.float32)
    zero, grade = np.array([0]), np.array([1.0])
    with pytest.raises(DimensionMismatch):
        QueryMemory(one, np.ones((1, 3), np.float32), zero, zero, zero, grade)
    with pytest.raises(InvalidRequest, match="above 0"):
        QueryMemory(one, one, zero, zero, zero, np.array([0.0]))
    with pytest.raises(InvalidRequest, match="of_document"):
        QueryMemory(one, one, zero, zero, np.array([1]), grade)
    with pytest.raises(InvalidRequest, match="temperature"):
        QueryMemory(one, one, zero, zero, zero, grade, temperature=0.0)


def test_a_past_query_exactly_at_the_bound_is_left_out() -> None:
    """It counts as the same query, however few its numbers."""
    memory = small(temperature=0.5, null_level=0.4)
    query = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    nearest = float((memory.states @ query[0])[0])
    assert memory.attention(query, above=nearest)[1][0, 0] == 0
    assert memory.attention(query, above=nearest + 1e-6)[1][0, 0] > 0
