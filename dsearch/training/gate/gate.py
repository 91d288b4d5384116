"""Gate: decide by held-out queries whether a trained head may go live.

It may if both hold:
    gain        nDCG@10 over all held-out queries rises, significantly at `alpha` (one-sided, paired)
    no loss     on no slice (seen, unseen documents) does the mean fall by more than `margin`

Significance is the larger of two p-values: the bootstrap's (Efron 1979; Sakai, SIGIR 2006) and that of random
sign flips (Fisher 1935; Smucker, Allan and Carterette, CIKM 2007). A head with a small effect changes three
or four queries; if all of them happen to rise, the bootstrap alone calls that significant.

There may be two candidates: the tuned search, and the head that was trained from it.

Both must beat the live model. Two chances to pass would double α, so they are tested together by Hochberg's
procedure (Biometrika 75:800, 1988; both are compared with the same answers, so their p-values are positively
dependent, for which it holds: Sarkar and Chang 1997): at α if both reach it, else at α / 2 each.

If both pass, the tuned search goes live unless the head beats it too: it costs nothing and changes no
embedding.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Snapshot
from dsearch.errors import InvalidRequest
from dsearch.evaluation import Interval, bootstrap_columns
from dsearch.jobs import ALPHA, MARGIN
from dsearch.products import product
from dsearch.training.gate.held_out import Answers
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.ranking import DEPTH, corpus_embeddings

MEASURE = "nDCG@10"
SAMPLES = 10_000
CANARIES = 200

Verdict = Literal["passed", "refused", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Gate:
    """Requirements on a head before it may go live.

    Attributes:
        alpha: largest p-value that counts as a gain.
        margin: largest tolerated fall of a slice's mean nDCG@10.
        min_queries: smallest number of held-out queries in a slice for a decision.
    """

    alpha: float = ALPHA
    margin: float = MARGIN
    min_queries: int = 50

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise InvalidRequest(f"alpha={self.alpha}; use a number between 0 and 1")
        if not 0 <= self.margin < 1:
            raise InvalidRequest(f"margin={self.margin}; use a number from 0 to below 1")
        if self.min_queries < 1:
            raise InvalidRequest(f"min_queries={self.min_queries}; use an integer of at least 1")


@dataclass(frozen=True, slots=True)
class Slice:
    """Held-out queries of one kind, before and after; None where there are no queries."""

    name: str
    queries: int
    before: float | None
    after: float | None
    difference: Interval | None


@dataclass(frozen=True, slots=True)
class GateReport:
    """Report of the gate: the slices, the canaries, the verdict and the reason for it in words.

    `canary_overlap` is the mean share of the ten nearest documents of a stored document that stay its ten
    nearest; `p_value` the larger of the two.
    """

    gate: Gate
    slices: list[Slice]
    p_value: float | None
    canary_overlap: float | None
    verdict: Verdict
    reason: str
    measure: str = MEASURE

    @property
    def passed(self) -> bool:
        """True if the head may go live without manual acceptance."""
        return self.verdict == "passed"

    def before(self, gate: Gate) -> GateReport:
        """Evaluate the same evidence by another gate, with every slice judged."""
        if self.p_value is None:
            return replace(self, gate=gate)
        verdict, reason = _verdict(gate, self.slices, self.p_value, measure=self.measure)
        return replace(self, gate=gate, verdict=verdict, reason=reason)

    def slice(self, name: str) -> Slice:
        """The slice "all", "seen" or "unseen"."""
        return next(one for one in self.slices if one.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the model's record."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "measure": self.measure,
            "test": "one-sided paired bootstrap and sign flips, the larger p-value",
            "p_value": self.p_value,
            "canary_overlap": self.canary_overlap,
            **asdict(self.gate),
            "slices": [asdict(one) for one in self.slices],
        }

    def to_text(self) -> str:
        """A few lines for a terminal."""
        lines = [f"gate: {self.verdict}: {self.reason}"]
        for one in self.slices:
            if one.before is None or one.after is None or one.difference is None:
                lines.append(f"  {one.name:<7}{one.queries:>5} held-out queries")
                continue
            interval = f"[{one.difference.low:+.4f}, {one.difference.high:+.4f}]"
            lines.append(
                f"  {one.name:<7}{one.queries:>5} held-out queries, {self.measure} {one.before:.4f} → "
                f"{one.after:.4f} ({one.difference.mean:+.4f} {interval})"
            )
        asked = f"  asked: a gain with p ≤ {self.gate.alpha:g} (one-sided)"
        if self.p_value is not None:
            asked += f", is p = {self.p_value:.4f}"
        lines.append(
            f"{asked}; no slice falls by more than {self.gate.margin:g}; "
            f"{self.gate.min_queries} queries in each"
        )
        if self.canary_overlap is not None:
            lines.append(
                f"  canaries: stored documents as queries keep {self.canary_overlap:.0%} "
                f"of their first {DEPTH} hits"
            )
        return "\n".join(lines)


def judge(
    before: Answers | None,
    after: Answers | None,
    gate: Gate | None = None,
    *,
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
        canary_overlap: see `overlap_of_canaries`; reported, without effect on the verdict.
        need_slices: False: a slice of too few queries is not judged, so long as there are enough in all.
        measure: name of the measure, for the report; more is better.
        samples: number of resamplings.
        seed: random seed of the resampling.
    """
    gate = gate or Gate()
    if before is None or after is None or len(before) == 0:
        slices = [Slice(name, 0, None, None, None) for name in ("all", "seen", "unseen")]
        reason = "no query was held out, so nobody can tell whether it helps"
        return GateReport(gate, slices, None, canary_overlap, "cannot tell", reason, measure)
    unseen = ~np.isnan(before.unseen)
    slices = [
        _slice("all", before.all, after.all, samples, seed),
        _slice("seen", before.all[before.seen], after.all[before.seen], samples, seed),
        _slice("unseen", before.unseen[unseen], after.unseen[unseen], samples, seed),
    ]
    whole = slices[0]
    assert whole.difference is not None
    p_value = max(
        whole.difference.p_one_sided, sign_flip_p_value(after.all - before.all, samples=samples, seed=seed)
    )
    verdict, reason = _verdict(gate, slices, p_value, need_slices, measure)
    return GateReport(gate, slices, p_value, canary_overlap, verdict, reason, measure)


