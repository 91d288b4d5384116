"""Two candidates before the gate: the tuned search, and the head that was trained from it.

Both must beat what answers now. Two chances to pass would make α twice what it says, so they are tested
together by Hochberg's procedure (Biometrika 75:800, 1988; both are held against the same answers, so their
p-values rise and fall together, for which it holds: Sarkar and Chang 1997): at α where both reach it, else at
α / 2 each.

Where both pass, the tuned search goes live unless the head beats it too: it costs nothing and moves no
document.
"""

from __future__ import annotations

from dataclasses import replace

from dsearch.training.gate import Gate, GateReport, judge
from dsearch.training.holdout import Answers


def judge_candidates(
    of_tuned: GateReport,
    now: Answers | None,
    tuned: Answers | None,
    trained: Answers | None,
    gate: Gate | None = None,
    *,
    canary_overlap: float | None = None,
    seed: int = 0,
) -> tuple[GateReport, GateReport]:
    """What the gate says of the tuned search, and of the head.

    Args:
        of_tuned: what it would say of the tuned search alone.
        now: held-out answers of what answers now; None when nothing was held out.
        tuned: those of the tuned search.
        trained: those of the trained head.
        gate: what is asked, of both together.
        canary_overlap: of the head; it is stated and decides nothing.
        seed: of the resampling.
    """
    whole = gate or Gate()
    of_head = judge(now, trained, whole, canary_overlap=canary_overlap, seed=seed)
    both = (of_tuned, of_head)
    if not all(report.p_value is not None and report.p_value <= whole.alpha for report in both):
        half = replace(whole, alpha=whole.alpha / 2)
        of_tuned, of_head = of_tuned.before(half), of_head.before(half)
    against = "what answers now"
    if of_tuned.passed and of_head.passed:
        against = "the tuned search"
        of_head = judge(tuned, trained, whole, canary_overlap=canary_overlap, seed=seed)
    return of_tuned, replace(of_head, reason=f"against {against}: {of_head.reason}")
