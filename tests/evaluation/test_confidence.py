"""The estimate of whether a first hit is right: its evidence by hand, its fit where the truth is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dsearch.errors import CorruptData, InvalidRequest
from dsearch.evaluation import (
    auroc,
    brier_score,
    confidence,
    debiased_calibration_error,
)
from dsearch.evaluation.confidence import (
    EVIDENCE,
    FEWEST_JUDGED,
    AnsweredQueries,
    Calibration,
    Estimate,
    Logistic,
    calibrate,
    evidence_rows,
    fit_logistic,
)


def test_the_evidence_by_hand() -> None:
    scores = np.array([[0.9, 0.5, 0.4], [0.7, 0.0, 0.0], [0.0, 0.0, 0.0]])
    keyword = np.array([[0.3, 0.4, 0.0], [0.2, 0.0, 0.0], [0.0, 0.0, 0.0]])
    weights = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    present = np.array([[True, True, True], [True, False, False], [False, False, False]])
    rows = evidence_rows(scores, scores - keyword, keyword, weights, present)
    first = dict(zip(EVIDENCE, rows[0], strict=True))
    assert first["score"] == pytest.approx(0.9)
    assert first["gap"] == pytest.approx(0.4)
    assert first["lead"] == pytest.approx(0.9 - 0.45)
    assert first["share"] == 0.5
    assert first["entropy"] == pytest.approx(1.5 * np.log(2) / np.log(3))
    assert first["dense_behind"] == pytest.approx(0.0)
    assert first["keyword_behind"] == pytest.approx(0.1)
    assert first["agreement"] == pytest.approx(2 / 3)  # the third has no word of the query
    assert first["null"] == 0  # its place stays: calibrations count evidence by position
    assert first["unmatched"] == 0
    assert first["similarity"] == pytest.approx((0.6 + 0.1 + 0.4) / 3)
    assert first["similarity_gap"] == pytest.approx(0.2)
    assert first["similarity_lead"] == pytest.approx(0.5)  # over the last, of three
    alone = dict(zip(EVIDENCE, rows[1], strict=True))
    assert (alone["gap"], alone["entropy"], alone["keyword_behind"]) == (0.7, 0.0, 0.0)
    assert not rows[2].any()
    none = np.zeros((2, 0))
    assert evidence_rows(none, none, none, none, none.astype(bool)).shape == (2, len(EVIDENCE))


def test_a_fit_finds_the_probabilities_that_made_the_data() -> None:
    draw = np.random.default_rng(0)
    rows = np.column_stack([draw.normal(size=(4000, 2)), np.ones(4000)])
    truth = 1 / (1 + np.exp(-(1.5 * rows[:, 0] - rows[:, 1] + 0.5)))
    right = draw.uniform(size=4000) < truth
    fitted = fit_logistic(rows[:2000], right[:2000])
    likely = fitted(rows[2000:])
    assert np.abs(likely - truth[2000:]).mean() < 0.02
    assert debiased_calibration_error(likely, right[2000:]) < 0.04
    assert auroc(likely, right[2000:]) > 0.8
    base = right[2000:].mean()
    assert brier_score(likely, right[2000:]) < base * (1 - base)
    with pytest.raises(InvalidRequest, match="give some of both kinds"):
        fit_logistic(rows, np.ones(4000, bool))


def test_chance_is_taken_out_of_the_calibration_error() -> None:
    draw = np.random.default_rng(1)
    plain, corrected = [], []
    for _ in range(200):
        likely = np.sort(draw.uniform(size=100))
        right = draw.uniform(size=100) < likely
        bins = zip(likely.reshape(10, 10).mean(1), right.reshape(10, 10).mean(1), strict=True)
        plain.append(np.mean([abs(share - probability) for probability, share in bins]))
        corrected.append(debiased_calibration_error(likely, right))
    assert np.mean(plain) > 0.09  # ten queries a bin: perfect probabilities look wrong
    assert np.mean(corrected) < 0.06
    assert debiased_calibration_error(likely**3, right) > 0.1
    assert debiased_calibration_error(np.zeros(0), np.zeros(0, bool)) == 0


def _answered(count: int, *, seed: int = 0, level: float = 1.0) -> AnsweredQueries:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, len(EVIDENCE))) * 0.1
    rows[:, 0] += level
    right = draw.uniform(size=count) < 1 / (1 + np.exp(-20 * (rows[:, 1])))
    return AnsweredQueries(rows, right, rows[right, 0])


def test_judgements_give_the_probability_where_they_are_enough() -> None:
    made, judged = _answered(100), _answered(FEWEST_JUDGED, seed=1)
    unanswered = _answered(40, seed=2, level=0.1).rows
    known = calibrate(made, unanswered, judged, documents=100)
    assert (known.source, known.queries, known.documents) == ("judgements", FEWEST_JUDGED, 100)
    assert known.right == fit_logistic(judged.rows, judged.right)
    few = AnsweredQueries(judged.rows[1:], judged.right[1:], judged.right_scores)
    assert calibrate(made, unanswered, few, documents=100).source == "documents"
    alike = AnsweredQueries(judged.rows, np.ones(FEWEST_JUDGED, bool), judged.right_scores)
    assert calibrate(made, unanswered, alike, documents=100).source == "documents"


def test_what_nothing_answers_is_refused_and_what_is_answered_seldom() -> None:
    known = calibrate(_answered(200), _answered(60, seed=2, level=0.1).rows, documents=200)
    other, beyond = _answered(200, seed=3).rows, _answered(200, seed=4, level=0.1).rows
    assert np.mean([one.fits for one in known.estimates(other)]) > 0.95
    assert np.mean([one.fits for one in known.estimates(beyond)]) < 0.3
    assert 0.1 < known.floor < 1.0


def test_without_unanswered_queries_the_floor_is_what_right_hits_reach() -> None:
    made, nothing = _answered(100), np.zeros((0, len(EVIDENCE)))
    with pytest.raises(InvalidRequest, match="give some of both kinds"):
        calibrate(made, nothing, _answered(FEWEST_JUDGED, seed=1), documents=7)
    one = _answered(1, seed=2, level=0.1).rows
    assert calibrate(made, one, documents=7).floor == pytest.approx(
        min(one[0, 0], np.quantile(made.right_scores, confidence.FLOOR_QUANTILE))
    )


def test_it_is_kept_as_json_and_others_are_refused() -> None:
    known = calibrate(_answered(100), _answered(40, seed=2, level=0.1).rows, documents=100)
    content = json.loads(json.dumps(known.to_dict()))
    assert Calibration.from_dict(content) == known
    for broken in ({**content, "format": 2}, {**content, "evidence": []}, {"format": 1}, {}):
        with pytest.raises(CorruptData):
            Calibration.from_dict(broken)


def test_a_calibration_with_less_evidence_is_read_as_it_was_fitted() -> None:
    now = calibrate(_answered(100), _answered(40, seed=2, level=0.1).rows, documents=100).to_dict()
    older = {**now, "evidence": list(EVIDENCE[:10])}
    for part in ("right", "fits"):
        older[part] = {
            name: value[:10] if isinstance(value, list) else value for name, value in now[part].items()
        }
    read = Calibration.from_dict(older)
    rows = _answered(30, seed=3).rows
    moved = np.concatenate([rows[:, :10], rows[:, 10:] + 5], axis=1)
    assert read.estimates(rows) == read.estimates(moved)
    assert read.to_dict() == older
    with pytest.raises(CorruptData):
        Calibration.from_dict({**older, "evidence": list(EVIDENCE)})


def test_queries_made_from_documents_refuse_only_what_looks_like_nothing() -> None:
    """Made queries score higher than a person's: a threshold at their lowest would refuse most of those."""
    made, nothing = _answered(200), _answered(100, seed=2, level=0.1).rows
    own = _answered(200, seed=3, level=0.45)
    known = calibrate(made, nothing, documents=200)
    assert np.mean(known.fits(made.rows) < known.threshold) < 0.01
    assert np.mean(known.fits(own.rows) < known.threshold) < 0.05
    assert np.mean(known.fits(nothing) < known.threshold) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("level", [0.1, 0.9])
