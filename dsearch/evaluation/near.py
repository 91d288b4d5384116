"""Tell queries whose answer the collection lacks by a second stage: near ones, of its own subjects.

    P(has an answer | x) = σ(w · (x − m) / s + c)     x: `NEAR_EVIDENCE` of the query

Fitted to judged queries, and to the same ones with their right documents taken out of the ranking. γ in the
evidence is that of an untrained stage, so that one fit holds before and after a second stage is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dsearch.errors import CorruptData
from dsearch.evaluation.logistic import Logistic, fit_logistic

NEAR_EVIDENCE = (
    *("score", "score_lead", "score_height"),  # of the first stage: largest; over the next nine; standardised
    *("dense", "dense_height", "keyword", "keyword_height"),
    *("match", "match_lead", "match_height"),  # late interaction, as it is scored
    *("coverage", "coverage_lead", "coverage_height"),  # mean match of the query's tokens, weighed by idf
    *("first_tokens", "total_lead"),  # match with the beginning of the first; lead of both stages' sum
    *("entropy", "share", "match_entropy"),
    *("tokens", "idf", "largest_idf"),  # of the query
)
FEWEST = 50  # queries with an answer among the candidates
MOST_REFUSED = 0.03  # share of the queries with an answer that a fit may call unanswered
_SHARPNESS, _MATCH_SHARPNESS = 0.05, 0.1  # temperatures of the shares
_FOLLOWING = 10

NearRows = Float[np.ndarray, "queries near_evidence"]
Numbers = Float[np.ndarray, "queries candidates"]


class StageScores(NamedTuple):
    """Both stages' scores of the reranked candidates of some queries.

    Attributes:
        scores: of the first stage.
        dense, keyword: its parts.
        match, coverage, start: `Matches` of the second: M, the mean match, M of the first tokens.
        present: False at padding.
        weights: idf of the tokens of each query.
    """

    scores: Numbers
    dense: Numbers
    keyword: Numbers
    match: Numbers
    coverage: Numbers
    start: Numbers
    present: Bool[np.ndarray, "queries candidates"]
    weights: list[np.ndarray]


def near_evidence(of: StageScores, strength: float) -> NearRows:
    """`NEAR_EVIDENCE` of each query; zeros without a candidate. `strength`: γ of an untrained stage."""
    present = of.present
    total = np.where(present, of.scores + strength * of.match, -np.inf)
    parts = np.stack([of.scores, of.dense, of.keyword, of.match, of.coverage, total])
    scores, dense, keyword, match, coverage, both = zip(*_peaks(parts, present), strict=True)
    columns = [*scores, *dense[::2], *keyword[::2], *match, *coverage]
    some = present.sum(1) > 0
    first = total.argmax(1)[:, None]
    columns += [np.take_along_axis(of.start, first, 1)[:, 0], both[1]]
    shares = _shares(total, present, _SHARPNESS)
    largest = np.log(np.maximum(present.sum(1), 2))  # an entropy is a part of the largest possible
    columns += [
        _entropy(shares) / largest,
        shares.max(1),
        _entropy(_shares(of.match, present, _MATCH_SHARPNESS)) / largest,
        np.log([max(1, len(weights)) for weights in of.weights]),
        np.log([max(1e-6, float(weights.sum())) for weights in of.weights]),
        np.array([float(weights.max(initial=0.0)) for weights in of.weights]),
    ]
    return np.where(some[:, None], np.stack(columns, axis=1), 0.0)


@dataclass(frozen=True, slots=True)
class NearCalibration:
    """Fitted estimate of whether the collection has an answer.

    Attributes:
        fits: probability of it.
        threshold: below it nothing fits.
        queries: number of judged queries of the fit.
    """

    fits: Logistic
    threshold: float
    queries: int

    def refused(self, rows: NearRows) -> Bool[np.ndarray, " queries"]:
        """True where nothing fits."""
        return self.fits(rows) < self.threshold

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "evidence": list(NEAR_EVIDENCE),
            "fits": self.fits._asdict(),
            "threshold": self.threshold,
            "queries": self.queries,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> NearCalibration:
        """Read the output of `to_dict`.

        Raises:
            CorruptData: it is of another release.
        """
        if content["evidence"] != list(NEAR_EVIDENCE):
            raise CorruptData("a calibration of another release; calibrate again")
        return cls(Logistic(**content["fits"]), float(content["threshold"]), int(content["queries"]))


def calibrate_near(answered: NearRows, without_answer: NearRows) -> NearCalibration | None:
    """Fit to queries and to the same ones without their answers; None where they are too few."""
    if len(answered) < FEWEST or not len(without_answer):
        return None
    rows = np.concatenate([answered, without_answer])
    fits = fit_logistic(rows, np.arange(len(rows)) < len(answered))
    return NearCalibration(fits, float(np.quantile(fits(answered), MOST_REFUSED)), len(answered))


def _peaks(
    values: Float[np.ndarray, "parts queries candidates"], present: Bool[np.ndarray, "queries candidates"]
) -> list[Float[np.ndarray, "parts queries"]]:
    """Largest value; its lead over the mean of the next nine; its distance from the mean in deviations."""
    counts = present.sum(1)
    ranked = -np.sort(-np.where(present, values, -np.inf), axis=2)[..., :_FOLLOWING]
    finite = np.where(np.isfinite(ranked), ranked, 0.0)
    largest, following = finite[..., 0], np.clip(counts - 1, 1, _FOLLOWING - 1)
    of_all = np.where(present, values, 0.0)
    mean = of_all.sum(2) / np.maximum(counts, 1)
    squares = np.where(present, (of_all - mean[..., None]) ** 2, 0.0).sum(2) / np.maximum(counts, 1)
    lead = np.where(counts > 1, largest - finite[..., 1:].sum(2) / following, 0.0)
    return [largest, lead, (largest - mean) / (np.sqrt(squares) + 1e-6)]


def _shares(values: Numbers, present: Bool[np.ndarray, "queries candidates"], temperature: float) -> Numbers:
    logits = np.where(present, values, -np.inf) / temperature
    largest = np.where(present.any(1), logits.max(1), 0.0)[:, None]
    powers = np.where(present, np.exp(logits - largest), 0.0)
    return powers / np.maximum(powers.sum(1, keepdims=True), 1e-12)


def _entropy(shares: Numbers) -> Float[np.ndarray, " queries"]:
    return -(shares * np.log(np.clip(shares, 1e-12, None))).sum(1)
