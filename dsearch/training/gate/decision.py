"""Statistics behind the gate: what a candidate may be expected to gain, p-values, probabilities of harm.

The evidence is the change of average precision of each held-out query (of another measure where that is
given). A candidate of a kind that was measured on other collections is decided by a model average:

    noise     the judgements mean nothing; prior probability as gate/noise.py found it; the mean change is 0
    effect    the mean change μ is drawn from the prior of the kind of candidate, N(m, τ²)

    s² = (ν₀ s₀² + Σ (dᵢ − d̄)²) / (ν₀ + n − 1)         deviation of a query's change, n queries
    1/v = n/s² + 1/τ²                                   precision of the true mean change μ
    μ | d ~ N(v (n d̄/s² + m/τ²), v)                     Efron and Morris 1975
    odds of noise · N(d̄; 0, s²/n) / N(d̄; m, s²/n + τ²)

Any other candidate, and one that follows earlier tries on the same queries, must be significant: random sign
flips (Fisher 1935; Smucker, Allan and Carterette, CIKM 2007). The constants are those of average precision,
measured on five collections (guide `decisions`); other measures have a flat prior and the plain deviation.

`sentence_of` says the decision in one plain sentence, from the report as it is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from dsearch.errors import amount
from dsearch.training.gate.held_out import FEW_QUERIES

MEASURE = "nDCG@10"
SAMPLES = 10_000
POWER = 0.8  # with which the further queries would find a gain that is as large as it looks
QUERIES_AT_ONCE = 512  # 25 MiB of signs
MOST_FURTHER = 100_000  # beyond, the gain is as good as none
_TYPICAL_DEVIATION, _TYPICAL_COUNT = 0.15, 8.0  # s₀ and ν₀
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution of a true mean change; an infinite deviation is a flat prior."""

    mean: float
    deviation: float

    def below(self, bound: float) -> float:
        """The probability of a value below `bound`."""
        if self.deviation == 0:
            return float(self.mean < bound)
        return 0.5 * math.erfc((self.mean - bound) / (self.deviation * math.sqrt(2)))

    def quantile(self, share: float) -> float:
        """The value that this share of the distribution lies below."""
        return self.mean + self.deviation * _NORMAL.inv_cdf(share)


FLAT = Normal(0.0, math.inf)
WHOLE_PRIOR = Normal(0.012, 0.025)  # true changes of the mean over all held-out queries
SLICE_PRIOR = Normal(0.005, 0.014)  # those over seen or unseen documents

Kind = Literal["tuned", "memory", "head"]


class Belief(NamedTuple):
    """What is believed of a candidate before its held-out queries are looked at.

    `whole` and `part` are the priors of its mean change over all queries and over a slice, if the judgements
    mean something; `noise` is the probability that they do not.
    """

    whole: Normal
    part: Normal
    noise: float


class _Expected(NamedTuple):
    """Means and deviations of the true changes by a kind of candidate; those of all queries at 25 judged."""

    mean: float
    deviation: float
    part: Normal


_FEW, _WIDEST = 25, 0.04
_EXPECTED: dict[Kind, _Expected] = {
    "tuned": _Expected(0.012, 0.010, Normal(0.011, 0.010)),
    "memory": _Expected(0.020, 0.025, Normal(-0.004, 0.015)),
    "head": _Expected(0.020, 0.020, Normal(0.006, 0.011)),
}


def belief_of(kind: Kind, judged: int, noise: float) -> Belief:
    """The belief about a candidate.

    Gains differ more between collections the more queries were judged: τ grows with their square root.

    Args:
        kind: what it is.
        judged: number of judged queries that it learned from.
        noise: probability that the judgements mean nothing (gate/noise.py).
    """
    expected = _EXPECTED[kind]
    deviation = min(_WIDEST, expected.deviation * math.sqrt(max(1.0, judged / _FEW)))
    return Belief(Normal(expected.mean, deviation), expected.part, noise)


def noise_after(prior: Normal, noise: float, mean: float, deviation: float, queries: int) -> float:
    """The probability of noise after this many queries with this mean and deviation of their changes."""
    variance = max(deviation**2 / queries, 1e-12)
    effect = variance + prior.deviation**2
    log_odds = math.log(max(noise, 1e-12) / max(1 - noise, 1e-12)) + 0.5 * (
        math.log(effect / variance) + (mean - prior.mean) ** 2 / effect - mean**2 / variance
    )
    return float(1 / (1 + math.exp(-max(-700.0, min(700.0, log_odds)))))


