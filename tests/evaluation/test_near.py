"""Evidence of two stages, and queries whose answer is missing."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.errors import CorruptData
from dsearch.evaluation.logistic import Logistic
from dsearch.evaluation.near import (
    FEWEST,
    NEAR_EVIDENCE,
    NearCalibration,
    StageScores,
    calibrate_near,
    near_evidence,
)

PLACE = {name: at for at, name in enumerate(NEAR_EVIDENCE)}


def scores_of(first: list[list[float]], match: list[list[float]]) -> StageScores:
    """Candidates whose parts are alike; a score of −1 is padding."""
    scores, matches = np.array(first), np.array(match)
    present = scores >= 0
    weights = [np.array([1.0, 3.0], np.float32)] * len(scores)
    return StageScores(scores, scores / 2, scores / 4, matches, matches / 2, matches / 3, present, weights)


def test_evidence_by_hand() -> None:
    rows = near_evidence(scores_of([[0.4, 0.8, -1.0]], [[0.9, 0.3, 7.0]]), 1.0)
    (row,) = rows
    assert row[PLACE["score"]] == pytest.approx(0.8)
    assert row[PLACE["score_lead"]] == pytest.approx(0.4)
    assert row[PLACE["score_height"]] == pytest.approx(1.0, abs=1e-4)
    assert row[PLACE["dense"]] == pytest.approx(0.4)
    assert row[PLACE["keyword"]] == pytest.approx(0.2)
    assert row[PLACE["match"]] == pytest.approx(0.9)
    assert row[PLACE["coverage_lead"]] == pytest.approx(0.3)
    assert row[PLACE["first_tokens"]] == pytest.approx(0.3)  # of the first by both: .4 + .9
    assert row[PLACE["total_lead"]] == pytest.approx(0.2)
    share = 1 / (1 + np.exp(-0.2 / 0.05))
    assert row[PLACE["share"]] == pytest.approx(share)
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert row[PLACE["entropy"]] == pytest.approx(entropy / np.log(2))
    assert row[PLACE["tokens"]] == pytest.approx(np.log(2))
    assert row[PLACE["idf"]] == pytest.approx(np.log(4))
    assert row[PLACE["largest_idf"]] == 3.0


def test_no_candidate_and_a_single_one_are_finite() -> None:
    rows = near_evidence(scores_of([[-1.0, -1.0], [0.5, -1.0]], [[0.0, 0.0], [0.2, 0.0]]), 1.0)
    assert np.isfinite(rows).all()
    assert not rows[0].any()
    assert rows[1, PLACE["score_lead"]] == 0.0


def test_a_fit_tells_missing_answers_apart() -> None:
    chance = np.random.default_rng(0)
    answered = chance.normal(size=(200, len(NEAR_EVIDENCE)))
    without = chance.normal(size=(200, len(NEAR_EVIDENCE)))
    answered[:, PLACE["match"]] += 3
    near = calibrate_near(answered, without)
    assert near is not None
    assert near.refused(answered).mean() == pytest.approx(0.03, abs=0.01)
    assert near.refused(without).mean() > 0.7
    assert NearCalibration.from_dict(near.to_dict()) == near
    few = FEWEST - 1
    assert calibrate_near(answered[:few], without[:few]) is None
    with pytest.raises(CorruptData, match="another release"):
        NearCalibration.from_dict({**near.to_dict(), "evidence": ["score"]})


def test_the_fewest_answered_queries_suffice() -> None:
    answered = np.random.default_rng(0).normal(size=(FEWEST, len(NEAR_EVIDENCE)))
    near = calibrate_near(answered, answered - 5)
    assert near is not None
    assert near.queries == FEWEST
    assert near.fits(answered - 5).max() < 0.05  # none of them was fitted as answered
    assert near.fits(answered).min() > 0.95


def test_the_lead_is_over_the_next_nine() -> None:
    first = [[0.9, *[0.5] * 9, 0.1, 0.1]]
    (row,) = near_evidence(scores_of(first, [[0.0] * 12]), 1.0)
    assert row[PLACE["score_lead"]] == pytest.approx(0.4)


def test_the_first_by_both_stages_is_by_the_strength_and_a_threshold_is_not_below_itself() -> None:
    of = scores_of([[0.8, 0.4]], [[0.3, 0.9]])
    first = [near_evidence(of, strength)[0, PLACE["first_tokens"]] for strength in (0.5, 1.0)]
    assert first == pytest.approx([0.1, 0.3])  # a third of the match: .8 + .15 leads, .4 + .9 leads
    zeros = np.zeros((1, len(NEAR_EVIDENCE)))
    half = Logistic([0.0], [1.0], [0.0], 0.0)
    assert not NearCalibration(half, threshold=0.5, queries=FEWEST).refused(zeros).any()
