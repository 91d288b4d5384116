"""Tokens on disk: in a folder of a generation, and in the file beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import CorruptData, InvalidRequest
from dsearch.index.token_spool import TokenSpool
from dsearch.index.tokens import DocumentTokens, TokenCodec, TokenTable, write_tokens

WIDTH = 4


@pytest.fixture(scope="module")
def codec() -> TokenCodec:
    states = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    return TokenCodec.fit(states, dims=8, bits=4)


def tokens(count: int) -> DocumentTokens:
    """Some tokens, different for each count."""
    codes = (np.arange(count * WIDTH) + count).astype(np.uint8).reshape(count, WIDTH)
    spans = np.stack([np.arange(count), np.arange(count) + 1], axis=1).astype(np.int32)
    return DocumentTokens(codes, spans)


DOCUMENTS = [tokens(3), None, tokens(0), tokens(5)]


def test_a_folder_is_read_as_it_was_written(tmp_path: Path, codec: TokenCodec) -> None:
    assert write_tokens(tmp_path / "tokens", codec, iter(DOCUMENTS)) == 4
    table = TokenTable.load(tmp_path / "tokens", 4)
    for position, written in enumerate(DOCUMENTS):
        read = table.document(position)
        assert (read is None) == (written is None)
        if read is not None and written is not None:
            np.testing.assert_array_equal(read.codes, written.codes)
            np.testing.assert_array_equal(read.spans, written.spans)


def test_candidates_are_gathered_in_their_order(codec: TokenCodec) -> None:
    gathered = TokenTable.of(codec, DOCUMENTS).gather(np.array([3, -1, 1, 0, 2]))
    np.testing.assert_array_equal(gathered.counts, [5, 0, 0, 3, 0])
    np.testing.assert_array_equal(gathered.present, [True, False, False, True, True])
    np.testing.assert_array_equal(gathered.codes, np.concatenate([tokens(5).codes, tokens(3).codes]))


def test_an_extended_table_equals_one_of_all(codec: TokenCodec) -> None:
    whole = TokenTable.of(codec, DOCUMENTS)
    parts = TokenTable.of(codec, DOCUMENTS[:1]).extended(DOCUMENTS[1:])
    np.testing.assert_array_equal(whole.codes, parts.codes)
    np.testing.assert_array_equal(whole.offsets, parts.offsets)
    np.testing.assert_array_equal(whole.present, parts.present)


@pytest.mark.parametrize("name", ["offsets", "codes", "spans", "present", "projection"])
def test_files_that_do_not_fit_are_refused(tmp_path: Path, codec: TokenCodec, name: str) -> None:
    write_tokens(tmp_path / "tokens", codec, DOCUMENTS)
    path = tmp_path / "tokens" / f"{name}.npy"
    np.save(path, np.load(path)[1:])
    with pytest.raises(CorruptData):
        TokenTable.load(tmp_path / "tokens", 4)


def test_a_damaged_row_counts_as_missing(tmp_path: Path, codec: TokenCodec) -> None:
    spool = TokenSpool(tmp_path)
    spool.begin(codec)
    spool.put({1: tokens(4), 2: tokens(4)})
    with spool._open() as connection:
        connection.execute("UPDATE tokens SET codes = zeroblob(16) WHERE row = 1")
    assert sorted(spool.get([1, 2])) == [2]


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokens.db").write_bytes(b"no database, but long enough to be looked at" * 50)
    with pytest.raises(CorruptData, match="move it away"):
        TokenSpool(tmp_path).codec


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("offsets", [0, 5, 3, 3, 8]),
        ("offsets", [0, 3, 3, 3, 9]),
        ("offsets", [0, 3, 3, 8]),
        ("present", [True, False, True]),
        ("present", [1, 0, 1, 1]),
        ("spans", np.zeros((7, 2), np.int32)),
        ("spans", np.zeros((8, 2), np.int64)),
        ("codes", np.zeros((8, WIDTH + 1), np.uint8)),
        ("codes", np.zeros((8, WIDTH), np.int8)),
    ],
)
def test_files_that_do_not_fit_each_other_are_damaged(
    tmp_path: Path, codec: TokenCodec, name: str, changed: object
) -> None:
    folder = tmp_path / "tokens"
    write_tokens(folder, codec, iter(DOCUMENTS))
    assert len(TokenTable.load(folder, 4)) == 4
    np.save(folder / f"{name}.npy", np.array(changed))
    with pytest.raises(CorruptData, match="its files do not fit each other; build the generation again"):
        TokenTable.load(folder, 4)


def test_tokens_are_gathered_in_order_and_none_at_padding(codec: TokenCodec) -> None:
    table = TokenTable.of(codec, DOCUMENTS)
    gathered = table.gather(np.array([3, -1, 1, 0, 2]))
    assert gathered.counts.tolist() == [5, 0, 0, 3, 0]
    assert gathered.present.tolist() == [True, False, False, True, True]
    assert gathered.codes.tolist() == [*tokens(5).codes.tolist(), *tokens(3).codes.tolist()]
    empty = TokenTable.of(codec, []).gather(np.array([-1, -1]))
    assert (empty.codes.shape, empty.counts.tolist(), empty.present.tolist()) == (
        (0, WIDTH),
        [0, 0],
        [False, False],
    )


def test_a_table_grows_behind_its_documents(codec: TokenCodec) -> None:
    grown = TokenTable.of(codec, DOCUMENTS[:2]).extended(DOCUMENTS[2:])
    whole = TokenTable.of(codec, DOCUMENTS)
    for name in ("offsets", "codes", "spans", "present"):
        np.testing.assert_array_equal(getattr(grown, name), getattr(whole, name), err_msg=name)


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