@dataclass(frozen=True, slots=True)
class Decision:
    """Estimate of a candidate's gain, in the units of the evidence.

    Attributes:
        expected: expected gain over the live model.
        low, high: bounds of its central 90 % interval.
        helps: probability that the true gain is above 0.
        further_queries: about as many further judged queries would settle an undecided verdict; None where it
            is settled, or where more of the same would not change it.
    """

    expected: float
    low: float
    high: float
    helps: float
    further_queries: int | None = None

    def to_text(self) -> str:
        """The decision in one line."""
        text = f"{odds(self.helps)} that it helps: expected {self.expected:+.4f}, at worst {self.low:+.4f}"
        if self.further_queries is not None:
            text += f"; about {amount(self.further_queries, 'more judged query')} would settle it"
        return text

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the same in words."""
        return {**asdict(self), "text": self.to_text()}


def odds(probability: float) -> str:
    """A probability in words, rounded down: "9 in 10", "97 in 100"."""
    if probability > 0.99:
        return "more than 99 in 100"
    if probability < 0.01:
        return "less than 1 in 100"
    if 0.1 <= probability < 0.95:
        return f"{math.floor(10 * probability + 1e-9)} in 10"
    return f"{math.floor(100 * probability + 1e-9)} in 100"


def sign_flip_p_value(
    differences: Float[np.ndarray, " queries"],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> float:
    """The share of random sign patterns under which the mean difference is at least as high as observed.

    Queries that did not change have no part; (count + 1) / (samples + 1), as in the bootstrap.

    Args:
        differences: change of each query.
        samples: number of sign patterns.
        seed: random seed.
    """
    if not differences.any():
        return 1.0
    flipped = _flipped(differences, samples, seed)
    # Float sums in another order differ in their last bits; equal patterns must count as equal.
    as_high = flipped >= differences.sum() - 1e-5
    return float((as_high.sum() + 1) / (samples + 1))


def _flipped(values: Float[np.ndarray, " queries"], samples: int, seed: int) -> Float[np.ndarray, " samples"]:
    """Sums of the values under random signs."""
    changed, generator, sums = values[values != 0], np.random.default_rng(seed), np.zeros(samples)
    for start in range(0, len(changed), QUERIES_AT_ONCE):
        some = changed[start : start + QUERIES_AT_ONCE].astype(np.float32)
        signs = generator.integers(0, 2, (samples, len(some)), dtype=np.int8) * 2 - 1
        sums += signs.astype(np.float32) @ some
    return sums


def posterior(mean: float, deviation: float, queries: int, prior: Normal) -> Normal:
    """The posterior after this many queries with this mean and deviation of their changes."""
    if deviation == 0:
        return Normal(mean, 0.0)
    precision = queries / deviation**2 + prior.deviation**-2
    pulled = (mean * queries / deviation**2 + prior.mean * prior.deviation**-2) / precision
    return Normal(pulled, precision**-0.5)


def deviation_of(differences: Float[np.ndarray, " queries"], prior: Normal) -> float:
    """Deviation of a query's change, drawn towards the typical one of nDCG@10 unless the prior is flat."""
    count, squares = len(differences), float(((differences - differences.mean()) ** 2).sum())
    if math.isinf(prior.deviation):
        return math.sqrt(squares / max(1, count - 1))
    typical = _TYPICAL_COUNT * _TYPICAL_DEVIATION**2
    return math.sqrt((typical + squares) / (_TYPICAL_COUNT + count - 1))


def further_for_significance(mean: float, deviation: float, queries: int, alpha: float) -> int | None:
    """Further queries with which a gain of this mean would be significant, with a probability of .8.

        n = ((z₁₋α + z₀.₈) s / d̄)²

    Returns:
        None where the mean did not rise, or so little that no number of queries would do.
    """
    if mean <= 0:
        return None
    needed = ((_NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(POWER)) * deviation / mean) ** 2
    return rounded(needed - queries)


def further_for_slice(
    mean: float, deviation: float, queries: int, prior: Normal, margin: float, harm: float
) -> int | None:
    """Further queries of a slice after which its probability of a loss would be `harm`, at the same mean.

    Returns:
        None where the mean itself is such a loss, or nearly.
    """
    if mean <= -margin:
        return None
    further = 1
    while posterior(mean, deviation, queries + further, prior).below(-margin) > harm:
        further = math.ceil(further * 1.05)
        if further > MOST_FURTHER:
            return None
    return rounded(float(further))


def rounded(queries: float) -> int | None:
    """A number of queries with two digits, at least 1; None if it is beyond `MOST_FURTHER`."""
    if queries > MOST_FURTHER:
        return None
    count = max(1, math.ceil(queries))
    step = 10 ** max(0, len(str(count)) - 2)
    return math.ceil(count / step) * step


Outcome = Literal["live", "accepted", "kept", "outdated", "tuned", "recalling", "remembered"]
"""Outcome for a version.

`live`: it answers, since the gate passed; `accepted`: it answers by the user's consent; `kept`: it does not
answer; `outdated`: it does not, since another version went live after the comparison; `tuned`: the tuned
search beside it answers; `recalling`: the tuned search with a memory of past queries answers; `remembered`:
rows of past queries answer, from what users and agents did.
"""
_NAMES: dict[Outcome, str] = {
    "tuned": "The tuned search",
    "recalling": "The tuned search with a memory of past queries",
    "remembered": "The memory of past queries",
}
LIKE_USERS, LOGGED = "queries like those of users", "logged queries"
"""Kinds of queries that a head which learned from the corpus is judged by, besides held-out sentences."""