def _verdict(
    gate: Gate, slices: list[Slice], p_value: float, need_slices: bool = True, measure: str = MEASURE
) -> tuple[Verdict, str]:
    whole, seen, unseen = slices
    assert whole.difference is not None
    change = f"held-out {measure} {whole.before:.4f} → {whole.after:.4f}"
    if whole.difference.mean <= 0:
        return "refused", f"{change}: it did not rise"
    for one in (seen, unseen):
        if (
            one.difference is not None
            and -one.difference.mean > gate.margin
            and one.queries >= gate.min_queries
        ):
            return "refused", (
                f"on {one.name} documents {measure} falls by {-one.difference.mean:.4f} "
                f"({one.before:.4f} → {one.after:.4f}; allowed {gate.margin:g})"
            )
    # Where no two queries share a document, nothing can be seen twice: that slice is empty by nature.
    short = [one for one in (whole, seen, unseen) if one.queries < gate.min_queries and one.queries > 0]
    if unseen.queries == 0:
        short.append(unseen)
    if not need_slices:
        short = [one for one in short if one is whole]
    if short:
        counts = ", ".join(f"{one.queries} held-out queries ({one.name} documents)" for one in short)
        return "cannot tell", f"{counts} are too few to judge by; {gate.min_queries} are needed"
    if p_value > gate.alpha:
        return "refused", f"{change}: not significant, p = {p_value:.3f} > {gate.alpha:g}"
    return "passed", f"{change}, p = {p_value:.4f}"


def sign_flip_p_value(
    differences: Float[np.ndarray, " queries"], *, samples: int = SAMPLES, seed: int = 0
) -> float:
    """The share of random sign patterns under which the mean difference is at least as high as it is.

    Queries that did not change have no part; (count + 1) / (samples + 1), as in the bootstrap.
    """
    changed = differences[differences != 0]
    if len(changed) == 0:
        return 1.0
    generator = np.random.default_rng(seed)
    signs = generator.integers(0, 2, size=(samples, len(changed)), dtype=np.int8) * 2 - 1
    flipped = signs.astype(np.float32) @ changed.astype(np.float32)
    # Float sums in another order differ in their last bits; equal patterns must count as equal.
    as_high = flipped >= changed.sum() - 1e-5
    return float((as_high.sum() + 1) / (samples + 1))


@torch.inference_mode()
def overlap_of_canaries(
    snapshot: Snapshot, before: Head, after: Head, *, count: int = CANARIES, seed: int = 0
) -> float | None:
    """Mean share of a stored document's ten nearest others that the new head keeps; None without others."""
    visible = snapshot.visible()
    if len(visible) < 2:
        return None
    every, shown = corpus_embeddings(snapshot), torch.as_tensor(visible)
    corpus, further = every[shown], FurtherPassages.of(snapshot, every)
    further = None if further is None else further.among(shown)
    depth = min(DEPTH, len(visible) - 1)
    drawn = np.random.default_rng(seed).choice(len(visible), min(count, len(visible)), replace=False)
    canaries = torch.as_tensor(np.sort(drawn))

    def nearest(head: Head) -> list[set[int]]:
        folded = head.fold(head.queries(corpus[canaries]))
        scores = product(folded, corpus)
        if further is not None:
            scores, _ = further.taken(folded, scores)
        logits = scores / head.temperature
        mixed = (head.mixture.log()[:, None] + logits.log_softmax(-1)).logsumexp(1)
        mixed[torch.arange(len(canaries)), canaries] = -torch.inf
        return [set(row) for row in mixed.topk(depth, dim=1).indices.tolist()]

    shares = [len(a & b) / depth for a, b in zip(nearest(before), nearest(after), strict=True)]
    return float(np.mean(shares))


def _slice(
    name: str,
    before: Float[np.ndarray, " queries"],
    after: Float[np.ndarray, " queries"],
    samples: int,
    seed: int,
) -> Slice:
    if len(before) == 0:
        return Slice(name, 0, None, None, None)
    difference = bootstrap_columns((after - before)[:, None], samples, seed)[0]
    return Slice(name, len(before), float(before.mean()), float(after.mean()), difference)


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
    """Evaluate the tuned search and the head together; return the report on each.

    Args:
        of_tuned: report on the tuned search alone.
        now: held-out answers of the live model; None if nothing was held out.
        tuned: held-out answers of the tuned search.
        trained: held-out answers of the trained head.
        gate: requirements on both together.
        canary_overlap: canary overlap of the head; reported, without effect on the verdict.
        seed: random seed of the resampling.
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
