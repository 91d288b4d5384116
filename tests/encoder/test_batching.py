"""Batches of texts of similar length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dsearch.encoder.text_encoder import length_sorted_batches

LENGTHS = np.random.default_rng(0).integers(1, 60, size=50)


@pytest.mark.parametrize("tokens", [None, 1, 64, 200, 10_000])
@pytest.mark.parametrize("size", [1, 7, 50, 64])
def test_each_text_is_in_one_batch_within_both_bounds(size: int, tokens: int | None) -> None:
    batches = list(length_sorted_batches(LENGTHS, size, tokens=tokens))
    assert sorted(np.concatenate(batches).tolist()) == list(range(50))
    for batch in batches:
        assert 1 <= len(batch) <= size
        assert tokens is None or len(batch) == 1 or len(batch) * LENGTHS[batch].max() <= tokens
        assert (np.diff(LENGTHS[batch]) >= 0).all()
    ranges = sorted((LENGTHS[batch].min(), LENGTHS[batch].max()) for batch in batches)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))


def test_batches_are_filled_from_the_longest_down() -> None:
    batches = list(length_sorted_batches(np.arange(1, 11), 4))
    assert sorted(len(batch) for batch in batches) == [2, 4, 4]
    assert [0, 1] in [batch.tolist() for batch in batches]
    bounded = list(length_sorted_batches(np.array([2, 5, 10, 3]), 4, tokens=20))
    assert sorted(batch.tolist() for batch in bounded) == [[0, 3], [1, 2]]


def test_the_order_is_random_and_that_of_its_seed() -> None:
    def longest(**seed: int) -> list[int]:
        return [int(LENGTHS[batch].max()) for batch in length_sorted_batches(LENGTHS, 4, **seed)]

    assert longest() == longest(seed=0)
    assert longest(seed=1) != longest(seed=0)
    assert longest() not in (sorted(longest()), sorted(longest(), reverse=True))


def test_empty_texts_and_no_texts() -> None:
    assert [batch.tolist() for batch in length_sorted_batches(np.zeros(3, np.int64), 5, tokens=2)] == [
        [1, 2],
        [0],
    ]
    assert [len(batch) for batch in length_sorted_batches(np.zeros(0, np.int64), 5)] == []
