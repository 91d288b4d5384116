"""Share of campaigns of useless candidates that ever pass, and the power to find useful ones, by rule.

    python scripts/trials/campaigns.py                       # the tables of guide `decisions`
    python scripts/trials/campaigns.py --campaigns 2000      # with tighter bounds

A campaign is an optimiser that hands in 100 candidates, one after the other, to be judged on the same n
held-out queries. A candidate changes each query by a normal number; its true mean is 0. Every other
candidate is a new direction; the ones between add up the directions so far, each times the gain that was
reported of it (Freedman's paradox; Blum and Hardt 2015).

Reports tell one of
    verdict      passed or refused
    first 3, 5   the gain as it is of so many candidates, then the verdict
    rounded      the gain in whole standard errors
    full         the gain as it is

Rules: alpha-wealth (dsearch/engine/models/ledger.py; Foster and Stine 2008), e-values (Vovk and Wang 2021:
mixture likelihood ratios, weighted by the same wealth), Thresholdout (Dwork et al. 2015: a threshold for all
tries and Laplace noise), and the fixed α without a ledger. Pure simulation, a minute of one core.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm, t

from dsearch.engine.models.ledger import SHOWN, Tries

ALPHA, TRIES = 0.05, 100
PRIOR_DEVIATION = 0.03  # of the true gain, in the mixture of e-values
NOISE = 0.25  # scale of Thresholdout's Laplace noise in standard errors
DEVIATION = 0.12  # of a query's change by a useless candidate
DRAWS = 4_000

Rule = Callable[[int, Float[np.ndarray, " campaigns"], float, np.random.Generator], Bool[np.ndarray, "_"]]
"""(number of refusals before, standardised gains, standard error, random numbers) → who passes."""


def fixed(
    tries: int, gains: Float[np.ndarray, " campaigns"], error: float, random: np.random.Generator
) -> Bool[np.ndarray, " campaigns"]:
    """The same α for every candidate."""
    return gains > norm.isf(ALPHA)


def alpha_wealth(
    tries: int, gains: Float[np.ndarray, " campaigns"], error: float, random: np.random.Generator
) -> Bool[np.ndarray, " campaigns"]:
    """The α that the ledger leaves."""
    return gains > norm.isf(Tries(tries).alpha(ALPHA))


def first_at_alpha(
    tries: int, gains: Float[np.ndarray, " campaigns"], error: float, random: np.random.Generator
) -> Bool[np.ndarray, " campaigns"]:
    """Alpha-wealth where the first candidate is decided at the gate's own α, as by a significance test."""
    return fixed(tries, gains, error, random) if tries == 0 else alpha_wealth(tries, gains, error, random)


def e_values(
    tries: int, gains: Float[np.ndarray, " campaigns"], error: float, random: np.random.Generator
) -> Bool[np.ndarray, " campaigns"]:
    """Weighted e ≥ 1/α, where e is the likelihood ratio of a half-normal mixture of gains against none."""
    spread = (PRIOR_DEVIATION / error) ** 2
    shrunk = spread / (1 + spread)
    e = 2 * norm.cdf(gains * math.sqrt(shrunk)) * np.exp(gains**2 * shrunk / 2) / math.sqrt(1 + spread)
    return e * Tries(tries).alpha(1.0) >= 1 / ALPHA


def thresholdout(
    tries: int, gains: Float[np.ndarray, " campaigns"], error: float, random: np.random.Generator
) -> Bool[np.ndarray, " campaigns"]:
    """One threshold for all tries, with noise; ALPHA / TRIES of useless candidates are above it."""
    return gains + random.laplace(0, NOISE, len(gains)) > _noisy_threshold()


@functools.cache
def _noisy_threshold() -> float:
    """Bound that a normal number plus a Laplace number exceeds with probability ALPHA / TRIES."""
    noise = np.linspace(-20, 20, 40_001)
    density = np.exp(-np.abs(noise) / NOISE) / (2 * NOISE)
    bounds = np.linspace(3, 8, 501)
    above = [(density * norm.sf(bound - noise)).sum() * (noise[1] - noise[0]) for bound in bounds]
    return float(bounds[np.searchsorted(-np.array(above), -ALPHA / TRIES)])


