"""How the answer of a server becomes tensors: zeros where no candidate is, errors for what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.client.remote_output import RemoteOutput, in_sequences, rows_at
from dsearch.errors import DimensionMismatch
from dsearch.types import Stamp


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


def test_sequences_have_their_own_steps() -> None:
    ids = [[f"d{number}"] for number in range(6)]
    numbers = torch.arange(6.0)[:, None]
    by_head = numbers[:, None]
    flat = RemoteOutput(
        numbers, numbers, ids, numbers, by_head, by_head, by_head, Stamp(1, "v0", 7), np.arange(6)[:, None]
    )
    whole = in_sequences(flat, (2, 3))
    assert whole.ids == [ids[:3], ids[3:]]
    assert whole.context.tolist() == [[[0.0], [1.0], [2.0]], [[3.0], [4.0], [5.0]]]
    assert (whole.dense.shape, whole.positions.shape, whole.texts) == ((2, 3, 1, 1), (2, 3, 1), None)
