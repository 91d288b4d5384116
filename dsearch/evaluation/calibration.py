"""Are probabilities calibrated, and do scores tell queries that a document answers from others?

    AUROC                        P(score of a positive query > score of a negative one), ties half
    bias-corrected error         √ max(0, Σ_b |b| / N · ((ȳ_b − p̄_b)² − ȳ_b (1 − ȳ_b) / (|b| − 1)))
    Brier score                  mean of (p − y)²

(Hanley and McNeil 1982: the area is the Mann–Whitney statistic. Bins b have equal numbers of queries. The
chance scatter of a bin's share makes even perfect probabilities look wrong; the second measure takes it out:
Kumar, Liang and Ma 2019, "Verified Uncertainty Calibration", section 5. Brier 1950.)
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
        auroc: AUROC of the first hit's negated score.
    """

    answerable: int
    unanswerable: int
    auroc: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def to_text(self) -> str:
        """A line for a terminal."""
        what = (
            f"{self.unanswerable} unanswerable of "
            f"{amount(self.unanswerable + self.answerable, 'judged query')}"
        )
        return f"{what}: AUROC {self.auroc:.4f} by the first score"


def answerability(
    scores: Float[np.ndarray, " queries"], unanswerable: Bool[np.ndarray, " queries"]
) -> Answerability:
    """Measure how well the scores of first hits tell queries that nothing answers: theirs are lower.

    Raises:
        InvalidRequest: no query of one of the two kinds.
    """
    return Answerability(int((~unanswerable).sum()), int(unanswerable.sum()), auroc(-scores, unanswerable))


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
