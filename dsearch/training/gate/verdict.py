"""Verdicts on scores of held-out examples, and what a version's record says of its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsearch.errors import InvalidRequest
from dsearch.jobs import SavingJob
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers


def judge_scores(job: SavingJob) -> GateReport:
    """The gate's report on scores by the live version and by another one.

    Raises:
        InvalidRequest: scores that are no pairs, options that exclude each other.
    """
    job.check()
    if job.before is None or job.after is None:
        raise InvalidRequest("no scores to judge by; give before and after")
    gate = Gate.of_risk(job.risk, alpha=job.alpha, margin=job.margin)
    return judge(answers_of(job.before), answers_of(job.after), gate, measure=job.measure, seed=job.seed)


def verdict_of(report: GateReport, compared_with: str | None) -> dict[str, Any]:
    """Members of a version's record: what a verdict says, and of a comparison with which live version."""
    return {
        "examples": report.slice("all").queries,
        "gate": report.to_dict(),
        "compared_with": compared_with,
    }


def answers_of(scores: Sequence[float]) -> Answers:
    """Scores as answers; of examples that are no queries nothing is seen or unseen."""
    numbers = np.asarray(scores, np.float64)
    return Answers(numbers, np.zeros(len(numbers), bool), numbers)
