"""Bounds of a snapshot: lengths of every embedding, and the rounding of its dense search."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.snapshot import Snapshot
from dsearch.errors import DimensionMismatch
from dsearch.types import Document


@pytest.fixture
def long(engine: SearchEngine) -> Collection:
    made = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    made.ingest([Document(f"d{n}", f"word{n} " * 40) for n in range(3)])
    made.upsert([Document("fresh", "apple " * 40)])
    return made


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


def test_one_further_passage_of_a_new_document_is_searched(long: Collection, encoder: HashingEncoder) -> None:
    long.refresh()
    long.upsert([Document("two", " ".join(f"w{n}" for n in range(16)) + " needle pin")])
    snapshot = long.snapshot
    assert (len(snapshot.fresh), len(snapshot.fresh.passages)) == (1, 1)
    state = encoder.encode_queries(["needle pin"])
    first, further = snapshot.fresh.embeddings[0], snapshot.fresh.passages.embeddings[0]
    assert float(state[0] @ further) > float(state[0] @ first)
    scores = snapshot.dense_scores(state)
    assert scores is not None
    assert scores[0, -1] == pytest.approx(float(state[0] @ further))
    assert snapshot.dense_candidates(state, 1)[0].tolist()[-1] == snapshot.built


def test_queries_are_turned_by_an_inverse_in_full_precision(long: Collection) -> None:
    """Of a projection as ill-conditioned as is allowed, float32 loses three of its seven digits."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((32, 32)))[0] for _ in range(2))
    generation = copy.copy(long.snapshot.generation)
    generation.key_projection = ((left * np.geomspace(1, 1e-3, 32)) @ right).astype(np.float32)
    turned = Snapshot.of(generation, long.snapshot.fresh, np.zeros(0, np.int64), 9)
    assert turned.unfold is not None
    wanted = np.linalg.inv(generation.key_projection.astype(np.float64))
    np.testing.assert_allclose(turned.unfold, wanted, rtol=1e-6)
    generation.key_projection = generation.key_projection[:16]
    with pytest.raises(DimensionMismatch, match="has keys of 16 numbers for embeddings of 32; only square"):
        Snapshot.of(generation, long.snapshot.fresh, np.zeros(0, np.int64), 9)
