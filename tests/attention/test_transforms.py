"""Query states that a layer takes and refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dsearch.attention.transforms import checked_states, refuse_transforms
from dsearch.errors import DimensionMismatch, DsearchError, InvalidRequest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 4), (0, 4), (2, 3, 4)])
def test_batches_and_sequences_of_numbers_are_taken(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    checked_states(torch.zeros(shape, dtype=dtype))


REFUSED: list[tuple[Any, type[DsearchError], str]] = [
    ([[1.0, 2.0]], InvalidRequest, "query states of type list; give a tensor"),
    (None, InvalidRequest, "query states of type NoneType"),
    (
        torch.zeros(2, 4, dtype=torch.int64),
        InvalidRequest,
        r"query states of torch.int64; .*states.float\(\)",
    ),
    (torch.zeros(2, 4, dtype=torch.bool), InvalidRequest, "query states of torch.bool"),
    (torch.zeros(2, 4, dtype=torch.complex64), InvalidRequest, "query states of torch.complex64"),
    (torch.zeros(4), DimensionMismatch, r"shape \[4\]; use \[batch, encoder_dim\] \(states\[None\]"),
    (torch.zeros(2, 3, 4, 5), DimensionMismatch, r"shape \[2, 3, 4, 5\]"),
    (torch.zeros(2, 4, device="meta"), InvalidRequest, "on device meta; give a dense tensor with numbers"),
    (torch.eye(4).to_sparse(), InvalidRequest, "of layout torch.sparse_coo"),
    (torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), InvalidRequest, r"query state \[1\] has NaN or infinity"),
    (torch.tensor([[math.inf, 0.0]]), InvalidRequest, r"query state \[0\] has NaN or infinity"),
    (torch.tensor([[3e6, 4e6]]), InvalidRequest, r"query state \[0\] has length 5e\+06"),
]


@pytest.mark.parametrize(("states", "error", "message"), REFUSED)
def test_others_are_refused(states: Any, error: type[DsearchError], message: str) -> None:
    with pytest.raises(error, match=message):
        checked_states(states)


def test_a_transform_of_torch_is_refused() -> None:
    def squares(states: torch.Tensor) -> torch.Tensor:
        refuse_transforms(states)
        return (states**2).sum()

    states = torch.ones(2, 4)
    with pytest.raises(InvalidRequest, match=r"inside a transform of torch\.func"):
        torch.func.vmap(squares)(states)
    with pytest.raises(InvalidRequest, match=r"use torch\.autograd\.grad"):
        torch.func.grad(squares)(states)
    assert squares(states) == 8


def test_states_of_half_precision_are_measured_in_single_and_next_to_nothing_is_padding() -> None:
    long = torch.full((1, 4), 300.0, dtype=torch.float16)  # of which the squares are no half numbers
    assert torch.equal(checked_states(long), long)
    short = torch.tensor([[1e-19, 0.0], [1e-17, 0.0]])
    assert checked_states(short).tolist() == [[0.0, 0.0], short[1].tolist()]
