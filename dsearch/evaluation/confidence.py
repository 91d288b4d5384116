"""Probability that the first hit of a query is right, estimated from the evidence of its ranking.

    P(right | x) = σ(w · (x − m) / s + c)         x: `EVIDENCE` of the query
    P(fits | x)                                   likewise, of whether the collection has an answer at all

Both are logistic regressions with a ridge on w (Hosmer and Lemeshow 2000, chapter 1), fitted to queries whose
right document is reached. The share of attention is no such probability: it says how a softmax divides, and a
softmax divides nonsense as well. So the two numbers are kept apart.

A hit whose score is below the learned floor is less likely: of the right hits of the fit 19 of 20 are above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dsearch.errors import CorruptData, InvalidRequest, amount

Source = Literal["judgements", "documents"]

EVIDENCE = (
    "score",  # of the first hit
    "gap",  # to the second
    "lead",  # over the mean of the next nine
    "share",  # of the attention
    "entropy",  # of the attention, as a part of the largest possible
    "dense_behind",  # of the first hit, behind the largest similarity
    "keyword",  # part of the first hit
    "keyword_behind",  # of the first hit, behind the largest keyword part
    "agreement",  # share of the ten best by similarity that are among the ten best by keywords
    "null",  # always 0: the place of a weight for "nothing fits" that earlier releases learned
    "unmatched",  # 1 where no candidate has a word of the query
    "similarity",  # mean of the candidates
    "similarity_gap",  # of the two nearest
    "similarity_lead",  # of the nearest over the tenth
)  # grows at its end only: a calibration reads as many as it was fitted with
FEWEST_JUDGED = 50  # queries; with fewer a percentage would not be one
FEWEST_OF_A_KIND = 10  # right and wrong ones
# Share of the judged queries that a fit may call unanswered. Queries made from documents share words with
# them and look better than a person's: their fit refuses only what ranks below most of the unanswerable ones.
MOST_REFUSED, MOST_MADE_REFUSED, LEAST_REFUSED = 0.03, 0.02, 0.9
FLOOR_QUANTILE = 0.05
LIKELY, POSSIBLE = 0.7, 0.4
_TOP = 10
_FORMAT = 1


def evidence_rows(
    scores: Float[np.ndarray, "queries candidates"],
    dense: Float[np.ndarray, "queries candidates"],
    keyword: Float[np.ndarray, "queries candidates"],
    weights: Float[np.ndarray, "queries candidates"],
    present: Bool[np.ndarray, "queries candidates"],
) -> Rows:
    """Compute the `EVIDENCE` of each query from its candidates, best first; zeros without a candidate."""
    queries, width = scores.shape
    rows = np.zeros((queries, len(EVIDENCE)))
    if not width:
        return rows
    some = present[:, 0]
    count = present.sum(1)
    dense, keyword = np.where(present, dense, -np.inf), np.where(present, keyword, -np.inf)
    ranked = np.where(present, scores, 0.0)
    first = ranked[:, 0]
    following = np.minimum(count - 1, _TOP - 1)
    rows[:, 0] = first
    rows[:, 1] = first - (ranked[:, 1] if width > 1 else 0.0)
    rows[:, 2] = first - ranked[:, 1:_TOP].sum(1) / np.maximum(following, 1)
    rows[:, 3] = weights[:, 0]
    spread = -(weights * np.log(np.clip(weights, 1e-12, None))).sum(1)
    rows[:, 4] = spread / np.log(np.maximum(count, 2))
    with np.errstate(invalid="ignore"):
        rows[:, 5] = dense.max(1) - dense[:, 0]
        rows[:, 6] = keyword[:, 0]
        rows[:, 7] = keyword.max(1) - keyword[:, 0]
    top = min(_TOP, width)
    by_dense = np.argpartition(-dense, top - 1, axis=1)[:, :top]
    by_keyword = np.argpartition(-keyword, top - 1, axis=1)[:, :top]
    matching = np.take_along_axis(keyword, by_keyword, axis=1) > 0
    same = (by_dense[:, :, None] == by_keyword[:, None, :]) & matching[:, None, :]
    rows[:, 8] = same.any(2).sum(1) / top
    nearest = -np.partition(-np.where(present, dense, 0.0), range(top), axis=1)[:, :top]
    rows[:, 10] = keyword.max(1) <= 0
    rows[:, 11] = np.where(present, dense, 0.0).sum(1) / np.maximum(count, 1)
    rows[:, 12] = nearest[:, 0] - nearest[:, min(1, top - 1)]
    rows[:, 13] = nearest[:, 0] - nearest[:, top - 1]
    return np.where(some[:, None], rows, 0.0)


class Estimate(NamedTuple):
    """Estimate for one query: does something fit, and is the first hit right?"""

    fits: bool
    right: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted estimates of one version of a model.

    Attributes:
        right: probability that the first hit is right.
        fits: probability that the collection has an answer; compared with `threshold`.
        threshold: below it nothing fits.
        floor: score below which a hit is less likely.
        source: what the probability was fitted on: judgements, or queries made from the documents.
        queries: number of queries with an answer that it was fitted on.
        documents: number of documents at that time.
    """

    right: Logistic
    fits: Logistic
    threshold: float
    floor: float
    source: Source
    queries: int
    documents: int

    def estimates(self, rows: Rows) -> list[Estimate]:
        """Estimate each query."""
        fits, right = self.fits(rows) >= self.threshold, self.right(rows)
        return [Estimate(bool(fit), float(share)) for fit, share in zip(fits, right, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the model's record."""
        return {
            "format": _FORMAT,
            "evidence": list(EVIDENCE[: len(self.right.weights)]),
            "right": self.right._asdict(),
            "fits": self.fits._asdict(),
            "threshold": self.threshold,
            "floor": self.floor,
            "source": self.source,
            "queries": self.queries,
            "documents": self.documents,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Calibration:
        """Read the output of `to_dict`; what else earlier releases stored there is left out.

        Raises:
            CorruptData: it is none, or one of another release.
        """
        try:
            evidence = content["evidence"]
            weights = content["right"]["weights"]
            readable = content["format"] == _FORMAT and evidence == list(EVIDENCE[: len(weights)])
            if not evidence or not readable:
                raise CorruptData("a calibration of another release; calibrate again")
            return cls(
                Logistic(**content["right"]),
                Logistic(**content["fits"]),
                float(content["threshold"]),
                float(content["floor"]),
                content["source"],
                int(content["queries"]),
                int(content["documents"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"no calibration: {error}") from error


class AnsweredQueries(NamedTuple):
    """Rankings of queries with an answer.

    Attributes:
        rows: evidence of each query.
        right: whether its first hit is right.
        right_scores: scores of right hits among the first ten.
    """

    rows: Rows
    right: Bool[np.ndarray, " queries"]
    right_scores: Float[np.ndarray, " hits"]


def enough_judged(right: Bool[np.ndarray, " queries"]) -> bool:
    """Return True if so many judged queries give a probability."""
    few = min(int(right.sum()), int((~right).sum()))
    return len(right) >= FEWEST_JUDGED and few >= FEWEST_OF_A_KIND


def calibrate(
    drawn: AnsweredQueries, unanswered: Rows, judged: AnsweredQueries | None = None, *, documents: int
) -> Calibration:
    """Fit both estimates and the floor.

    Args:
        drawn: queries made from the documents.
        unanswered: evidence of queries that no document answers.
        judged: judged queries, which the head has not learned from; None without any.
        documents: number of documents of the collection.

    Raises:
        InvalidRequest: too few queries.
    """
    use = judged is not None and enough_judged(judged.right)
    of = judged if use and judged is not None else drawn
    positive = of.rows if judged is None else np.concatenate([drawn.rows, judged.rows])
    rows = np.concatenate([positive, unanswered])
    fits = fit_logistic(rows, np.arange(len(rows)) < len(positive))
    if use:
        threshold = float(np.quantile(fits(of.rows), MOST_REFUSED))
        right = fit_logistic(of.rows, of.right)
    else:  # made queries are mostly answered: what nothing answers is the other kind
        rows = np.concatenate([drawn.rows, unanswered])
        right = fit_logistic(rows, np.concatenate([drawn.right, np.zeros(len(unanswered), bool)]))
        most = np.quantile(fits(drawn.rows), MOST_MADE_REFUSED)
        threshold = float(min(0.5, most, np.quantile(fits(unanswered), LEAST_REFUSED)))
    below = float(np.quantile(unanswered[:, 0], 1 - FLOOR_QUANTILE)) if len(unanswered) else np.inf
    reached = float(np.quantile(of.right_scores, FLOOR_QUANTILE)) if len(of.right_scores) else 0.0
    source: Source = "judgements" if use else "documents"
    return Calibration(right, fits, threshold, min(below, reached), source, len(of.rows), documents)


_RIDGE = 1.0
_STEPS = 50

Rows = Float[np.ndarray, "queries evidence"]


class Logistic(NamedTuple):
    """σ(w · x + c) of standardised evidence."""

    mean: list[float]
    scale: list[float]
    weights: list[float]
    constant: float

    def __call__(self, rows: Rows) -> Float[np.ndarray, " queries"]:
        """Probability of each row."""
        rows = rows[:, : len(self.weights)]
        logits = (rows - np.array(self.mean)) / np.array(self.scale) @ np.array(self.weights) + self.constant
        return 1 / (1 + np.exp(-np.clip(logits, -30, 30)))


def fit_logistic(rows: Rows, positive: Bool[np.ndarray, " queries"]) -> Logistic:
    """Fit by Newton steps on the penalised log likelihood, which has one optimum.

    Raises:
        InvalidRequest: no query of one of the two kinds.
    """
    if not positive.any() or positive.all():
        raise InvalidRequest(
            f"{int(positive.sum())} of {len(positive)} queries are right; give some of both kinds"
        )
    mean, scale = rows.mean(0), rows.std(0)
    scale = np.where(scale > 1e-6, scale, 1.0)
    design = np.column_stack([(rows - mean) / scale, np.ones(len(rows))])
    penalty = np.diag([_RIDGE] * rows.shape[1] + [1e-6])
    weights = np.zeros(design.shape[1])
    for _ in range(_STEPS):
        likely = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        slope = design.T @ (positive - likely) - penalty @ weights
        curve = (design * (likely * (1 - likely))[:, None]).T @ design + penalty
        step = np.linalg.solve(curve, slope)
        weights += np.clip(step, -5, 5)
        if np.abs(step).max() < 1e-6:
            break
    return Logistic(mean.tolist(), scale.tolist(), weights[:-1].tolist(), float(weights[-1]))


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
