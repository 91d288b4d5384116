"""Gate: decide by held-out queries whether a trained head may go live.

A candidate of a kind whose gains are known from other collections may, if the judgements that it learned from
mean something (`belief`, see decision.py), by its change of average precision:
    gain        it rises, and its expected gain is above 0
    no harm     the probability is at most `harm` that all held-out queries, or those about seen or about
                unseen documents, lose more than `margin`, be it that the judgements are noise
    enough      `min_queries` held-out queries

Any other candidate, and one that somebody wants to be significant at an `alpha`:
    gain        average precision rises significantly at `alpha` (one-sided, paired)
    no harm     on neither slice (seen, unseen documents) is that probability above `harm`
    enough      the same

Significance is the larger of two p-values: the bootstrap's (Efron 1979; Sakai, SIGIR 2006) and that of random
sign flips. A head with a small effect changes three or four queries; if all of them happen to rise, the
bootstrap alone calls that significant. A small slice bounds the decision by as much as it says: its
probability of harm has a shrinkage prior (decision.py).

There may be two candidates: the tuned search, and the head that was trained from it. If both may go live, the
head does, unless the tuned search is better by more than the standard error: held-out answers understate
heads, which learn from two thirds of the queries where settings are chosen by all but one.

Reports show nDCG@10, which people know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.kernel import Weighing
from dsearch.engine import Snapshot
from dsearch.errors import InvalidRequest, amount
from dsearch.evaluation import Interval, bootstrap_columns
from dsearch.jobs import BALANCED, MARGIN, RISKS, SavingJob
from dsearch.products import product
from dsearch.training.gate.decision import (
    FLAT,
    MEASURE,
    SAMPLES,
    SLICE_PRIOR,
    WHOLE_PRIOR,
    Belief,
    Decision,
    Normal,
    deviation_of,
    further_for_significance,
    further_for_slice,
    noise_after,
    posterior,
    rounded,
    sign_flip_p_value,
)
from dsearch.training.gate.held_out import Answers, is_clear
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.ranking import corpus_embeddings
from dsearch.training.relevant import DEPTH

CANARIES = 200
CLAIMS = (0.8, 0.2)  # on α, of the tuned search (of feedback: its rows) and of the head
EVIDENCE = "average precision"
LOSS_BY_NOISE = 0.05  # what a candidate that learned from noise is taken to lose

Verdict = Literal["passed", "refused", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Gate:
    """Requirements on a head before it may go live.

    Attributes:
        alpha: largest p-value that counts as a gain, where it must be significant.
        margin: tolerated fall of a slice's mean average precision.
        min_queries: smallest number of held-out queries for a decision.
        harm: largest probability that a slice's true mean falls by more than `margin`.
        significant: True: every candidate must be significant, whatever is expected of its kind.
    """

    alpha: float = RISKS[BALANCED].alpha
    margin: float = MARGIN
    min_queries: int = 10
    harm: float = RISKS[BALANCED].harm
    significant: bool = False

    def __post_init__(self) -> None:
        for name in ("alpha", "harm"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise InvalidRequest(f"{name}={value}; use a number between 0 and 1")
        if not 0 <= self.margin < 1:
            raise InvalidRequest(f"margin={self.margin}; use a number from 0 to below 1")
        if self.min_queries < 1:
            raise InvalidRequest(f"min_queries={self.min_queries}; use an integer of at least 1")

    @classmethod
    def of_risk(cls, risk: str = BALANCED, *, alpha: float | None = None, margin: float = MARGIN) -> Gate:
        """The gate of a named risk; an `alpha` that is given takes the place of its own, and is required.

        Raises:
            InvalidRequest: an unknown risk.
        """
        if risk not in RISKS:
            raise InvalidRequest(f"risk={risk!r}; use one of {', '.join(RISKS)}")
        chosen = RISKS[risk].alpha if alpha is None else alpha
        return cls(chosen, margin, harm=RISKS[risk].harm, significant=alpha is not None)


@dataclass(frozen=True, slots=True)
class Slice:
    """Held-out queries of one kind, before and after; None where there are no queries.

    Attributes:
        name: "all", "seen" or "unseen".
        queries: number of queries.
        before, after: means of the measure.
        difference: mean change, with its bootstrap interval.
        evidence: mean change of what the gate decides by, with its bootstrap interval.
        deviation: deviation of a query's change of the evidence, as the decision takes it (decision.py).
        harm: probability that the true mean of the evidence falls by more than the margin; None where the
            slice does not bound the verdict, because it is the whole or because nothing could be in it.
    """

    name: str
    queries: int
    before: float | None
    after: float | None
    difference: Interval | None
    evidence: Interval | None = None
    deviation: float | None = None
    harm: float | None = None


@dataclass(frozen=True, slots=True)
class GateReport:
    """Report of the gate: the slices, the canaries, the verdict and the reason for it in words.

    `canary_overlap` is the mean share of the ten nearest documents of a stored document that stay its ten
    nearest; `p_value` the larger of the two; `noise` the probability that the judgements mean nothing, where
    the candidate is decided by what is expected of its kind; `wins` and `losses` are numbers of queries that
    are answered better and worse.
    """

    gate: Gate
    slices: list[Slice]
    p_value: float | None
    canary_overlap: float | None
    verdict: Verdict
    reason: str
    measure: str = MEASURE
    evidence: str = MEASURE
    decision: Decision | None = None
    belief: Belief | None = None
    noise: float | None = None
    wins: int | None = None
    losses: int | None = None

    @property
    def passed(self) -> bool:
        """True if the head may go live without manual acceptance."""
        return self.verdict == "passed"

    def slice(self, name: str) -> Slice:
        """The slice "all", "seen" or "unseen"."""
        return next(part for part in self.slices if part.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the model's record."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "measure": self.measure,
            "evidence": self.evidence,
            "test": "one-sided paired bootstrap and sign flips, the larger p-value",
            "p_value": self.p_value,
            "noise": self.noise,
            "decision": None if self.decision is None else self.decision.to_dict(),
            "canary_overlap": self.canary_overlap,
            **({} if self.wins is None else {"wins": self.wins, "losses": self.losses}),
            **asdict(self.gate),
            "slices": [asdict(part) for part in self.slices],
        }

    def to_text(self) -> str:
        """A few lines for a terminal."""
        return report_text(self.to_dict())


def report_text(report: Mapping[str, Any]) -> str:
    """A report as it is recorded, in a few lines for a terminal."""
    lines = [f"gate: {report['verdict']}: {report['reason']}"]
    if report.get("decision") is not None:  # reports of earlier releases have none
        lines.append(f"  {report['decision']['text']}")
    lines += [_line_of(part, report["measure"], report["margin"]) for part in report["slices"]]
    if report.get("noise") is not None:  # reports of earlier releases have none
        required = f"a rise and an expected gain of {report['evidence']}"
        lines.append(f"  the judgements mean nothing with probability {report['noise']:.3f}")
    else:
        required = f"one-sided p ≤ {report['alpha']:g}"
        if report["p_value"] is not None:
            required += f" (got {report['p_value']:.4f})"
    lines.append(
        f"  required: {required}; on no slice a probability above {report['harm']:g} of losing more than "
        f"{report['margin']:g}; {amount(report['min_queries'], 'held-out query')}"
    )
    if report["canary_overlap"] is not None:
        share = f"{report['canary_overlap']:.0%} of their first {DEPTH} hits"
        lines.append(f"  canaries: stored documents as queries keep {share}")
    return "\n".join(lines)


def _line_of(part: Mapping[str, Any], measure: str, margin: float) -> str:
    line = f"  {part['name']:<7}{amount(part['queries'], 'held-out query'):>22}"
    difference = part["difference"]
    if part["before"] is not None and part["after"] is not None and difference is not None:
        gain = f"{difference['mean']:+.4f} [{difference['low']:+.4f}, {difference['high']:+.4f}]"
        line += f", {measure} {part['before']:.4f} → {part['after']:.4f} ({gain})"
    if part["harm"] is not None:
        line += f"; loses more than {margin:g} with probability {part['harm']:.2f}"
    return line


def judge(
    before: Answers | None,
    after: Answers | None,
    gate: Gate | None = None,
    *,
    belief: Belief | None = None,
    canary_overlap: float | None = None,
    need_slices: bool = True,
    measure: str = MEASURE,
    samples: int = SAMPLES,
    seed: int = 0,
) -> GateReport:
    """Verdict on a head by its answers to held-out queries and those of the live model.

    Args:
        before: the answers now; None when nothing was held out.
        after: the trained head's, for the same queries in the same order.
        gate: requirements of the gate.
        belief: what is expected of a candidate of this kind; None: it must be significant.
        canary_overlap: see `overlap_of_canaries`; reported, without effect on the verdict.
        need_slices: False: without a query about unseen documents they do not bound the decision, not even
            by the prior.
        measure: name of the measure, for the report; more is better.
        samples: number of resamplings.
        seed: random seed of the resampling.
    """
    gate = gate or Gate()
    belief = None if gate.significant else belief
    if before is None or after is None or len(before) == 0:
        slices = [Slice(name, 0, None, None, None) for name in ("all", "seen", "unseen")]
        reason = "no query was held out, so nobody can tell whether it helps"
        return GateReport(gate, slices, None, canary_overlap, "cannot tell", reason, measure)
    by_precision = before.precision is not None and after.precision is not None
    first, then = (
        of if by_precision else replace(of, precision=None, unseen_precision=None) for of in (before, after)
    )
    seen, unseen = np.flatnonzero(before.seen), np.flatnonzero(~np.isnan(before.unseen))
    flat, every = measure != MEASURE, np.arange(len(before))
    options: dict[str, Any] = {"flat": flat, "samples": samples, "seed": seed}
    of_all = first.all, then.all, first.evidence, then.evidence
    of_unseen = first.unseen, then.unseen, first.unseen_evidence, then.unseen_evidence
    slices = [
        _slice("all", *of_all, every, **options),
        _slice("seen", *of_all, seen, **options),
        _slice("unseen", *of_unseen, unseen, **options),
    ]
    whole = slices[0]
    assert whole.evidence is not None
    changes = after.all - before.all
    by_signs = sign_flip_p_value(then.evidence - first.evidence, samples=samples, seed=seed)
    report = GateReport(
        gate,
        slices,
        max(whole.evidence.p_one_sided, by_signs),
        canary_overlap,
        "cannot tell",
        "",
        measure,
        EVIDENCE if by_precision else measure,
        belief=belief,
        wins=int((changes > 1e-9).sum()),
        losses=int((changes < -1e-9).sum()),
    )
    # A slice that is the whole does not bound the verdict: where no two queries share a document, none is
    # seen and the unseen slice is the whole. An empty unseen slice bounds by its prior.
    bounding = [
        belief is not None,
        len(seen) not in (0, len(before)),
        len(seen) > 0 and (need_slices or len(unseen) > 0),
    ]
    return _decided(report if flat else _bounded(report, bounding))


def _slice(
    name: str,
    before: Float[np.ndarray, " queries"],
    after: Float[np.ndarray, " queries"],
    evidence_before: Float[np.ndarray, " queries"],
    evidence_after: Float[np.ndarray, " queries"],
    which: Int64[np.ndarray, " some"],
    *,
    flat: bool,
    samples: int,
    seed: int,
) -> Slice:
    if len(which) == 0:
        return Slice(name, 0, None, None, None)
    before, after = before[which], after[which]
    changes = (evidence_after - evidence_before)[which]
    columns = np.stack([after - before, changes], axis=1)
    difference, evidence = bootstrap_columns(columns, samples, seed)
    deviation = deviation_of(changes, FLAT if flat else WHOLE_PRIOR)
    return Slice(name, len(which), float(before.mean()), float(after.mean()), difference, evidence, deviation)


def _bounded(report: GateReport, bounding: Sequence[bool]) -> GateReport:
    """The report with the probability of noise, and of harm where a slice bounds the verdict."""
    whole, belief, noise = report.slices[0], report.belief, 0.0
    assert whole.evidence is not None
    assert whole.deviation is not None
    priors = [WHOLE_PRIOR, SLICE_PRIOR, SLICE_PRIOR]
    if belief is not None:
        priors = [belief.whole, belief.part, belief.part]
        noise = noise_after(belief.whole, belief.noise, whole.evidence.mean, whole.deviation, whole.queries)
        report = replace(report, noise=noise)
    slices = [
        replace(part, harm=noise + (1 - noise) * _change_of(part, prior).below(-report.gate.margin))
        if bounds
        else part
        for part, prior, bounds in zip(report.slices, priors, bounding, strict=True)
    ]
    return replace(report, slices=slices)


def _decided(report: GateReport) -> GateReport:
    """The report with its verdict, the reason, and the decision, from slices and p-value."""
    belief, noise = report.belief, report.noise or 0.0
    prior = FLAT if report.measure != MEASURE else WHOLE_PRIOR if belief is None else belief.whole
    gain = _change_of(report.slices[0], prior)
    expected = (1 - noise) * gain.mean - noise * LOSS_BY_NOISE
    verdict, reason, further = _verdict(report, expected)
    low, high = gain.quantile(0.05), gain.quantile(0.95)
    decision = Decision(expected, low, high, (1 - noise) * (1 - gain.below(0.0)), further)
    return replace(report, verdict=verdict, reason=reason, decision=decision)


def _change_of(part: Slice, prior: Normal) -> Normal:
    """The true mean change of a slice; the prior's where it has no query."""
    if part.evidence is None or part.deviation is None:
        return prior
    return posterior(part.evidence.mean, part.deviation, part.queries, prior)


