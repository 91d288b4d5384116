"""Calibration error, AUROC and Brier score by hand and by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.errors import InvalidRequest
from dsearch.evaluation.confidence import (
    answerability,
    auroc,
    brier_score,
    debiased_calibration_error,
)


def test_by_hand() -> None:
    weights = np.array([0.1, 0.2, 0.8, 0.9])
    wrong = np.array([False, True, True, True])
    assert auroc(weights, wrong) == 1.0
    assert auroc(np.array([0.5, 0.5, 0.5, 0.2]), wrong) == pytest.approx((0.5 + 0.5 + 0.0) / 3)


def test_what_chance_adds_is_taken_out_by_hand() -> None:
    """Two of four at .9: (.5 - .9)^2 less .5 * .5 / 3."""
    likely, right = np.full(4, 0.9), np.array([True, True, False, False])
    found = debiased_calibration_error(likely, right, bins=1)
    assert found == pytest.approx(np.sqrt(0.16 - 0.25 / 3))


@settings(max_examples=by_size(25, 250))
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs(pairs: list[tuple[int, bool]]) -> None:
    scores, wrong = np.array([float(score) for score, _ in pairs]), np.array([flag for _, flag in pairs])
    if wrong.all() or not wrong.any():
        with pytest.raises(InvalidRequest, match="give some of both"):
            auroc(scores, wrong)
        return
    difference = scores[wrong][:, None] - scores[~wrong]
    expected = ((difference > 0) + 0.5 * (difference == 0)).mean()
    assert auroc(scores, wrong) == pytest.approx(expected)
    assert auroc(-scores, wrong) == pytest.approx(1 - expected)


def by_bins(weights: np.ndarray, wrong: np.ndarray, bins: int) -> list[tuple[list[float], list[bool]]]:
    """Queries by their weight in bins of nearly equal number, the first ones larger by one."""
    order = sorted(range(len(weights)), key=lambda query: float(weights[query]))
    size, larger = divmod(len(order), bins)
    parts = [size + (place < larger) for place in range(bins)]
    starts = [sum(parts[:place]) for place in range(bins)]
    cut = [order[start : start + part] for start, part in zip(starts, parts, strict=True)]
    return [
        ([float(weights[query]) for query in part], [bool(wrong[query]) for query in part]) for part in cut
    ]


@pytest.mark.parametrize(("queries", "bins"), [(1, 10), (2, 10), (7, 3), (10, 10), (23, 10), (40, 4)])
def test_the_error_is_the_sum_over_its_bins(queries: int, bins: int) -> None:
    """Two queries a bin at least."""
    generator = np.random.default_rng(queries)
    weights, wrong = generator.uniform(size=queries), generator.uniform(size=queries) < 0.5
    total = 0.0
    for part, flags in by_bins(weights, wrong, max(1, min(bins, queries // 2))):
        share, count = sum(flags) / len(part), len(part)
        chance = share * (1 - share) / (count - 1) if count > 1 else share * (1 - share)
        total += count * ((share - sum(part) / count) ** 2 - chance)
    assert debiased_calibration_error(weights, wrong, bins) == pytest.approx(max(0.0, total / queries) ** 0.5)


def test_ten_bins_are_the_default_and_no_queries_have_no_error() -> None:
    weights, wrong = np.linspace(0, 1, 40), np.arange(40) % 3 == 0
    assert debiased_calibration_error(weights, wrong) == debiased_calibration_error(weights, wrong, 10)
    assert debiased_calibration_error(weights[:0], wrong[:0]) == 0
    assert brier_score(np.array([0.5, 1.0, 0.0]), np.array([True, True, True])) == pytest.approx(1.25 / 3)


def test_the_report_has_each_figure_in_its_place() -> None:
    scores, unanswerable = np.array([0.9, 0.8, 0.1, 0.8]), np.array([False, False, True, True])
    found = answerability(scores, unanswerable)
    assert found.to_dict() == {"answerable": 2, "unanswerable": 2, "auroc": pytest.approx(3.5 / 4)}
    assert "2 unanswerable of 4 judged queries" in found.to_text()
    assert "AUROC 0.8750" in found.to_text()
    assert answerability(-scores, unanswerable).auroc == pytest.approx(0.5 / 4)
