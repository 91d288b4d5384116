"""Functions of arrays give the same for NumPy arrays as for tensors, and leave their arguments alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention import arrays

INF = math.inf
ROWS = [[0.5, -2.0, 3.0, 3.0, 0.0], [-INF, 1.0, -1.0, -INF, 2.0]]
INDEX = [[2, 0], [4, 4]]
MASK = [[True, False, False, True, False], [False, False, True, False, False]]

Make = Callable[[Any], Any]
# name → the call, with a function that makes an array or a tensor, and what it must give
CASES: dict[str, tuple[Callable[[Make], Any], Any]] = {
    "as_like": (lambda of: arrays.as_like(np.arange(3), of(ROWS)), [0.0, 1.0, 2.0]),
    "on_device_of": (lambda of: arrays.on_device_of(np.arange(3), of(ROWS)), [0, 1, 2]),
    "zeros": (lambda of: arrays.zeros((2, 1), of(ROWS)), [[0.0], [0.0]]),
    "all_true": (lambda of: arrays.all_true(of([1.0, 0.0])), [True, True]),
    "fill": (
        lambda of: arrays.fill(of(ROWS), of(MASK), -1.0),
        [[-1.0, -2.0, 3.0, -1.0, 0.0], [-INF, 1.0, -1.0, -INF, 2.0]],
    ),
    "concat": (
        lambda of: arrays.concat([of([[1.0], [2.0]]), of([[3.0], [4.0]])], 1),
        [[1.0, 3.0], [2.0, 4.0]],
    ),
    "stack": (lambda of: arrays.stack([of([1.0, 2.0]), of([3.0, 4.0])], 0), [[1.0, 2.0], [3.0, 4.0]]),
    "product": (
        lambda of: arrays.product(of([[1.0, 2.0]]), of([[3.0, 4.0], [5.0, -6.0]])),
        [[11.0, -7.0]],
    ),
    "broadcast": (lambda of: arrays.broadcast(of([1.0, 2.0]), (2, 2)), [[1.0, 2.0], [1.0, 2.0]]),
    "exp": (lambda of: arrays.exp(of([0.0, -INF])), [1.0, 0.0]),
    "log": (lambda of: arrays.log(of([1.0, 0.0])), [0.0, -INF]),
    "sigmoid": (lambda of: arrays.sigmoid(of([0.0, -1000.0, 1000.0])), [0.5, 0.0, 1.0]),
    "gelu": (lambda of: arrays.gelu(of([0.0, 1.0, -1.0])), [0.0, 0.841345, -0.158655]),
    "softmax": (lambda of: arrays.softmax(of([[0.0, math.log(3), -INF]]), 1), [[0.25, 0.75, 0.0]]),
    "softmax of the first axis": (lambda of: arrays.softmax(of([[0.0], [0.0]]), 0), [[0.5], [0.5]]),
    "softmax of large numbers": (lambda of: arrays.softmax(of([[1e4, 1e4]]), 1), [[0.5, 0.5]]),
    "logsumexp": (
        lambda of: arrays.logsumexp(of([[0.0, math.log(3)], [-INF, -INF], [1e4, -INF]]), 1),
        [math.log(4), -INF, 1e4],
    ),
    "gather": (lambda of: arrays.gather(of(ROWS), of(INDEX), 1), [[3.0, 0.5], [2.0, 2.0]]),
    "gather of one query": (lambda of: arrays.gather(of([[5.0, 6.0, 7.0]]), of([[2, 0]]), 1), [[7.0, 5.0]]),
    "gather of the first axis": (
        lambda of: arrays.gather(of([[1.0, 2.0], [3.0, 4.0]]), of([[1, 0]]), 0),
        [[3.0, 2.0]],
    ),
    "scatter": (lambda of: arrays.scatter(of([[1.0, 2.0]]), of([[3, 1]]), 4), [[0.0, 2.0, 0.0, 1.0]]),
    "put": (lambda of: arrays.put(of([1.0, 2.0, 3.0]), of([2, 0]), of([8.0, 9.0])), [9.0, 2.0, 8.0]),
    "repeat": (lambda of: arrays.repeat(of([1.0, 2.0, 3.0]), np.array([2, 0, 1])), [1.0, 1.0, 3.0]),
    "totals": (lambda of: arrays.totals(of([1.0, 2.0, 4.0]), of([2, 0, 2]), 4), [2.0, 0.0, 5.0, 0.0]),
    "largest_of_groups": (
        lambda of: arrays.largest_of_groups(of([[1.0, 5.0, -3.0], [2.0, -1.0, 4.0]]), of([2, 0, 1])),
        [[5.0, 0.0, 0.0], [2.0, 0.0, 4.0]],
    ),
    "largest_of_groups of none": (lambda of: arrays.largest_of_groups(of([[]]), of([0, 0])), [[0.0, 0.0]]),
    "places_of_largest": (lambda of: arrays.places_of_largest(of([[1.0, 5.0, 3.0]]), 2), [[1, 2]]),
    "places_of_largest of few": (lambda of: arrays.places_of_largest(of([[1.0, 5.0]]), 9), [[1, 0]]),
    "best_first": (lambda of: arrays.best_first(of(ROWS)), [[2, 3, 0, 4, 1], [4, 1, 2, 0, 3]]),
    "largest": (lambda of: arrays.largest(of(ROWS), 2), [[3.0, 3.0], [2.0, 1.0]]),
    "largest of all": (lambda of: arrays.largest(of([[1.0, 2.0]]), 2), [[2.0, 1.0]]),
    "largest of none": (lambda of: arrays.largest(of([[1.0, 2.0]]), 0), [[]]),
    "at_least": (lambda of: arrays.at_least(of([-1.0, 0.5, 2.0]), 0.5), [0.5, 0.5, 2.0]),
    "at_most": (lambda of: arrays.at_most(of([-1.0, 0.5, 2.0]), 0.5), [-1.0, 0.5, 0.5]),
    "keyword_part": (
        lambda of: arrays.keyword_part(of([2.0, -1.0]), of([[0.5, 0.25]])),
        [[[1.0, 0.5], [-0.5, -0.25]]],
    ),
    "length": (lambda of: arrays.length(of([[3.0, 4.0], [0.0, 0.0]])), [[5.0], [0.0]]),
    "numbers_of": (lambda of: arrays.numbers_of(of([1.0, 2.0])), [1.0, 2.0]),
}


def _typed(numbers: Any, floats: Any) -> np.ndarray:
    array = np.array(numbers)
    return array.astype(floats) if array.dtype.kind == "f" else array


@pytest.mark.parametrize("floats", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_both_kinds_give_what_is_written_here(name: str, floats: type) -> None:
    """Values, the type of the numbers, and the arguments, which stay as they were."""
    call, expected = CASES[name]
    for kind in (np.array, torch.tensor):
        given: list[tuple[Any, np.ndarray]] = []

        def made(numbers: Any, kind: Any = kind, given: list[Any] = given) -> Any:
            array = kind(_typed(numbers, floats))
            given.append((array, _typed(numbers, floats)))
            return array

        result = call(made)
        came = np.asarray(arrays.numbers_of(result))
        wanted = _typed(expected, floats)
        assert came.dtype == wanted.dtype, (kind, came.dtype)
        np.testing.assert_allclose(came, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{name} by {kind}")
        assert arrays.is_array(result) == (kind is np.array or name == "numbers_of")
        for array, before in given:
            np.testing.assert_array_equal(arrays.numbers_of(array), before, err_msg="an argument was changed")


@pytest.mark.parametrize("size", [10, 256, 257, 1000])
@pytest.mark.parametrize("count", [1, 7, 256])
def test_the_places_of_the_largest_lead_to_them_in_order(size: int, count: int) -> None:
    """Below some 256 numbers all are sorted, above only those that are kept."""
    numbers = np.random.default_rng(size).permutation(size).astype(np.float32)[None]
    places = arrays.places_of_largest(numbers, count)
    assert numbers[0, places[0]].tolist() == sorted(numbers[0].tolist(), reverse=True)[:count]
    by_torch = arrays.places_of_largest(torch.as_tensor(numbers), count)
    assert places.tolist() == by_torch.tolist()


def test_what_is_a_tensor_and_what_an_array() -> None:
    assert arrays.is_array(np.zeros(1))
    assert arrays.is_array(np.float32(1))
    assert not arrays.is_array(torch.zeros(1))
    assert not arrays.is_array([1.0])
    assert arrays.is_tensor(torch.zeros(1))
    assert not arrays.is_tensor(np.zeros(1))


def test_gradients_are_enabled_and_left_out_where_it_is_said() -> None:
    assert arrays.gradients_enabled()
    with arrays.without_gradients():
        assert not arrays.gradients_enabled()
        assert not torch.is_inference_mode_enabled()
    with arrays.inference():
        assert torch.is_inference_mode_enabled()
    assert arrays.gradients_enabled()


def test_numbers_of_a_tensor_with_a_graph() -> None:
    assert arrays.numbers_of(torch.ones(2, requires_grad=True) * 2).tolist() == [2.0, 2.0]


def test_the_order_has_no_gradient_and_equal_numbers_keep_theirs() -> None:
    tied = torch.zeros(1, 300, requires_grad=True)
    assert arrays.best_first(tied).tolist() == [[*range(300)]]
    assert arrays.best_first(np.zeros((1, 300))).tolist() == [[*range(300)]]
