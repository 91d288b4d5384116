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
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dsearch.errors import CorruptData
from dsearch.evaluation.logistic import Logistic, Rows, fit_logistic

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
