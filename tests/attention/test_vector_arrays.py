"""Vectors of length 1 and keyword parts, of tensors and of arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.attention.arrays import keyword_part, unit
from dsearch.attention.retrieval.kernel import mix


@pytest.mark.parametrize("rows", [[[3.0, 4.0]], [[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]]])
def test_vectors_of_length_one_and_zeros_that_stay(rows: list[list[float]]) -> None:
    expected = [[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]][: len(rows)]
    np.testing.assert_allclose(unit(np.array(rows, np.float32)), expected, atol=1e-7)
    tensor = torch.tensor(rows, requires_grad=True)
    torch.testing.assert_close(unit(tensor), torch.tensor(expected))
    unit(tensor).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.isfinite().all()
    if len(rows) > 1:
        assert tensor.grad[1].tolist() == [0.0, 0.0]


def test_each_head_weighs_the_keywords_of_each_query() -> None:
    scores, weights = np.array([[1.0, 2.0, 0.0], [3.0, 0.0, 4.0]]), np.array([0.5, 2.0])
    expected = [[[0.5, 1.0, 0.0], [2.0, 4.0, 0.0]], [[1.5, 0.0, 2.0], [6.0, 0.0, 8.0]]]
    assert keyword_part(weights, scores).tolist() == expected
    assert keyword_part(torch.as_tensor(weights), torch.as_tensor(scores)).tolist() == expected


def test_heads_are_mixed_by_shares_of_all_or_of_each_query() -> None:
    weights = np.array([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.25, 0.75]]])
    shares = np.array([0.25, 0.75])
    of_each = np.array([[0.25, 0.75], [1.0, 0.0]])
    for kind in (np.asarray, torch.as_tensor):
        assert mix(kind(weights), kind(shares)).tolist() == [[0.875, 0.125], [0.1875, 0.8125]]
        assert mix(kind(weights), kind(of_each)).tolist() == [[0.875, 0.125], [0.0, 1.0]]
        assert mix(kind(weights[:, :1]), kind(np.ones(1))).tolist() == weights[:, 0].tolist()
