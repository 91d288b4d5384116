"""Gate of a head that predicts a field: held-out documents, and the effect on search.

It requires a significant gain in R² (numbers) or in the mean log share of the right label, whose accuracy
must not fall by more than the margin. The head must also beat the constant prediction, that is the mean of
all values or the frequencies of the labels: with too low a temperature an untrained head is worse than that,
and a head that has only learned the constant would look like a gain.

A metric trained for a field may rank a search worse. So it is compared on judgements too, if there are any:
nDCG@10 must not fall by more than the margin. If there are none, and stored documents keep less than half of
their ten nearest, the gate cannot decide. Such a version is still useful: `predict(…, model="v3")`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from dsearch.attention.retrieval.head import Head
from dsearch.training.data.examples import Examples
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers
from dsearch.training.ranking import Ranking, ndcg_at_10

LEAST_OVERLAP = 0.5  # of canaries: below, somebody has to look before search changes as much


@dataclass(frozen=True, slots=True)
class ValueScores:
    """Scores of each held-out document: by the live model, the trained head, and the constant prediction."""

    before: Float[np.ndarray, " asked"]
    after: Float[np.ndarray, " asked"]
    nothing: Float[np.ndarray, " asked"]


def judge_values(
    scores: ValueScores | None,
    gate: Gate,
    *,
    measures: tuple[dict[str, float], dict[str, float]] | None,
    searched: tuple[float, float] | None,
    canary_overlap: float | None,
    measure: str,
    seed: int,
) -> GateReport:
    """The verdict on a head that was trained to predict a field.

    Args:
        scores: None when nothing was held out.
        gate: requirements of the gate.
        measures: accuracy and log loss, or R² and root mean squared error, before and after.
        searched: nDCG@10 before and after; None without judgements.
        canary_overlap: see `overlap_of_canaries`.
        measure: name of the measure, for the report.
        seed: random seed of the resampling.
    """
    before, after = (None, None) if scores is None else map(unseen_answers, (scores.before, scores.after))
    report = judge(before, after, gate, canary_overlap=canary_overlap, measure=measure, seed=seed)
    if scores is not None:
        report = _also_over_nothing(report, scores.nothing, scores.after, seed)
    return _also_search(_also_accuracy(report, measures), searched)


def search_by(judged: Examples, before: Head, after: Head) -> tuple[float, float]:
    """Mean nDCG@10 of both heads on judged queries."""
    ranking = Ranking(judged)
    first, last = (
        ndcg_at_10(ranking.top(head, hop_strength=head.hop_strength.item()), judged.relevant).mean()
        for head in (before, after)
    )
    return float(first), float(last)


def unseen_answers(scores: Float[np.ndarray, " asked"]) -> Answers:
    """Held-out documents were never seen."""
    return Answers(scores, np.zeros(len(scores), bool), scores)


def _also_over_nothing(
    report: GateReport,
    nothing: Float[np.ndarray, " asked"],
    after: Float[np.ndarray, " asked"],
    seed: int,
) -> GateReport:
    """Refused where what is predicted is no better than the same answer for every document."""
    if not report.passed:
        return report
    over = judge(
        unseen_answers(nothing), unseen_answers(after), report.gate, measure=report.measure, seed=seed
    )
    if over.passed:
        return report
    reason = (
        f"{report.reason}; but always giving the mean, or the labels' frequencies, has {nothing.mean():.4f}, "
        "and it is not significantly better than that: the field does not show in the documents"
    )
    return replace(report, verdict="refused", reason=reason)


def _also_accuracy(
    report: GateReport, measures: tuple[dict[str, float], dict[str, float]] | None
) -> GateReport:
    """Refused where the right label is named clearly less often, whatever the shares say."""
    if not report.passed or measures is None or "accuracy" not in measures[0]:
        return report
    fall = measures[0]["accuracy"] - measures[1]["accuracy"]
    if fall <= report.gate.margin:
        return report
    reason = f"accuracy falls by {fall:.4f} (allowed {report.gate.margin:g})"
    return replace(report, verdict="refused", reason=reason)


def _also_search(report: GateReport, searched: tuple[float, float] | None) -> GateReport:
    """Refused where judged queries are ranked worse; undecided where there are none and much has moved."""
    if not report.passed:
        return report
    if searched is not None:
        fall = searched[0] - searched[1]
        if fall > report.gate.margin:
            reason = (
                f"{report.reason}; but search falls from nDCG@10 {searched[0]:.4f} to {searched[1]:.4f} "
                f"(allowed {report.gate.margin:g}): predict with this version, and let it not answer searches"
            )
            return replace(report, verdict="refused", reason=reason)
        return report
    if report.canary_overlap is not None and report.canary_overlap < LEAST_OVERLAP:
        reason = (
            f"{report.reason}; but stored documents keep only {report.canary_overlap:.0%} of their nearest "
            "ten, and nobody can tell whether searches get worse; give judgements (--data), predict with "
            "this version alone, or --accept"
        )
        return replace(report, verdict="cannot tell", reason=reason)
    return report
