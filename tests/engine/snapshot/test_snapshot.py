"""Bounds of a snapshot: lengths of every embedding, and the rounding of its dense search."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.options import KeyOptions
from dsearch.engine.snapshot.snapshot import Snapshot, _shortest_and_longest
from dsearch.errors import DimensionMismatch
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


def test_lengths_are_of_all_blocks() -> None:
    rows = np.ones((65_600, 1), np.float32)
    rows[[3, 4]] = [[0.5], [2.0]]
    assert _shortest_and_longest(rows) == (0.5, 2.0)
    assert _shortest_and_longest(rows[::-1]) == (0.5, 2.0)


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
    assert turned.dense_rounding == 1e-3
    generation.key_projection = generation.key_projection[:16]
    with pytest.raises(DimensionMismatch, match="has keys of 16 numbers for embeddings of 32; only square"):
        Snapshot.of(generation, long.snapshot.fresh, np.zeros(0, np.int64), 9)


@pytest.mark.parametrize(("kind", "rounding"), [("Flat", 1e-5), ("SQfp16", None), ("SQ8", None)])
def test_only_exact_keys_have_a_bound_on_their_rounding(
    engine: SearchEngine, kind: str, rounding: float | None
) -> None:
    made = engine.create("kinds", keys=KeyOptions(kind))
    made.upsert([Document("a", "apple")])
    assert made.snapshot.built == 0
    assert made.snapshot.dense_rounding == 1e-5  # new documents are compared as they are
    made.refresh()
    assert made.snapshot.dense_rounding == rounding
