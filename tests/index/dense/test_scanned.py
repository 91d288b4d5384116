"""Keys in 8 bits with one unit: the nearest are among those returned, though products are rounded."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from dsearch.attention.memory_rows import in_eight_bits
from dsearch.index.dense import scanned
from dsearch.index.dense.scanned import SPARE, ScannedKeys


def drawn(count: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 10, 64])
def test_the_nearest_are_found_among_spare_ones(count: int) -> None:
    """Keys differ by less than a unit, so only spare ones make up for the rounding."""
    rows = drawn(1)[0] + 0.02 * drawn(400, seed=1)
    codes, scales = in_eight_bits(rows)
    keys = ScannedKeys(codes, scales)
    queries = drawn(20, seed=2)
    found = keys.nearest(queries, count)
    assert found.shape == (20, count + SPARE)
    products = queries @ (codes * scales[:, None]).T
    for line, products_of_query in zip(found, products, strict=True):
        assert len(set(line.tolist())) == count + SPARE
        assert np.argmax(products_of_query) in line


def test_few_keys_are_all_returned() -> None:
    codes, scales = in_eight_bits(drawn(5))
    keys = ScannedKeys(codes, scales)
    assert len(keys) == 5
    assert sorted(keys.nearest(drawn(1, seed=3), 3)[0].tolist()) == [0, 1, 2, 3, 4]


def test_keys_of_other_units_are_compared_in_one() -> None:
    """A short key has the same whole numbers as a long one of its direction."""
    codes = np.tile(np.array([[100, -50]], np.int8), (60, 1))
    scales = np.linspace(1, 60, 60).astype(np.float32)
    (best,) = ScannedKeys(codes, scales).nearest(np.array([[1.0, -1.0]], np.float32), 1)
    assert best[0] == 59
    assert set(best.tolist()) == set(range(60 - SPARE - 1, 60))


def test_a_query_of_zeros_and_keys_of_zeros_are_no_error() -> None:
    codes, scales = in_eight_bits(np.zeros((4, 3), np.float32))
    keys = ScannedKeys(codes, scales)
    assert sorted(keys.nearest(np.zeros((2, 3), np.float32), 4)[1].tolist()) == [0, 1, 2, 3]


def test_blocks_are_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scales = in_eight_bits(drawn(50))
    whole = ScannedKeys(codes, scales).nearest(drawn(3, seed=5), 5)
    monkeypatch.setattr(scanned, "_BLOCK", 7)
    assert np.array_equal(ScannedKeys(codes, scales).nearest(drawn(3, seed=5), 5), whole)


def test_a_copy_is_the_same_index() -> None:
    keys = ScannedKeys(*in_eight_bits(drawn(5)))
    assert copy.deepcopy([keys])[0] is keys
