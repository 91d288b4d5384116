"""Two candidates before the gate: the tuned search, and the head that was trained from it.

    tuned search    must beat what answers now
    head            must beat both: what answers now, and the tuned search, which costs nothing

Two chances to pass would make α twice what it says. So it is shared by the fallback procedure (Wiens 2003,
Pharmaceutical Statistics 2:211): the tuned search is asked for `TUNED_SHARE` of α; the head for all of α
where the tuned search has passed, for the rest where it has not. The tuned search gets the larger share,
because its gains are small, and those of a head that is worth its training are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dsearch.training.gate import Gate, GateReport, judge
from dsearch.training.holdout import Answers

TUNED_SHARE = 0.8


def judge_candidates(
    of_tuned: Callable[[Gate], GateReport],
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
        of_tuned: what a gate says of the tuned search.
        now: held-out answers of what answers now; None when nothing was held out.
        tuned: those of the tuned search.
        trained: those of the trained head.
        gate: what is asked, of both together.
        canary_overlap: of the head; it is stated and decides nothing.
        seed: of the resampling.
    """
    gate = gate or Gate()
    report_of_tuned = of_tuned(replace(gate, alpha=gate.alpha * TUNED_SHARE))
    left = gate if report_of_tuned.passed else replace(gate, alpha=gate.alpha * (1 - TUNED_SHARE))
    against = {
        "the tuned search": judge(tuned, trained, left, canary_overlap=canary_overlap, seed=seed),
        "what answers now": judge(now, trained, left, canary_overlap=canary_overlap, seed=seed),
    }
    # The one that it does worse against decides; against the tuned search, where it passes both.
    name = next((name for name, report in against.items() if not report.passed), "the tuned search")
    report = against[name]
    return report_of_tuned, replace(report, reason=f"against {name}: {report.reason}")