def _verdict(report: GateReport, expected: float) -> tuple[Verdict, str, int | None]:
    """Verdict, reason, and how many further queries would settle it."""
    gate, measure, p_value = report.gate, report.measure, report.p_value
    whole = report.slices[0]
    assert whole.evidence is not None
    assert whole.deviation is not None
    assert p_value is not None
    mean = whole.evidence.mean
    change = f"held-out {measure} {whole.before:.4f} → {whole.after:.4f}"
    if report.evidence != measure:
        change += f", {report.evidence} {mean:+.4f}"
    further = further_for_significance(mean, whole.deviation, whole.queries, gate.alpha)
    if whole.queries < gate.min_queries:
        reason = f"{amount(whole.queries, 'held-out query')}, too few to judge by; use {gate.min_queries}"
        missing = gate.min_queries - whole.queries
        return "cannot tell", reason, missing if further is None else max(missing, further)
    if report.noise is not None and report.noise > gate.harm:
        reason = (
            "the live search ranks what was judged for a query hardly higher than what was judged for "
            f"another one: the judgements mean nothing with probability {report.noise:.2f} (allowed "
            f"{gate.harm:g})"
        )
        return "cannot tell", reason, None
    if mean <= 0:
        return "refused", f"{change}: it did not rise", None
    if report.noise is not None and expected <= 0:
        return "refused", f"{change}: the expected gain is {expected:+.4f}", None
    for part in report.slices:
        if part.harm is not None and part.harm > gate.harm:
            fell = part.evidence is not None and -part.evidence.mean > gate.margin
            verdict = "refused" if fell else "cannot tell"
            return verdict, _harm(part, gate, measure), _further_of_slice(part, whole.queries, report)
    if report.noise is not None:
        return "passed", f"{change}; expected gain {expected:+.4f}", None
    if p_value > gate.alpha:
        return "refused", f"{change}: not significant, p = {p_value:.3f} > {gate.alpha:g}", further
    return "passed", f"{change}, p = {p_value:.4f}", None


