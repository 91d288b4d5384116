"""Blocks of a corpus: each row once, no row beyond the last, and gradients of a bias block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.blockwise.blocks import Corpus, LearnedBias

KEYS = np.arange(14, dtype=np.float32).reshape(7, 2)


def corpus(bias: Any = None, values: Any = None, keys: Any = KEYS, block_size: int = 3) -> Corpus:
    return Corpus(keys, values, bias, block_size, torch.float64, torch.device("cpu"))


def test_blocks_hold_each_row_once_and_end_with_the_corpus() -> None:
    blocks = list(corpus().blocks())
    assert [(rows.start, rows.stop) for rows, *_ in blocks] == [(0, 3), (3, 6), (6, 7)]
    for rows, keys, values in blocks:
        assert keys.dtype == torch.float64
        assert torch.equal(keys, torch.as_tensor(KEYS[rows]).double())
        assert values is keys
    assert list(corpus(keys=KEYS[:0]).blocks()) == []


def test_a_block_is_a_copy_without_a_gradient() -> None:
    keys = torch.as_tensor(KEYS).requires_grad_()
    assert not any(block.requires_grad for _, block, _ in corpus(keys=keys).blocks())
    alike = Corpus(KEYS, None, None, 3, torch.float32, torch.device("cpu"))  # nothing to convert
    for of in (corpus(), alike):
        _, block, _ = next(of.blocks())
        block += 1
        assert KEYS[0, 0] == 0


def test_values_are_those_of_the_blocks_rows() -> None:
    values = KEYS[:, :1] * 10
    taken = [block for _, _, block in corpus(values=values).blocks()]
    assert torch.equal(torch.cat(taken), torch.as_tensor(values).double())
    assert corpus(values=values).value_dim == 1
    assert corpus().value_dim == 2


@pytest.mark.parametrize("kind", ["none", "tensor", "function"])
def test_logits_are_products_and_the_bias_of_the_block(kind: str) -> None:
    queries = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    matrix = torch.randn(2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    asked: list[tuple[int, int]] = []

    def function(start: int, stop: int, factor: torch.Tensor) -> torch.Tensor:
        asked.append((start, stop))
        return matrix[:, start:stop] * factor

    bias: Any = {"none": None, "tensor": matrix, "function": function}[kind]
    added = {"none": 0.0, "tensor": 1.0, "function": 3.0}[kind]
    parameters = [torch.tensor(3.0, dtype=torch.float64)]
    whole = corpus(bias)
    parts = [whole.logits(queries, keys, rows, parameters) for rows, keys, _ in whole.blocks()]
    expected = queries @ torch.as_tensor(KEYS).double().T + added * matrix
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    assert asked == ([(0, 3), (3, 6), (6, 7)] if kind == "function" else [])


def test_gradients_of_a_bias_add_up_over_blocks() -> None:
    first, second, still = torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([5.0])

    def bias(start: int, stop: int, *parameters: torch.Tensor) -> torch.Tensor:
        one, other, third = parameters
        places = torch.arange(start, stop, dtype=torch.float32)
        return (one * places + other + third)[None]  # broadcasts over the batch

    learned = LearnedBias(corpus(bias), [first, second, still], [True, True, False])
    assert learned.wanted
    for rows in (slice(0, 3), slice(3, 7)):
        learned.add(rows, torch.ones(2, rows.stop - rows.start, dtype=torch.float64))
    assert [None if of is None else of.tolist() for of in learned.grads] == [[42.0], [14.0], None]


def test_a_bias_without_parameters_to_learn_is_not_called() -> None:
    def bias(*given: object) -> torch.Tensor:
        raise AssertionError

    learned = LearnedBias(corpus(bias), [torch.ones(1)], [False])
    assert not learned.wanted
    learned.add(slice(0, 3), torch.ones(1, 3))
    assert learned.grads == [None]
    of_tensor = LearnedBias(corpus(torch.ones(1, 7)), [torch.ones(1)], [True])
    of_tensor.add(slice(0, 3), torch.ones(1, 3))
    assert of_tensor.grads[0] is not None
    assert of_tensor.grads[0].tolist() == [0.0]


def test_a_bias_that_depends_on_nothing_has_zero_gradients() -> None:
    learned = LearnedBias(
        corpus(lambda start, stop, _: torch.zeros(1, stop - start)), [torch.ones(1)], [True]
    )
    learned.add(slice(0, 3), torch.ones(1, 3))
    assert learned.grads[0] is not None
    assert learned.grads[0].tolist() == [0.0]