def sentence_of(gate: Mapping[str, Any], outcome: Outcome) -> str:
    """Return how many held-out queries got better and worse, by how much, and what follows.

    Args:
        gate: `GateReport.to_dict`, of the version that answers now or would have.
        outcome: what became of the version.
    """
    named = _NAMES.get(outcome, "The new version")
    whole = next((part for part in gate.get("slices", ()) if part["name"] == "all"), None)
    if whole is None or not whole["queries"] or whole["difference"] is None:
        return f"No query was held out, so nobody can tell whether it is better: {_end(gate, outcome)}"
    measure, difference = gate.get("measure", MEASURE), whole["difference"]
    figures = (
        f"{measure} {_short(whole['before'])} → {_short(whole['after'])}, "
        f"change {_signed(difference['low'])} to {_signed(difference['high'])} at 95 %"
    )
    wins, losses = gate.get("wins"), gate.get("losses")
    count = _examples(whole["queries"], measure)
    if wins is None or losses is None:
        return f"{named} was compared on {count} that were held out ({figures}): {_end(gate, outcome)}"
    if wins == losses == 0:
        return f"{named} answers {count} as well as before ({figures}): {_end(gate, outcome)}"
    counts = f"answers {wins} of {count} better and {losses} worse"
    return f"{named} {counts} ({figures}): {_end(gate, outcome)}"


def _end(gate: Mapping[str, Any], outcome: Outcome) -> str:
    if outcome in ("live", "tuned", "recalling", "remembered"):
        return "it is live."
    if outcome == "accepted":
        return "it is live, as you asked."
    if outcome == "outdated":
        return "it is not live, since another version became live after the comparison; compare the two."
    if gate.get("verdict") == "passed":
        return "it is not live, as you asked; promote it to let it answer."
    why, otherwise = _why_not(gate)
    decision = gate.get("decision") or {}
    further = decision.get("further_queries")
    if further:
        noun = "query" if gate.get("measure", MEASURE) == MEASURE else "example"
        more = amount(further, f"more judged {noun}").replace(str(further), f"{further:,}", 1)
        otherwise = f"about {more} would settle it"
    return f"it is not live, since {why}{otherwise and f'; {otherwise}'}."


def _why_not(gate: Mapping[str, Any]) -> tuple[str, str]:
    """The cause of a refusal, and what to do where no number of further queries is known to settle it."""
    whole, *parts = gate["slices"]
    reason, fewest = gate.get("reason", ""), gate.get("min_queries", 10)
    if whole["difference"] is None and "no trusted slice" in reason:
        trusted = "it learned from feedback, and no judgements were given that are trusted to judge it"
        return trusted, "train again with judgements beside the feedback"
    if whole["difference"] is None:
        return f"at least {amount(fewest, 'judged query is', 'judged queries are')} needed", ""
    if whole["queries"] < fewest:
        count = _examples(whole["queries"], gate.get("measure", MEASURE), "held-out ")
        return f"{count} {'is' if whole['queries'] == 1 else 'are'} too few to judge by", ""
    if whole["difference"]["mean"] <= 0:
        return "it did not get better", "the search stays as it was"
    for part in parts:
        if part.get("harm") is not None and part["harm"] > gate["harm"]:
            before = "judged before" if part["name"] == "seen" else "not judged before"
            if part["difference"] is None:
                return (
                    f"no held-out query is about documents {before}",
                    "judge some that are and train again",
                )
            return f"queries about documents {before} may lose by it", "judge more of them and train again"
    for kind, named in (
        (LIKE_USERS, "queries made of other documents"),
        (LOGGED, "queries that users asked"),
    ):
        if kind in reason:
            return f"{named} may lose by it", "train on judged queries instead"
    p_value = gate.get("p_value")
    if p_value is None or p_value > gate.get("alpha", 0.05):
        return "the gain may be chance", "it is too small for more queries to tell"
    return reason, ""


def _examples(count: int, measure: str, kind: str = "") -> str:
    """A count of what was held out, which by other measures than that of rankings may be no queries."""
    return amount(count, f"{kind}query" if measure == MEASURE else f"{kind}example")


def _short(number: float) -> str:
    """Three digits, without the zero before the point."""
    text = f"{round(number, 3) + 0.0:.3f}"  # -0.0 + 0.0 is 0.0
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _signed(number: float) -> str:
    """The same with its sign; 0 has none."""
    return _short(number) if round(number, 3) <= 0 else f"+{_short(number)}"


def missing_queries(judged: int) -> int:
    """Return the number of further judged queries that reliable training needs."""
    return max(0, FEW_QUERIES - judged)
