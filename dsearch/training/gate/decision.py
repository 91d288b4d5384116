"""Statistics behind the gate: p-values of one or several candidates, probabilities of gain and harm, power.

One candidate: random sign flips (Fisher 1935; Smucker, Allan and Carterette, CIKM 2007). Several candidates:
the step-down min-p test of Westfall and Young (1993; Romano and Wolf, JASA 100:94, 2005) with sign flips that
all candidates share, so highly correlated candidates pay almost nothing for being several.

The probability that a mean change is below a bound uses a normal prior (Efron and Morris 1975):

    s² = (ν₀ s₀² + Σ (dᵢ − d̄)²) / (ν₀ + n − 1)         deviation of a query's change, n queries
    1/v = n/s² + 1/τ²                                   precision of the true mean change μ
    μ | d ~ N(v (n d̄/s² + m/τ²), v)                     m, τ: mean and deviation of the prior

The constants are those of nDCG@10, measured on four collections (guide `decisions`); other measures have a
flat prior and the plain deviation.

`sentence_of` says the decision in one plain sentence, from the report as it is recorded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int64

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


@dataclass(frozen=True, slots=True)
class Decision:
    """Estimate of a candidate's gain, in the units of the measure.

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
    queries: Int64[np.ndarray, " queries"] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> float:
    """The share of random sign patterns under which the mean difference is at least as high as observed.

    Queries that did not change have no part; (count + 1) / (samples + 1), as in the bootstrap.

    Args:
        differences: change of each query.
        queries: indices of the queries, which decide about their signs; their places when None.
        samples: number of sign patterns.
        seed: random seed.
    """
    if not differences.any():
        return 1.0
    flipped = _flipped(differences[:, None], queries, samples, seed)[:, 0]
    # Float sums in another order differ in their last bits; equal patterns must count as equal.
    as_high = flipped >= differences.sum() - 1e-5
    return float((as_high.sum() + 1) / (samples + 1))


def step_down_p_values(
    differences: Float[np.ndarray, "candidates queries"],
    p_values: Sequence[float],
    *,
    queries: Int64[np.ndarray, " queries"] | None = None,
    weights: Sequence[float] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> list[float]:
    """p-values of candidates that are tested together, adjusted for their number.

    Under the null hypothesis the differences of a query change sign together. The adjusted p-value of a
    candidate is the share of sign patterns under which any candidate that is not yet rejected has a p-value,
    divided by its weight, as low as the observed one. It is never below the given p-value, and equal to it
    for candidates that are the same.

    Args:
        differences: one row for each candidate; NaN where a candidate was not judged on a query. Only the
            joint distribution under flips is taken from them.
        p_values: p-value of each candidate by itself, by `sign_flip_p_value` with the same seed or higher.
        queries: indices of the queries; their places when None.
        weights: shares of α that the candidates have first claim on; equal when None.
        samples: number of sign patterns.
        seed: random seed.
    """
    shares = np.ones(len(p_values)) if weights is None else np.asarray(weights, float)
    scale = np.maximum(np.sqrt(np.nansum(differences**2, axis=1)), 1e-12)
    sizes = np.nan_to_num(differences / scale[:, None])
    flipped = np.round(_flipped(sizes.T, queries, samples, seed), 4)  # equal patterns, equal values
    ranked = np.sort(flipped, axis=0)
    lower = [np.searchsorted(*columns) for columns in zip(ranked.T, flipped.T, strict=True)]
    # p-value of each candidate under each sign pattern: the share of patterns with a sum at least as high.
    null = (samples - np.stack(lower, axis=1)) / samples / shares
    observed = np.asarray(p_values, float) / shares
    adjusted, largest, left = np.array(p_values, float), 0.0, list(range(len(shares)))
    for candidate in np.argsort(observed, kind="stable"):  # step down from the most significant one
        as_low = (null[:, left].min(axis=1) <= observed[candidate] + 1e-12).mean()
        largest = max(largest, float(as_low), adjusted[candidate])  # never below that of the step before
        adjusted[candidate] = largest
        left.remove(int(candidate))
    return [min(1.0, float(p_value)) for p_value in adjusted]


def _flipped(
    values: Float[np.ndarray, "queries columns"],
    queries: Int64[np.ndarray, " queries"] | None,
    samples: int,
    seed: int,
) -> Float[np.ndarray, "samples columns"]:
    """Sums of the values under random signs; a query has the same ones in every column and call."""
    changed = np.flatnonzero(values.any(axis=1))
    indices = changed if queries is None else queries[changed]
    single, sums = values[changed].astype(np.float32), np.zeros((samples, values.shape[1]))
    for start in range(0, len(changed), QUERIES_AT_ONCE):
        bits = [_bits(seed, int(of), -(-samples // 8)) for of in indices[start : start + QUERIES_AT_ONCE]]
        packed = np.frombuffer(b"".join(bits), np.uint8).reshape(len(bits), -1)
        signs = np.unpackbits(packed, axis=1, count=samples).astype(np.float32)
        signs *= 2
        signs -= 1
        sums += signs.T @ single[start : start + QUERIES_AT_ONCE]
    return sums


@functools.lru_cache(1 << 12)  # 5 MiB; slices and candidates of a gate are judged on the same queries
def _bits(seed: int, query: int, count: int) -> bytes:
    return np.random.default_rng([seed, query]).bytes(count)


def on_common_queries(
    parts: Sequence[tuple[Float[np.ndarray, " _"], Int64[np.ndarray, " _"]]],
) -> tuple[Float[np.ndarray, "candidates queries"], Int64[np.ndarray, " queries"]]:
    """Differences of candidates that were judged on different queries, by query; NaN where one was not.

    Args:
        parts: for each candidate its differences, and the index of each query.

    Returns:
        A row for each candidate, and the index of each column.
    """
    every = np.unique(np.concatenate([queries for _, queries in parts]))
    rows = np.full((len(parts), len(every)), np.nan)
    for row, (differences, queries) in zip(rows, parts, strict=True):
        row[np.searchsorted(every, queries)] = differences
    return rows, every


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
