"""Estimate the examination probability of each position from pages with a randomly swapped pair.

The position-based model (Richardson, Dominowska and Ragno, WWW 2007): a click at position k requires that k
is examined, with probability θ_k, and that the document attracts, independently of its position:

    E[clicks at k] = θ_k · attraction of the document at k

On a page with a drawn pair (a, b) a coin decided which of two documents is at a, so both positions have the
same attraction on average, and the share θ_a / (θ_a + θ_b) of the clicks on such a pair falls on a.
That is the model of paired comparisons of Bradley and Terry (1952), with positions for players and clicks for
games won; all pairs that were drawn are used at once (Agarwal et al., WSDM 2019, do the same with the swaps
that differ between rankers). Only clicks are counted, never pages without any: those are not stored.

A power law θ_k = k^−η (Joachims, Swaminathan and Schnabel, WSDM 2017, section 6) is fitted with it, as the
centre of a normal prior on log θ_k: with few clicks the estimate is the law, with many it is the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int64

from dsearch.store import Page
from dsearch.training.data.actions import ACTIONS, factors_of

POSITIONS = 10
MIN_CLICKS = 50
ASSUMED_STEEPNESS = 1.0
_LAW_SPREAD = 0.5  # of log θ_k about the law
_STEEPNESS_SPREAD = 1.0  # of η about the assumed one
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Propensities:
    """Examination probability of each position, relative to the first position's.

    Attributes:
        values: probabilities of positions 1, 2, …; the first is 1.
        steepness: η of the power law that they scatter about; it extrapolates to lower positions.
        clicks: number of clicks on randomly swapped pairs, the data of the estimate.
        source: "swaps"; "assumed" if there are too few of these clicks; "none" without correction.
    """

    values: Float[np.ndarray, " positions"]
    steepness: float
    clicks: int
    source: Literal["swaps", "assumed", "none"]

    def at(self, positions: Int64[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
        """θ at positions counted from 1."""
        propensities = self.values[np.clip(positions, 1, len(self.values)) - 1]
        beyond = np.maximum(positions / len(self.values), 1.0) ** -self.steepness
        return propensities * beyond

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "values": [round(float(value), 4) for value in self.values],
            "steepness": round(self.steepness, 4),
            "clicks": self.clicks,
            "source": self.source,
        }


def even_propensities() -> Propensities:
    """Equal propensities: the assumption of naive learning from clicks."""
    return Propensities(np.ones(POSITIONS), 0.0, 0, "none")


def assumed_propensities(steepness: float = ASSUMED_STEEPNESS) -> Propensities:
    """The power law, where nothing was left to chance."""
    return Propensities(np.arange(1, POSITIONS + 1) ** -steepness, steepness, 0, "assumed")


def propensities_from_pages(pages: Iterable[Page], *, key_share: float = 0.1) -> Propensities:
    """Estimate them from the pages with a drawn pair.

    One click a page and document is counted; a key's clicks count for no more than `key_share` of all, see
    `actions.py`. With fewer than `MIN_CLICKS` clicks the power law with η = 1 is assumed.
    """
    clicks: list[tuple[str, int, int]] = []
    by_key: dict[str, float] = {}
    for page in pages:
        pair = page.impression.pair
        if pair is None or pair[1] > POSITIONS:
            continue
        for key, position in {
            (event.key, event.position) for event in page.events if _implicit(event.action)
        }:
            if position in pair:
                other = pair[0] if position == pair[1] else pair[1]
                clicks.append((key, position, other))
                by_key[key] = by_key.get(key, 0.0) + 1.0
    factors = factors_of(by_key, key_share)
    wins = np.zeros((POSITIONS, POSITIONS))
    for key, position, other in clicks:
        wins[position - 1, other - 1] += factors[key]
    return propensities_from_wins(wins, len(clicks))


def propensities_from_wins(wins: Float[np.ndarray, "positions positions"], clicks: int) -> Propensities:
    """The most probable θ for given clicks; exact for the model above, by Newton's method.

    Args:
        wins: clicks at a on pages whose drawn pair was {a, b}, at [a, b].
        clicks: number of clicks, before weighting.
    """
    if clicks < MIN_CLICKS:
        return assumed_propensities()
    count = len(wins)
    log_ranks = np.log(np.arange(1, count + 1))
    # The unknowns: log θ_2 … log θ_n, and η. The log posterior is concave in them.
    at = np.append(-ASSUMED_STEEPNESS * log_ranks[1:], ASSUMED_STEEPNESS)
    games = wins + wins.T
    for _ in range(_STEPS):
        log_theta = np.append(0.0, at[:-1])
        share = 1 / (1 + np.exp(log_theta[None] - log_theta[:, None]))  # θ_a / (θ_a + θ_b)
        slope = (wins - games * share).sum(1)[1:]
        bend = games * share * (1 - share)
        curve = (np.diag(bend.sum(1)) - bend)[1:, 1:]
        apart = at[:-1] + at[-1] * log_ranks[1:]
        precision, centre = _LAW_SPREAD**-2, _STEEPNESS_SPREAD**-2
        gradient = np.append(
            slope - precision * apart,
            -precision * (apart * log_ranks[1:]).sum() - centre * (at[-1] - ASSUMED_STEEPNESS),
        )
        hessian = np.zeros((count, count))
        hessian[:-1, :-1] = curve + precision * np.eye(count - 1)
        hessian[-1, :-1] = hessian[:-1, -1] = precision * log_ranks[1:]
        hessian[-1, -1] = precision * (log_ranks[1:] ** 2).sum() + centre
        step = np.linalg.solve(hessian, gradient)
        at = at + step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))
        if np.abs(step).max() < 1e-10:
            break
    return Propensities(np.exp(np.append(0.0, at[:-1])), float(max(at[-1], 0.0)), clicks, "swaps")


def _implicit(action: str) -> bool:
    return action in ACTIONS and not ACTIONS[action].explicit and not ACTIONS[action].of_agent
