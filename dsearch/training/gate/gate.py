"""Gate: decide by held-out queries whether a trained head may go live.

It may if all of these hold:
    gain        nDCG@10 over all held-out queries rises, significantly at `alpha` (one-sided, paired)
    no harm     on neither slice (seen, unseen documents) is the probability above `harm` that the true mean
                falls by more than `margin`
    enough      `min_queries` held-out queries

Significance is the larger of two p-values: the bootstrap's (Efron 1979; Sakai, SIGIR 2006) and that of random
sign flips. A head with a small effect changes three or four queries; if all of them happen to rise, the
bootstrap alone calls that significant. A small slice bounds the decision by as much as it says: its
probability of harm has a shrinkage prior (decision.py).

There may be two candidates: the tuned search, and the head that was trained from it. Both are compared with
the live model and tested together, by a step-down test with shared sign flips (decision.py), in which the
tuned search has first claim on most of α: without it, training would refuse what tuning alone lets through.

If both pass, the tuned search goes live unless the head beats it too: it costs nothing and changes no
embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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
    Decision,
    Normal,
    deviation_of,
    further_for_significance,
    further_for_slice,
    on_common_queries,
    posterior,
    rounded,
    sign_flip_p_value,
    step_down_p_values,
)
from dsearch.training.gate.held_out import Answers
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.ranking import corpus_embeddings
from dsearch.training.relevant import DEPTH

CANARIES = 200
CLAIMS = (0.8, 0.2)  # on α, of the tuned search (of feedback: its rows) and of the head

Verdict = Literal["passed", "refused", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Gate:
    """Requirements on a head before it may go live.

    Attributes:
        alpha: largest p-value that counts as a gain.
        margin: tolerated fall of a slice's mean nDCG@10.
        min_queries: smallest number of held-out queries for a decision.
        harm: largest probability that a slice's true mean falls by more than `margin`.
    """

    alpha: float = RISKS[BALANCED].alpha
    margin: float = MARGIN
    min_queries: int = 10
    harm: float = RISKS[BALANCED].harm

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
        """The gate of a named risk; an `alpha` that is given takes the place of its own.

        Raises:
            InvalidRequest: an unknown risk.
        """
        if risk not in RISKS:
            raise InvalidRequest(f"risk={risk!r}; use one of {', '.join(RISKS)}")
        return cls(RISKS[risk].alpha if alpha is None else alpha, margin, harm=RISKS[risk].harm)


@dataclass(frozen=True, slots=True)
class Slice:
    """Held-out queries of one kind, before and after; None where there are no queries.

    Attributes:
        name: "all", "seen" or "unseen".
        queries: number of queries.
        before, after: means of the measure.
        difference: mean change, with its bootstrap interval.
        deviation: deviation of a query's change, as the decision takes it (decision.py).
        harm: probability that the true mean falls by more than the margin; None where the slice does not
            bound the verdict, because it is the whole or because nothing could be in it.
    """

    name: str
    queries: int
    before: float | None
    after: float | None
    difference: Interval | None
    deviation: float | None = None
    harm: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QueryChanges:
    """Change of each held-out query, and its index among all judged queries where it is known."""

    values: Float[np.ndarray, " queries"]
    queries: Int64[np.ndarray, " queries"] | None = None

    def counts(self) -> dict[str, int]:
        """Number of queries that are answered better, and worse."""
        return {"wins": int((self.values > 1e-9).sum()), "losses": int((self.values < -1e-9).sum())}


@dataclass(frozen=True, slots=True)
class GateReport:
    """Report of the gate: the slices, the canaries, the verdict and the reason for it in words.

    `canary_overlap` is the mean share of the ten nearest documents of a stored document that stay its ten
    nearest; `p_value` the larger of the two, adjusted where candidates were tested together; `p_value_alone`
    the same before that.
    """

    gate: Gate
    slices: list[Slice]
    p_value: float | None
    canary_overlap: float | None
    verdict: Verdict
    reason: str
    measure: str = MEASURE
    decision: Decision | None = None
    p_value_alone: float | None = None
    changes: QueryChanges | None = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool:
        """True if the head may go live without manual acceptance."""
        return self.verdict == "passed"

    def adjusted(self, p_value: float) -> GateReport:
        """The same evidence with a p-value that was adjusted for several candidates."""
        return replace(_decided(replace(self, p_value=p_value)), p_value_alone=self.p_value)

    def slice(self, name: str) -> Slice:
        """The slice "all", "seen" or "unseen"."""
        return next(part for part in self.slices if part.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the model's record."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "measure": self.measure,
            "test": "one-sided paired bootstrap and sign flips, the larger p-value",
            "p_value": self.p_value,
            "p_value_alone": self.p_value if self.p_value_alone is None else self.p_value_alone,
            "decision": None if self.decision is None else self.decision.to_dict(),
            "canary_overlap": self.canary_overlap,
            **({} if self.changes is None else self.changes.counts()),
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
    required = f"  asked: a gain with p ≤ {report['alpha']:g} (one-sided)"
    if report["p_value"] is not None:
        required += f", is p = {report['p_value']:.4f}"
    lines.append(
        f"{required}; on no slice a probability above {report['harm']:g} of losing more than "
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
    canary_overlap: float | None = None,
    need_slices: bool = True,
    measure: str = MEASURE,
    queries: Int64[np.ndarray, " queries"] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> GateReport:
    """Verdict on a head by its answers to held-out queries and those of the live model.

    Args:
        before: the answers now; None when nothing was held out.
        after: the trained head's, for the same queries in the same order.
        gate: requirements of the gate.
        canary_overlap: see `overlap_of_canaries`; reported, without effect on the verdict.
        need_slices: False: without a query about unseen documents they do not bound the decision, not even
            by the prior.
        measure: name of the measure, for the report; more is better.
        queries: index of each query among all judged ones, for `judge_candidates`.
        samples: number of resamplings.
        seed: random seed of the resampling.
    """
    gate = gate or Gate()
    if before is None or after is None or len(before) == 0:
        slices = [Slice(name, 0, None, None, None) for name in ("all", "seen", "unseen")]
        reason = "no query was held out, so nobody can tell whether it helps"
        return GateReport(gate, slices, None, canary_overlap, "cannot tell", reason, measure)
    unseen = ~np.isnan(before.unseen)
    prior = WHOLE_PRIOR if measure == MEASURE else FLAT
    changes = after.all - before.all
    whole = _slice("all", before.all, after.all, prior, samples, seed)
    slices = [
        whole,
        _slice("seen", before.all[before.seen], after.all[before.seen], prior, samples, seed),
        _slice("unseen", before.unseen[unseen], after.unseen[unseen], prior, samples, seed),
    ]
    # A slice that is the whole does not bound the verdict: where no two queries share a document, none is
    # seen and the unseen slice is the whole. An empty unseen slice bounds by its prior.
    seen = int(before.seen.sum())
    bounding = [seen not in (0, len(before)), seen > 0 and (need_slices or bool(unseen.any()))]
    if measure == MEASURE:
        slices[1:] = [
            _with_harm(part, gate) if bounds else part
            for part, bounds in zip(slices[1:], bounding, strict=True)
        ]
    assert whole.difference is not None
    by_signs = sign_flip_p_value(changes, queries=queries, samples=samples, seed=seed)
    p_value = max(whole.difference.p_one_sided, by_signs)
    paired = QueryChanges(changes, queries)
    return _decided(
        GateReport(gate, slices, p_value, canary_overlap, "cannot tell", "", measure, changes=paired)
    )


def _slice(
    name: str,
    before: Float[np.ndarray, " queries"],
    after: Float[np.ndarray, " queries"],
    prior: Normal,
    samples: int,
    seed: int,
) -> Slice:
    if len(before) == 0:
        return Slice(name, 0, None, None, None)
    changes = after - before
    difference = bootstrap_columns(changes[:, None], samples, seed)[0]
    deviation = deviation_of(changes, prior)
    return Slice(name, len(before), float(before.mean()), float(after.mean()), difference, deviation)


def _with_harm(part: Slice, gate: Gate) -> Slice:
    """The slice with its probability of harm; that of the prior where it has no query."""
    true_change = SLICE_PRIOR
    if part.difference is not None and part.deviation is not None:
        true_change = posterior(part.difference.mean, part.deviation, part.queries, SLICE_PRIOR)
    return replace(part, harm=true_change.below(-gate.margin))


def _decided(report: GateReport) -> GateReport:
    """The report with its verdict, the reason, and the decision, from slices and p-value."""
    verdict, reason, further = _verdict(report)
    whole = report.slices[0]
    assert whole.difference is not None
    assert whole.deviation is not None
    prior = WHOLE_PRIOR if report.measure == MEASURE else FLAT
    gain = posterior(whole.difference.mean, whole.deviation, whole.queries, prior)
    decision = Decision(gain.mean, gain.quantile(0.05), gain.quantile(0.95), 1 - gain.below(0.0), further)
    return replace(report, verdict=verdict, reason=reason, decision=decision)


def _verdict(report: GateReport) -> tuple[Verdict, str, int | None]:
    """Verdict, reason, and how many further queries would settle it."""
    gate, measure, p_value = report.gate, report.measure, report.p_value
    whole, *parts = report.slices
    assert whole.difference is not None
    assert whole.deviation is not None
    assert p_value is not None
    mean = whole.difference.mean
    change = f"held-out {measure} {whole.before:.4f} → {whole.after:.4f}"
    further = further_for_significance(mean, whole.deviation, whole.queries, gate.alpha)
    if whole.queries < gate.min_queries:
        reason = f"{amount(whole.queries, 'held-out query')}, too few to judge by; use {gate.min_queries}"
        missing = gate.min_queries - whole.queries
        return "cannot tell", reason, missing if further is None else max(missing, further)
    if mean <= 0:
        return "refused", f"{change}: it did not rise", None
    for part in parts:
        if part.harm is not None and part.harm > gate.harm:
            fell = part.difference is not None and -part.difference.mean > gate.margin
            verdict = "refused" if fell else "cannot tell"
            return verdict, _harm(part, gate, measure), _further_of_slice(part, whole.queries, gate)
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
    if part.difference.mean < 0:
        moved = f"falls by {-part.difference.mean:.4f} ({moved})"
    judged = amount(part.queries, "held-out query")
    return f"on {part.name} documents {measure} {moved} over {judged}; {chance}"


def _further_of_slice(part: Slice, queries: int, gate: Gate) -> int | None:
    """Further queries in all after which the slice would no longer be in doubt."""
    if part.difference is None or part.deviation is None:
        return None
    further = further_for_slice(
        part.difference.mean, part.deviation, part.queries, SLICE_PRIOR, gate.margin, gate.harm
    )
    return None if further is None else rounded(further * queries / part.queries)


def judge_candidates(
    of_tuned: GateReport,
    now: Answers | None,
    tuned: Answers | None,
    trained: Answers | None,
    gate: Gate | None = None,
    *,
    canary_overlap: float | None = None,
    queries: Int64[np.ndarray, " queries"] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> tuple[GateReport, GateReport]:
    """Evaluate the tuned search and the head together; return the report on each.

    Args:
        of_tuned: report on the tuned search alone.
        now: held-out answers of the live model; None if nothing was held out.
        tuned: held-out answers of the tuned search.
        trained: held-out answers of the trained head.
        gate: requirements on both together.
        canary_overlap: canary overlap of the head; reported, without effect on the verdict.
        queries: index of each held-out query among all judged ones, as `judge` had for the tuned search;
            None pairs the two by `tuned` where they were judged on as many queries, else not at all.
        samples: number of resamplings.
        seed: random seed of the resampling.
    """
    options: dict[str, Any] = {"canary_overlap": canary_overlap, "queries": queries}
    of_head = judge(now, trained, gate, samples=samples, seed=seed, **options)
    if of_tuned.p_value is not None and of_head.p_value is not None:
        together, indices = _side_by_side(of_tuned, of_head, now, tuned)
        p_tuned, p_head = step_down_p_values(
            together,
            (of_tuned.p_value, of_head.p_value),
            queries=indices,
            weights=CLAIMS,
            samples=samples,
            seed=seed,
        )
        of_tuned, of_head = of_tuned.adjusted(p_tuned), of_head.adjusted(p_head)
    against = "what answers now"
    if of_tuned.passed and of_head.passed:
        against = "the tuned search"
        of_head = judge(tuned, trained, gate, samples=samples, seed=seed, **options)
    return of_tuned, replace(of_head, reason=f"against {against}: {of_head.reason}")


def _side_by_side(
    of_tuned: GateReport, of_head: GateReport, now: Answers | None, tuned: Answers | None
) -> tuple[Float[np.ndarray, "candidates queries"], Int64[np.ndarray, " queries"]]:
    """Changes by both candidates, one row each with a column for each query, and the queries' indices.

    NaN: not judged on that query. Queries not known to be the same count as different, which is stricter.
    """
    first, second = of_tuned.changes, of_head.changes
    assert first is not None
    assert second is not None
    if first.queries is not None and second.queries is not None:
        return on_common_queries([(first.values, first.queries), (second.values, second.queries)])
    indices = np.arange(len(first.values) + len(second.values))
    if now is not None and tuned is not None and len(first.values) == len(second.values):
        return np.stack([tuned.all - now.all, second.values]), indices[: len(second.values)]
    of_second, of_first = np.split(indices, [len(second.values)])
    return on_common_queries([(first.values, of_first), (second.values, of_second)])


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
