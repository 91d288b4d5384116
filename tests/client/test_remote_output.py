"""How the answer of a server becomes tensors: zeros where no candidate is, errors for what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.client.remote_output import rows_at
from dsearch.errors import DimensionMismatch


def test_there_are_zeros_where_no_candidate_is() -> None:
    values = torch.tensor([[torch.nan, torch.inf], [1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    rows = rows_at(values, np.array([[2, 1], [1, -1], [-1, -1]]))
    assert rows.tolist() == [[[3, 4], [1, 2]], [[1, 2], [0, 0]], [[0, 0], [0, 0]]]
    rows.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0, 0], [2, 2], [1, 1]]
    assert rows_at(torch.zeros(0, 5), np.array([[-1, -1]])).tolist() == [[[0] * 5] * 2]


def test_a_value_for_each_position_is_needed() -> None:
    positions = np.array([[2, -1]])
    assert rows_at(torch.ones(3, 4), positions).shape == (1, 2, 4)
    with pytest.raises(DimensionMismatch, match=r"values of shape \[2, 4\].* which has 3 or more"):
        rows_at(torch.ones(2, 4), positions)