def _harm(part: Slice, gate: Gate, measure: str) -> str:
    """Words for a slice that may lose too much."""
    chance = (
        f"the probability is {part.harm:.2f} that they lose more than {gate.margin:g} (allowed {gate.harm:g})"
    )
    if part.difference is None:
        return f"no held-out query is about {part.name} documents; {chance}"
    moved = f"{part.before:.4f} → {part.after:.4f}"
    if part.name == "all":
        return f"held-out {measure} {moved}; {chance}"
    if part.difference.mean < 0:
        moved = f"falls by {-part.difference.mean:.4f} ({moved})"
    judged = amount(part.queries, "held-out query")
    return f"on {part.name} documents {measure} {moved} over {judged}; {chance}"


def _further_of_slice(part: Slice, queries: int, report: GateReport) -> int | None:
    """Further queries in all after which the slice would no longer be in doubt."""
    gate, prior = report.gate, SLICE_PRIOR
    if part.evidence is None or part.deviation is None:
        return None
    if report.belief is not None:
        prior = report.belief.whole if part.name == "all" else report.belief.part
    further = further_for_slice(
        part.evidence.mean, part.deviation, part.queries, prior, gate.margin, gate.harm
    )
    return None if further is None else rounded(further * queries / part.queries)


def preferred(
    of_tuned: GateReport, of_head: GateReport, tuned: Answers | None, trained: Answers | None
) -> tuple[GateReport, GateReport]:
    """The reports on a tuned search and the head trained from it, of which at most one passes.

    Args:
        of_tuned: report on the tuned search, against the live model.
        of_head: report on the head, against the live model.
        tuned: held-out answers of the tuned search; None if nothing was held out.
        trained: those of the head, to the same queries.
    """
    if not (of_tuned.passed and of_head.passed) or tuned is None or trained is None:
        return of_tuned, of_head
    changes = trained.evidence - tuned.evidence
    if changes.any() and not is_clear(-changes):
        return of_tuned, of_head
    reason = (
        f"{of_head.reason}; the tuned search passed too, and against it the head changes {of_head.evidence} "
        f"by {changes.mean():+.4f}"
    )
    return of_tuned, replace(of_head, verdict="cannot tell", reason=reason)