@pytest.mark.parametrize("judged_queries", [0, FEWEST_JUDGED])
def test_threshold_and_floor_are_the_quantiles_that_are_documented(level: float, judged_queries: int) -> None:
    """The floor is the lower one of what right hits reach and of what unanswered queries stay below."""
    made, judged = _answered(100), _answered(judged_queries, seed=1) if judged_queries else None
    nothing = _answered(60, seed=2, level=level).rows
    known = calibrate(made, nothing, judged, documents=7)
    of = made if judged is None else judged
    reached = np.quantile(of.right_scores, confidence.FLOOR_QUANTILE)
    below = np.quantile(nothing[:, 0], 1 - confidence.FLOOR_QUANTILE)
    assert known.floor == pytest.approx(min(reached, below))
    if judged is None:
        most = np.quantile(known.fits(made.rows), confidence.MOST_MADE_REFUSED)
        least = np.quantile(known.fits(nothing), confidence.LEAST_REFUSED)
        assert known.threshold == pytest.approx(min(0.5, most, least))
    else:
        assert known.threshold == pytest.approx(np.quantile(known.fits(judged.rows), confidence.MOST_REFUSED))
    assert (known.queries, known.documents) == (len(of.rows), 7)


def test_enough_judgements_are_of_both_kinds() -> None:
    right = np.arange(FEWEST_JUDGED) < confidence.FEWEST_OF_A_KIND
    assert confidence.enough_judged(right)
    assert confidence.enough_judged(~right)
    assert not confidence.enough_judged(right[1:])
    assert not confidence.enough_judged(np.arange(FEWEST_JUDGED) < confidence.FEWEST_OF_A_KIND - 1)


