"""Tokens beside the generations: what is put, damaged, forgotten, and begun again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.guarded import guarded

from dsearch.errors import CorruptData
from dsearch.index import token_spool as module
from dsearch.index.token_spool import TokenSpool
from dsearch.index.tokens import DocumentTokens, TokenCodec

checked = guarded(TokenSpool, "_connection")


@pytest.fixture(scope="module")
def codec() -> TokenCodec:
    states = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    return TokenCodec.fit(states, dims=8, bits=4)


@pytest.fixture
def spool(tmp_path: Path, codec: TokenCodec) -> Iterator[TokenSpool]:
    opened = TokenSpool(tmp_path)
    opened.begin(codec)
    yield opened
    opened.close()


def tokens(count: int) -> DocumentTokens:
    spans = np.stack([np.arange(count), np.arange(count) + 2], axis=1).astype(np.int32)
    return DocumentTokens(np.full((count, 4), count, np.uint8), spans)


def test_without_a_file_there_is_nothing_and_reading_makes_none(tmp_path: Path) -> None:
    spool = TokenSpool(tmp_path)
    assert (spool.codec, spool.get([1]), spool.rows().tolist()) == (None, {}, [])
    spool.forget([1])
    assert list(tmp_path.iterdir()) == []


def test_rows_are_read_back_by_another_and_replaced(
    spool: TokenSpool, codec: TokenCodec, tmp_path: Path
) -> None:
    spool.put({7: tokens(2), 3: tokens(0), 5: tokens(1)})
    spool.put({5: tokens(3)})
    spool.put({})
    other = TokenSpool(tmp_path)
    assert other.rows().tolist() == [3, 5, 7]
    read = other.get(np.array([7, 9, 3, 5]))
    assert {row: len(of.codes) for row, of in read.items()} == {3: 0, 5: 3, 7: 2}
    assert read[7].codes.tolist() == tokens(2).codes.tolist()
    assert (read[7].spans.tolist(), read[7].spans.dtype) == ([[0, 2], [1, 3]], np.int32)
    assert other.codec is not None
    np.testing.assert_array_equal(other.codec.projection, codec.projection)
    np.testing.assert_array_equal(other.codec.steps, codec.steps)
    assert other.codec.bits == codec.bits
    other.close()


def test_many_rows_are_read_in_parts(spool: TokenSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_A_TIME", 2)
    spool.put({row: tokens(1) for row in range(5)})
    assert sorted(spool.get(range(5))) == [0, 1, 2, 3, 4]


def test_forgotten_rows_are_gone_and_a_new_codec_begins_anew(spool: TokenSpool, codec: TokenCodec) -> None:
    spool.put({row: tokens(1) for row in (1, 2, 3)})
    spool.forget(iter([np.int64(1), 3, 9]))
    assert spool.rows().tolist() == [2]
    spool.begin(codec)
    assert spool.rows().tolist() == []


@pytest.mark.parametrize(
    "change",
    [
        *("codes = x'00'", "codes = zeroblob(length(codes))", "codes = zeroblob(8)"),
        *("spans = x''", "spans = zeroblob(length(spans))", "digest = x'00'"),
    ],
)
def test_a_row_that_is_not_what_was_put_is_none(spool: TokenSpool, tmp_path: Path, change: str) -> None:
    spool.put({1: tokens(2), 2: tokens(2)})
    spool.close()
    connection = sqlite3.connect(tmp_path / "tokens.db")
    connection.execute(f"UPDATE tokens SET {change} WHERE row = 1")
    connection.commit()
    connection.close()
    assert list(spool.get([1, 2])) == [2]


def test_a_file_of_another_format_or_none_is_refused(tmp_path: Path, codec: TokenCodec) -> None:
    connection = sqlite3.connect(tmp_path / "tokens.db")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(CorruptData, match="format 2; this release reads 1"):
        TokenSpool(tmp_path).begin(codec)
    (tmp_path / "tokens.db").write_bytes(b"no database" * 100)
    with pytest.raises(CorruptData):
        _ = TokenSpool(tmp_path).codec


def test_an_error_of_the_disk_is_no_damage(spool: TokenSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever moved the file away would lose the second stage for a lock or a full disk."""

    def locked() -> sqlite3.Connection:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(spool, "_open", locked)
    for ask in (spool.rows, lambda: spool.put({1: tokens(1)}), lambda: spool.get([1])):
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            ask()
