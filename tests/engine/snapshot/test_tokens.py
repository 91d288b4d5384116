"""Tokens of a snapshot: those of the generation and of fresh rows, where both are of one codec."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsearch.engine.snapshot import SnapshotTokens, same_codec
from dsearch.index.tokens import DocumentTokens, TokenCodec, TokenTable


@pytest.fixture(scope="module")
def codec() -> TokenCodec:
    states = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    return TokenCodec.fit(states, dims=8, bits=4)


def tokens(count: int) -> DocumentTokens:
    codes = np.full((count, 4), count, np.uint8)
    return DocumentTokens(codes, np.zeros((count, 2), np.int32))


@pytest.fixture
def both(codec: TokenCodec) -> SnapshotTokens:
    """Three documents of the generation, the second without tokens, and two fresh ones."""
    built = TokenTable.of(codec, [tokens(1), None, tokens(2)])
    of = SnapshotTokens.of(built, TokenTable.of(codec, [None, tokens(3)]), 3)
    assert of is not None
    return of


@pytest.mark.parametrize("positions", [[0, 2], [4], [2, -1, 4, 1, 0, 3], [-1], []])
def test_tokens_are_gathered_from_both_tables(both: SnapshotTokens, positions: list[int]) -> None:
    counts = {0: 1, 1: 0, 2: 2, 3: 0, 4: 3, -1: 0}
    gathered = both.gather(np.array(positions, np.int64))
    assert gathered.counts.tolist() == [counts[at] for at in positions]
    assert gathered.present.tolist() == [at in (0, 2, 4) for at in positions]
    assert gathered.codes[:, 0].tolist() == [counts[at] for at in positions for _ in range(counts[at])]
    for at in positions:
        assert (both.document(at) is None) == (at not in (0, 2, 4))


def test_one_table_alone_stands_for_its_side(codec: TokenCodec) -> None:
    table = TokenTable.of(codec, [tokens(1), tokens(2)])
    built, fresh = SnapshotTokens.of(table, None, 2), SnapshotTokens.of(None, table, 5)
    assert built is not None
    assert fresh is not None
    assert built.gather(np.array([1, 2, 3])).counts.tolist() == [2, 0, 0]
    assert fresh.gather(np.array([1, 5, 6, -1])).counts.tolist() == [0, 1, 2, 0]
    assert built.codec is fresh.codec is codec
    assert SnapshotTokens.of(None, None, 0) is None


@pytest.mark.parametrize("fresh", [False, True])
def test_a_table_without_a_document_has_a_codec(codec: TokenCodec, fresh: bool) -> None:
    empty = TokenTable.of(codec, [])
    of = SnapshotTokens.of(None if fresh else empty, empty if fresh else None, 0)
    assert of is not None
    assert of.codec is codec
    assert of.gather(np.array([-1])).counts.tolist() == [0]


def test_fresh_tokens_of_another_codec_are_left_out(codec: TokenCodec) -> None:
    built = TokenTable.of(codec, [tokens(1)])
    for other in (
        replace(codec, steps=codec.steps * 2),
        replace(codec, projection=codec.projection * 2),
    ):
        assert not same_codec(codec, other)
        mixed = SnapshotTokens.of(built, TokenTable.of(other, [tokens(2)]), 1)
        assert mixed is not None
        assert mixed.fresh is None
        assert mixed.gather(np.array([0, 1])).counts.tolist() == [1, 0]
    assert not same_codec(codec, replace(codec, bits=8))
    same = replace(codec, steps=codec.steps.copy())
    assert same_codec(codec, same)
    kept = SnapshotTokens.of(built, TokenTable.of(same, [tokens(2)]), 1)
    assert kept is not None
    assert kept.gather(np.array([0, 1])).counts.tolist() == [1, 2]