def test_the_lead_is_over_the_next_nine_and_words_are_missed_where_no_candidate_has_one() -> None:
    scores = np.array([[0.9, *[0.5] * 9, 0.1, 0.1]])
    keyword, weights = np.zeros_like(scores), np.full_like(scores, 1 / 12)
    (row,) = evidence_rows(scores, scores, keyword, weights, scores > 0)
    evidence = dict(zip(EVIDENCE, row, strict=True))
    assert (evidence["lead"], evidence["unmatched"]) == (pytest.approx(0.4), 1.0)
    assert evidence["similarity_lead"] == pytest.approx(0.4)  # over the tenth
    assert evidence["agreement"] == 0.0


@pytest.mark.parametrize("places", [len(EVIDENCE), EVIDENCE.index("unmatched")])
def test_calibrations_of_earlier_releases_are_read(places: int) -> None:
    """Of fewer kinds of evidence, with a weight for the null slot, and with a fit of a second stage."""
    at = EVIDENCE.index("null")
    weights = [0.0] * places
    weights[at] = 4.0
    one = Logistic([0.0] * places, [1.0] * places, weights, 0.0)
    plain = Calibration(one, one, 0.4, 0.1, "judgements", 60, 20).to_dict()
    assert plain["evidence"][at] == "null"
    stored = {**plain, "near": {"evidence": ["score"], "fits": {}, "threshold": 0.5, "queries": 60}}
    read = Calibration.from_dict(stored)
    assert read.to_dict() == plain
    scores = np.array([[0.9, 0.5]])
    rows = evidence_rows(scores, scores, scores * 0, scores / 1.4, scores > 0)
    assert read.estimates(rows) == [Estimate(True, 0.5)]  # what the slot weighed counts 0 now