RULES: dict[str, Rule] = {
    "fixed": fixed,
    "first at α": first_at_alpha,
    "alpha-wealth": alpha_wealth,
    "e-values": e_values,
    "Thresholdout": thresholdout,
}
REPORTS = {"verdict": 0, "first 3": SHOWN, "first 5": 5, "rounded": TRIES, "full": TRIES}
"""Kinds of reports, and the number of candidates after which they tell verdicts only."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--queries", type=int, nargs="+", default=[60, 200])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"Share of {arguments.campaigns} campaigns of {TRIES} useless candidates that ever pass\n")
    print("| report | " + " | ".join(RULES) + " |\n|---|" + "--:|" * len(RULES))
    for report in REPORTS:
        shares = [
            np.mean(
                [
                    ever_passed(rule, report, queries, arguments.campaigns, arguments.seed)
                    for queries in arguments.queries
                ]
            )
            for rule in RULES.values()
        ]
        print(f"| {report} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    print("\nPower at tries 1, 5 and 20, by true gain, deviation of a query's change and queries\n")
    named = list(RULES)[2:]
    print("| gain, deviation, queries | " + " | ".join(named) + " |\n|---|" + "---|" * len(named))
    for gain, deviation, queries in settings(arguments.queries):
        cells = [power(RULES[name], gain, deviation, queries, arguments.seed) for name in named]
        print(f"| {gain:.2f}, {deviation:.2f}, {queries} | " + " | ".join(cells) + " |")


def settings(counts: list[int]) -> Iterator[tuple[float, float, int]]:
    """True gains, deviations and numbers of queries."""
    for queries in counts:
        for gain in (0.02, 0.03):
            for deviation in (0.08, 0.12, 0.15):
                yield gain, deviation, queries


def ever_passed(rule: Rule, report: str, queries: int, campaigns: int, seed: int) -> float:
    """Share of campaigns of useless candidates in which any passes."""
    random = np.random.default_rng([seed, queries])
    directions: list[Float[np.ndarray, "campaigns queries"]] = []
    told: list[Float[np.ndarray, " campaigns"]] = []
    passed = np.zeros(campaigns, bool)
    for number in range(TRIES):
        explores = number % 2 == 0
        if explores:
            changes = random.standard_normal((campaigns, queries))
        else:
            weights = np.stack(told, axis=1)
            unknown = ~weights.any(axis=1)
            weights[unknown] = random.standard_normal((int(unknown.sum()), len(told)))
            weights /= np.linalg.norm(
                weights, axis=1, keepdims=True
            )  # the deviation over the population is 1
            changes = np.einsum("ck,kcq->cq", weights, np.stack(directions))
        gains = standardised(changes)
        passed |= rule(number, gains, DEVIATION / math.sqrt(queries), random)
        if explores:
            directions.append(changes)
            shown = np.round(gains) if report == "rounded" else gains
            told.append(shown if number < REPORTS[report] else np.zeros(campaigns))
    return float(passed.mean())


def power(rule: Rule, gain: float, deviation: float, queries: int, seed: int) -> str:
    """Shares of candidates of this true gain that pass at tries 1, 5 and 20, in percent."""
    random = np.random.default_rng([seed, queries, 1])
    changes = gain + deviation * random.standard_normal((DRAWS, queries))
    gains, error = standardised(changes), deviation / math.sqrt(queries)
    shares = [rule(number - 1, gains, error, random).mean() for number in (1, 5, 20)]
    return " / ".join(f"{100 * share:.0f}" for share in shares)


def standardised(changes: Float[np.ndarray, "draws queries"]) -> Float[np.ndarray, " draws"]:
    """Normal quantiles of the means' p-values by Student's t."""
    queries = changes.shape[1]
    error = changes.std(axis=1, ddof=1) / math.sqrt(queries)
    return norm.isf(t.sf(changes.mean(axis=1) / error, queries - 1))


if __name__ == "__main__":
    main()
