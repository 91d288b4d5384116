"""Tokens on disk: in a folder of a generation, and in the file beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import CorruptData
from dsearch.index.tokens.codec import TokenCodec
from dsearch.index.tokens.spool import TokenSpool
from dsearch.index.tokens.table import DocumentTokens, TokenTable, write_tokens

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


def test_the_spool_gives_what_it_was_given(tmp_path: Path, codec: TokenCodec) -> None:
    spool = TokenSpool(tmp_path)
    assert spool.codec is None
    assert not spool.path.exists()
    spool.begin(codec)
    spool.put({7: tokens(2), 9: tokens(0)})
    spool.close()
    again = TokenSpool(tmp_path)
    assert again.codec is not None
    np.testing.assert_array_equal(again.codec.projection, codec.projection)
    found = again.get([5, 7, 9])
    assert sorted(found) == [7, 9]
    np.testing.assert_array_equal(found[7].codes, tokens(2).codes)
    again.forget([7])
    assert again.rows().tolist() == [9]


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
