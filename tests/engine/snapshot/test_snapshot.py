"""Bounds of a snapshot: lengths of every embedding, and the rounding of its dense search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.snapshot.snapshot import Snapshot
from dsearch.types import Document


@pytest.fixture
def long(engine: SearchEngine) -> Collection:
    made = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    made.ingest([Document(f"d{n}", f"word{n} " * 40) for n in range(3)])
    made.upsert([Document("fresh", "apple " * 40)])
    return made


def scaled(snapshot: Snapshot, part: str, by: float) -> Snapshot:
    """The snapshot with one of its fresh embeddings of another length."""
    fresh = snapshot.fresh
    if part == "embeddings":
        return replace(snapshot, fresh=replace(fresh, embeddings=fresh.embeddings * np.float32(by)))
    passages = fresh.passages.embeddings.copy()
    passages[-1] *= by
    return replace(snapshot, fresh=replace(fresh, passages=replace(fresh.passages, embeddings=passages)))


@pytest.mark.parametrize("by", [0.25, 4.0])
@pytest.mark.parametrize("part", ["embeddings", "passages"])
def test_lengths_are_of_every_embedding(long: Collection, part: str, by: float) -> None:
    snapshot = long.snapshot
    assert len(snapshot.fresh.passages)
    assert snapshot.embedding_lengths() == pytest.approx((1.0, 1.0), abs=1e-5)
    shortest, longest = scaled(snapshot, part, by).embedding_lengths()
    assert (shortest, longest) == pytest.approx((min(by, 1.0), max(by, 1.0)), abs=1e-5)


def test_nothing_has_the_length_of_a_query(engine: SearchEngine) -> None:
    made = engine.create("empty")
    made.ingest([])
    assert made.snapshot.embedding_lengths() == (1.0, 1.0)


def test_embeddings_keys_and_rows_at_minus_one_are_none(long: Collection) -> None:
    snapshot = long.snapshot
    positions = np.array([[0, -1, snapshot.built]])
    assert snapshot.rows(positions)[0, 1] == -1
    embeddings = snapshot.embeddings(positions)
    assert embeddings.shape == (1, 3, 32)
    assert not embeddings[0, 1].any()
    np.testing.assert_array_equal(embeddings[0, 2], snapshot.fresh.embeddings[0])
    last = snapshot.positions + len(snapshot.passages) - 1  # type: ignore[arg-type]
    keys = snapshot.key_embeddings(np.array([-1, 0, last]))
    assert not keys[0].any()
    np.testing.assert_array_equal(keys[1], embeddings[0, 0])
    np.testing.assert_array_equal(keys[2], snapshot.fresh.passages.embeddings[-1])
    assert snapshot.positions_of(snapshot.rows(np.array([1, snapshot.built]))).tolist() == [1, snapshot.built]
    assert snapshot.positions_of(np.array([999])).tolist() == [-1]
