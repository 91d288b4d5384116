"""Calibration of "no document fits": is its weight a calibrated probability, and does it rank queries?

    expected calibration error   Σ_b |b| / N · |share of unanswerable in b − mean weight in b|     over bins b
    AUROC                        P(weight of an unanswerable query > weight of an answerable one), ties half
    bias-corrected error         √ max(0, Σ_b |b| / N · ((ȳ_b − p̄_b)² − ȳ_b (1 − ȳ_b) / (|b| − 1)))
    Brier score                  mean of (p − y)²

(Guo et al. 2017, "On Calibration of Modern Neural Networks", eq. 3, with bins of equal numbers of queries,
since most weights are near 0 or 1; Hanley and McNeil 1982: the area is the Mann–Whitney statistic.
The chance scatter of a bin's share makes even perfect probabilities look wrong; the third measure takes it
out: Kumar, Liang and Ma 2019, "Verified Uncertainty Calibration", section 5. Brier 1950.)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from dsearch.errors import InvalidRequest, amount

BINS = 10


@dataclass(frozen=True, slots=True)
class Answerability:
    """Quality of detecting judged queries that no document answers.

    Attributes:
        answerable: number of queries that a document answers.
        unanswerable: number of judged queries that no document answers.
        auroc: AUROC of the slot's weight, or, without a slot, of the first hit's negated score.
        calibration_error: expected calibration error; None without a slot, since a score is no probability.
        mean_weight: mean weight of the slot over all these queries; None without one.
    """

    answerable: int
    unanswerable: int
    auroc: float
    calibration_error: float | None = None
    mean_weight: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """A line for a terminal."""
        what = (
            f"{self.unanswerable} unanswerable of "
            f"{amount(self.unanswerable + self.answerable, 'judged query')}"
        )
        if self.calibration_error is None:
            return f"{what}: AUROC {self.auroc:.4f} by the first score; this model has no null slot"
        share = self.unanswerable / (self.unanswerable + self.answerable)
        return (
            f"{what}: AUROC {self.auroc:.4f}, expected calibration error {self.calibration_error:.4f} "
            f"(mean weight of nothing fits {self.mean_weight:.4f}, share {share:.4f})"
        )


def answerability(
    weights: Float[np.ndarray, " queries"], unanswerable: Bool[np.ndarray, " queries"], *, slot: bool = True
) -> Answerability:
    """Compute both measures of the weights, or of any number that grows as less fits.

    Raises:
        InvalidRequest: no query of one of the two kinds.
    """
    counts = int((~unanswerable).sum()), int(unanswerable.sum())
    area = auroc(weights, unanswerable)
    if not slot:
        return Answerability(*counts, area)
    error = expected_calibration_error(weights, unanswerable)
    return Answerability(*counts, area, error, float(weights.mean()))


def auroc(scores: Float[np.ndarray, " queries"], positive: Bool[np.ndarray, " queries"]) -> float:
    """Compute the share of pairs of a positive and a negative with a higher score of the positive.

    Raises:
        InvalidRequest: no positive, or nothing else.
    """
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        raise InvalidRequest(f"AUROC of {positives} positives and {negatives} negatives; give some of both")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]  # middle rank of ties
    area = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(area / (positives * negatives))


def expected_calibration_error(
    weights: Float[np.ndarray, " queries"], positive: Bool[np.ndarray, " queries"], bins: int = BINS
) -> float:
    """Compute the mean distance of probabilities from the share of positives in their bin."""
    if len(weights) == 0:
        return 0.0
    order = np.argsort(weights, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    distances = [len(part) * abs(positive[part].mean() - weights[part].mean()) for part in parts]
    return float(sum(distances) / len(order))


def debiased_calibration_error(
    probabilities: Float[np.ndarray, " queries"], positive: Bool[np.ndarray, " queries"], bins: int = BINS
) -> float:
    """Compute the root of the mean squared calibration error, less what chance adds; by equal bins."""
    if len(probabilities) == 0:
        return 0.0
    order = np.argsort(probabilities, kind="stable")
    total = 0.0
    for part in np.array_split(order, max(1, min(bins, len(order) // 2))):
        share = float(positive[part].mean())
        chance = share * (1 - share) / max(1, len(part) - 1)
        total += len(part) * ((share - float(probabilities[part].mean())) ** 2 - chance)
    return float(np.sqrt(max(0.0, total / len(order))))


def brier_score(
    probabilities: Float[np.ndarray, " queries"], positive: Bool[np.ndarray, " queries"]
) -> float:
    """Compute the mean squared distance of probabilities from what happened."""
    return float(((probabilities - positive) ** 2).mean())
