"""Drift of the queries against those that the model was trained on."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from support.guarded import guarded

from dsearch.engine.models.training_record import (
    HALF_LIFE,
    LEAST,
    LearnedQueries,
    QueryDrift,
    query_statistics,
)
from dsearch.errors import CorruptData

checked = guarded(QueryDrift, "_model", "_lately")


def unit(draw: np.random.Generator, count: int, towards: int = 0, dimension: int = 16) -> np.ndarray:
    drawn = draw.standard_normal((count, dimension))
    drawn[:, towards] += 2
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def drift_of(asked: np.ndarray, trained: np.ndarray) -> float | None:
    drift = QueryDrift()
    drift.note("v1", asked)
    return drift.of("v1", query_statistics(trained))


def test_by_hand() -> None:
    """Training queries at ±1 around (0, 0) on one axis, asked ones all at (3, 0): the means are 3 apart."""
    trained = np.array([[1.0, 0.0], [-1.0, 0.0]] * 50, np.float32)
    asked = np.tile(np.float32([3.0, 0.0]), (LEAST, 1))
    assert drift_of(asked, trained) == pytest.approx(9 - 1 / 100)  # σ² = 1, s² = 0


def test_without_a_shift_it_is_nothing_and_with_one_it_grows() -> None:
    draw = np.random.default_rng(0)
    trained = unit(draw, 400)
    same = [drift_of(unit(draw, 100), trained) for _ in range(20)]
    other = unit(draw, 100, towards=1)
    half = np.concatenate([unit(draw, 50), unit(draw, 50, towards=1)])
    assert max(one for one in same if one is not None) < 0.02
    shifted, mixed = drift_of(other, trained), drift_of(half, trained)
    assert shifted is not None
    assert mixed is not None
    assert shifted > 0.2
    assert mixed == pytest.approx(shifted / 4, abs=0.03)  # half as far, and it is squared


def test_it_is_unbiased() -> None:
    """Without the noise taken off, a few queries would always look far away."""
    draw = np.random.default_rng(1)
    raw = []
    for _ in range(300):
        trained, asked = unit(draw, 60), unit(draw, 40)
        statistics = query_statistics(trained)
        raw.append(np.square(asked.mean(0) - trained.mean(0)).sum() / statistics["variance"])
    corrected = [drift_of(unit(draw, 40), unit(draw, 60)) for _ in range(300)]
    assert np.mean(raw) > 0.03
    told = [one for one in corrected if one is not None]
    assert float(np.median(told)) < 0.005
    assert min(told) == 0.0  # less than noise is none


def test_old_queries_are_forgotten() -> None:
    draw = np.random.default_rng(2)
    trained = query_statistics(unit(draw, 400))
    drift = QueryDrift()
    for _ in range(20):
        drift.note("v1", unit(draw, 100, towards=1))
    far = drift.of("v1", trained)
    drift.note("v1", unit(draw, HALF_LIFE))
    nearer = drift.of("v1", trained)
    for _ in range(100):
        drift.note("v1", unit(draw, 100))
    there = drift.of("v1", trained)
    assert far is not None
    assert nearer is not None
    assert there is not None
    assert far > nearer > there
    assert there < 0.01


def test_a_query_counts_half_after_the_half_life() -> None:
    """Worked out query by query: those of one call weigh the same, and all later ones make them fade."""
    draw, size = np.random.default_rng(7), 50
    calls = [unit(draw, size, towards=1), *(unit(draw, size) for _ in range(HALF_LIFE // size))]
    trained = query_statistics(unit(draw, 400))
    drift = QueryDrift()
    for states in calls:
        drift.note("v1", states)
    ages = [size * (len(calls) - 1 - number) for number in range(len(calls)) for _ in range(size)]
    weights = 0.5 ** (np.array(ages) / HALF_LIFE)
    assert weights[0] == pytest.approx(0.5)
    states = np.concatenate(calls).astype(np.float64)
    mean, square = (weights @ of / weights.sum() for of in (states, np.square(states).sum(1)))
    reference = np.frombuffer(base64.b64decode(trained["mean"]), "<f4")
    noise = (square - mean @ mean) * np.square(weights).sum() / weights.sum() ** 2
    noise += trained["variance"] / trained["count"]
    apart = np.square(mean - reference).sum()
    assert apart > noise
    assert drift.of("v1", trained) == pytest.approx((apart - noise) / trained["variance"], rel=1e-6)


def test_nothing_is_said_without_reason() -> None:
    draw = np.random.default_rng(3)
    trained = query_statistics(unit(draw, 50))
    drift = QueryDrift()
    drift.note("v1", unit(draw, LEAST - 1))
    assert drift.of("v1", trained) is None
    drift.note("v1", unit(draw, 1))
    assert drift.of("v1", trained) is not None
    assert drift.of("v2", trained) is None
    for unknown in (None, {}, query_statistics(unit(draw, 1)), query_statistics(np.zeros((0, 16)))):
        assert drift.of("v1", unknown) is None
    assert drift.of("v1", query_statistics(unit(draw, 50, dimension=8))) is None
    drift.note("v2", unit(draw, 5))  # another model answers now
    assert drift.of("v1", trained) is None
    assert drift.of("v2", trained) is None  # what the first was asked is not its own


def test_the_record_is_json() -> None:
    states = unit(np.random.default_rng(4), 20)
    kept: dict[str, Any] = json.loads(json.dumps(query_statistics(states)))
    assert kept["count"] == 20
    mean = np.frombuffer(base64.b64decode(kept["mean"]), "<f4")
    np.testing.assert_allclose(mean, states.mean(0, dtype=np.float64), rtol=1e-6)
    assert kept["variance"] == pytest.approx(1 - np.square(states.mean(0, dtype=np.float64)).sum(), abs=1e-6)


@pytest.mark.parametrize(
    "learned",
    [
        LearnedQueries(["honey", "music ☃", ""]),
        LearnedQueries([]),
        LearnedQueries(None, unit(np.random.default_rng(0), 3)),
        LearnedQueries(None, unit(np.random.default_rng(0), 0)),
    ],
    ids=["texts", "no texts", "embeddings", "no embeddings"],
)
def test_learned_queries_travel_as_bytes(learned: LearnedQueries) -> None:
    read = LearnedQueries.from_bytes(learned.to_bytes())
    assert read.texts == learned.texts
    np.testing.assert_array_equal(read.states, learned.states)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 40, LearnedQueries(None, np.ones((2, 4), np.float32)).to_bytes()[:-4], save({})],
    ids=["nothing", "zeros", "cut off", "neither texts nor embeddings"],
)
def test_a_damaged_record_of_learned_queries_is_named(content: bytes) -> None:
    with pytest.raises(CorruptData, match=r"lessons\.safetensors cannot be read"):
        LearnedQueries.from_bytes(content)


@pytest.mark.parametrize("texts", [["honey", "music"], None])
def test_records_of_earlier_releases_are_read(texts: list[str] | None) -> None:
    """They held how each query had moved the documents, too."""
    states = unit(np.random.default_rng(0), 2)
    grades = np.zeros(2, np.int64)
    tensors = {"states": states, "pulls": -states, "owners": grades, "rows": grades, "grades": np.ones(2)}
    read = LearnedQueries.from_bytes(save(tensors, None if texts is None else {"texts": json.dumps(texts)}))
    assert read.texts == texts
    np.testing.assert_array_equal(read.states, None if texts else states)  # type: ignore[arg-type]
