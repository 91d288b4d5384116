"""Rounded token states are near the states, and take the bytes that they are said to take."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.errors import CorruptData, InvalidRequest
from dsearch.index.tokens.codec import TokenCodec


@pytest.fixture(scope="module")
def states() -> np.ndarray:
    """Unit vectors of 32 numbers with unequal spread, as an encoder's states have."""
    drawn = np.random.default_rng(0).standard_normal((4000, 32)) * np.linspace(2, 0.2, 32)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("bits", "error"), [(8, 0.02), (4, 0.12)])
def test_rounding_moves_no_inner_product_far(states: np.ndarray, bits: int, error: float) -> None:
    codec = TokenCodec.fit(states, dims=24, bits=bits)
    projected = codec.projected(states[:500])
    codes = codec.codes(projected)
    assert codes.shape == (500, 24 * bits // 8)
    restored = codec.numbers(codes) * codec.steps
    assert np.abs(projected @ projected.T - projected @ restored.T).max() < error


def test_all_dimensions_keep_all_inner_products(states: np.ndarray) -> None:
    codec = TokenCodec.fit(states, dims=32, bits=8)
    projected = codec.projected(states[:100])
    np.testing.assert_allclose(projected @ projected.T, states[:100] @ states[:100].T, atol=1e-5)


def test_numbers_beyond_the_steps_are_clipped(states: np.ndarray) -> None:
    codec = TokenCodec.fit(states, dims=8, bits=4)
    numbers = codec.numbers(codec.codes(np.full((1, 8), 100, np.float32)))
    np.testing.assert_array_equal(numbers, np.full((1, 8), 7))
    numbers = codec.numbers(codec.codes(np.full((1, 8), -100, np.float32)))
    np.testing.assert_array_equal(numbers, np.full((1, 8), -7))


def test_fits_to_a_single_token_and_to_none(states: np.ndarray) -> None:
    for few in (states[:1], states[:0]):
        codec = TokenCodec.fit(few, dims=8, bits=4)
        assert np.isfinite(codec.projection).all()
        assert (codec.steps > 0).all()


def test_arrays_make_the_same_codec(states: np.ndarray) -> None:
    codec = TokenCodec.fit(states, dims=8, bits=4)
    again = TokenCodec.of_arrays(codec.arrays())
    np.testing.assert_array_equal(codec.codes(states[:9, :8]), again.codes(states[:9, :8]))


@pytest.mark.parametrize(
    "arrays", [{}, {"projection": np.zeros(3), "steps": np.zeros(3), "bits": np.ones(1)}]
)
def test_other_arrays_are_refused(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(CorruptData, match="projection of token states"):
        TokenCodec.of_arrays(arrays)


@pytest.mark.parametrize(("dims", "bits"), [(0, 4), (7, 4), (34, 4), (8, 5)])
def test_sizes_out_of_range_are_refused(states: np.ndarray, dims: int, bits: int) -> None:
    with pytest.raises(InvalidRequest, match="use"):
        TokenCodec.fit(states, dims=dims, bits=bits)


def test_the_dimensions_with_the_largest_spread_are_kept(states: np.ndarray) -> None:
    """They hold nearly all of the inner products; the others next to nothing of them."""
    inner = states[:100] @ states[:100].T
    projected = TokenCodec.fit(states, dims=24, bits=8).projected(states[:100])
    assert np.abs(projected @ projected.T - inner).max() < 0.15