@torch.inference_mode()
def overlap_of_canaries(
    snapshot: Snapshot, before: Head, after: Head, *, count: int = CANARIES, seed: int = 0
) -> float | None:
    """Mean share of a stored document's ten nearest others that the new head keeps; None without others."""
    visible = snapshot.visible()
    if len(visible) < 2:
        return None
    every, rows = corpus_embeddings(snapshot), torch.as_tensor(visible)
    corpus, further = every[rows], FurtherPassages.of(snapshot, every)
    further = None if further is None else further.among(rows)
    depth = min(DEPTH, len(visible) - 1)
    drawn = np.random.default_rng(seed).choice(len(visible), min(count, len(visible)), replace=False)
    canaries = torch.as_tensor(np.sort(drawn))

    def nearest(head: Head) -> list[set[int]]:
        folded = head.fold(head.queries(corpus[canaries]))
        scores = product(folded, corpus)
        if further is not None:
            scores, _ = further.taken(folded, scores)
        order = Weighing(head.heads, head.mixture_of(folded), head.temperature).scores(scores, None).clone()
        order[torch.arange(len(canaries)), canaries] = -torch.inf
        return [set(row) for row in order.topk(depth, dim=1).indices.tolist()]

    shares = [len(a & b) / depth for a, b in zip(nearest(before), nearest(after), strict=True)]
    return float(np.mean(shares))


def judge_scores(job: SavingJob, gate: Gate) -> GateReport:
    """The gate's report on scores by the live version and by another one.

    Raises:
        InvalidRequest: scores that are no pairs, options that exclude each other.
    """
    job.check()
    if job.before is None or job.after is None:
        raise InvalidRequest("no scores to judge by; give before and after")
    before, after = Answers.of_scores(job.before), Answers.of_scores(job.after)
    return judge(before, after, gate, measure=job.measure, seed=job.seed)


def verdict_of(report: GateReport, compared_with: str | None) -> dict[str, Any]:
    """Members of a version's record: what a verdict says, and of a comparison with which live version."""
    return {
        "examples": report.slice("all").queries,
        "gate": report.to_dict(),
        "compared_with": compared_with,
    }
