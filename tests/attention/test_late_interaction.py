"""The second stage's formulas against sums written out in plain Python, for NumPy arrays and for tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.arrays import numbers_of
from dsearch.attention.late_interaction import (
    FEATURES,
    LEAD,
    POWER,
    START_STRENGTH,
    FixedStage,
    Interactions,
    RerankerIdentity,
)
from dsearch.attention.retrieval.second_stage import SecondStage

DIMS = 3
COUNTS = [2, 0, LEAD + 2, 1, LEAD]
TENSORS = {
    "strength": np.array(0.4, np.float32),
    "feature_weights": np.linspace(-1, 1, len(FEATURES)).astype(np.float32),
    "reranker_weight": np.array(3.0, np.float32),
}
RERANKER = RerankerIdentity("some/model", "cross-encoder", "0" * 64)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / 2


def interactions() -> Interactions:
    weights = np.array([0.5, 2.0, 0.25, 1.0], np.float32)
    tokens = numbers(2, sum(COUNTS), DIMS)
    return Interactions(
        numbers(3, 4, DIMS), weights, tokens, np.array([0.5, 1.0, 2.0], np.float32), np.array(COUNTS)
    )


def stages() -> list[tuple[Any, Any]]:
    """The stage of arrays and that of tensors, with what makes their arguments."""
    fixed = FixedStage(TENSORS, reranker=RERANKER)
    learned = SecondStage(reranker=RERANKER)
    learned.load_state_dict({name: torch.tensor(tensor) for name, tensor in TENSORS.items()})
    return [(fixed, np.asarray), (learned, torch.as_tensor)]


def written_out(of: Interactions) -> dict[str, list[float]]:
    """sharp, sum and lead of each candidate, term by term."""
    all_weights = float(of.weights.sum())
    expected: dict[str, list[float]] = {"sharp": [], "sum": [], "lead": []}
    start = 0
    for count in COUNTS:
        tokens = of.tokens[start : start + count].astype(float) * of.steps
        start += count
        sharp = plain = lead = 0.0
        for state, weight in zip(of.query.astype(float), of.weights.tolist(), strict=True):
            matches = [float(state @ token) for token in tokens]
            best, first = max([0.0, *matches]), max([0.0, *matches[:LEAD]])
            sharp += weight * best**POWER / all_weights
            plain += weight * best / all_weights
            lead += weight * first**POWER / all_weights
        expected["sharp"].append(sharp)
        expected["sum"].append(plain)
        expected["lead"].append(lead)
    return expected


@pytest.mark.parametrize("kind", [0, 1])
def test_matches_are_the_sums_of_the_best_tokens(kind: int) -> None:
    stage, made = stages()[kind]
    of = interactions()
    matches = stage.matches(Interactions(*map(made, of)))
    for name, expected in written_out(of).items():
        came = numbers_of(getattr(matches, name)).tolist()
        assert came == pytest.approx(expected, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("kind", [0, 1])
def test_the_term_sums_match_and_features(kind: int) -> None:
    stage, made = stages()[kind]
    matches = stage.matches(Interactions(*map(made, interactions())))
    features = numbers(4, len(COUNTS), len(FEATURES))
    sharp = numbers_of(matches.sharp).astype(float)
    expected = 0.4 * sharp + features.astype(float) @ TENSORS["feature_weights"]
    came = numbers_of(stage.term(matches, made(features)))
    assert came.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)
    assert numbers_of(stage.reranked(np.array([2.0, -1.0]))).tolist() == [6.0, -3.0]


def test_equal_candidates_have_equal_terms() -> None:
    """Rounding does not depend on the place of a row."""
    stage, _ = stages()[0]
    matches = stage.matches(interactions())
    same = type(matches)(*(np.full(7, np.float32(0.3)) for _ in matches))
    features = np.tile(numbers(6, 1, len(FEATURES)), (7, 1))
    assert len(set(stage.term(same, features).tolist())) == 1


def test_a_stage_that_was_not_trained_is_the_plain_match() -> None:
    for stage in (FixedStage(), SecondStage()):
        assert float(numbers_of(stage.strength)) == START_STRENGTH == 0.75
        assert not stage.has_features
        assert stage.reranker_weight is None


def test_a_stage_with_features_says_so() -> None:
    assert all(stage.has_features for stage, _ in stages())


def test_tensors_that_are_missing_are_as_at_the_start() -> None:
    stage = FixedStage({"strength": np.array(0.1, np.float32)})
    assert stage.strength == np.float32(0.1)
    assert stage.feature_weights.tolist() == [0.0] * len(FEATURES)
