"""Scores of a collection by name, each with its upper bound for a document that was not proposed.

An index ranks by the inner product q·k. Every other score re-scores the candidates that the inner product
proposed. If the score is bounded by a function of the inner product, a certificate can prove that no better
document was missed (certificate.py).

| name | score of query q and key k | own dial |
|---|---|---|
| `dot`, `general` | q·k; the head's W_K makes it bilinear | the head's temperature |
| `scaled_dot_product`, `cosine`, `additive` | as in `dsearch.attention` | the head's temperature |
| `gaussian`, `epanechnikov`, `boxcar` | log K(|q − k| / width) | `width`; temperature 1 |
| `exact_match` | 0 where q = k, else −∞ | none; temperature 1 |

A document at −∞ is no candidate, so a query without a match has no answer.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention import POOLINGS, SCORES, KernelScore, Score, bound_additive, bound_cosine, bound_kernel
from dsearch.attention.kernels import squared_distance
from dsearch.attention.scores import length
from dsearch.attention_options import KERNELS
from dsearch.errors import InvalidRequest

INNER_PRODUCTS = ("dot", "general")
# An encoder gives one text slightly different vectors in different batches, so equality to the bit means
# nothing here: vectors are equal that differ by less than this share of the query's length.
EQUAL = 1e-3


class NamedScore:
    """A score of `dsearch.attention.SCORES` between the queries and keys of a collection.

    Args:
        name: one of `SCORES`.
        width: of a kernel, in units of the keys; 1 when None.

    Raises:
        InvalidRequest: an unknown name, a width that is not above 0, a width for a score that has none.
    """

    def __init__(self, name: str, width: float | None = None):
        if name not in SCORES:
            raise InvalidRequest(f"score={name!r}; use one of {', '.join(SCORES)}")
        if width is not None and name not in KERNELS:
            raise InvalidRequest(
                f"width={width} with score={name!r}; only {', '.join(KERNELS)} have a width, leave it out"
            )
        if width is not None and not 0 < width < math.inf:
            raise InvalidRequest(f"width={width}; use a number above 0, in units of the keys' length")
        self.name = name
        self.width = 1.0 if width is None else width

    @property
    def has_support(self) -> bool:
        """True if the score itself sets the scale of the attention, so that no temperature is needed."""
        return self.name in (*KERNELS, "exact_match")

    def __call__(
        self,
        queries: Float[Tensor, "batch queries key_dim"],
        keys: Float[Tensor, "batch keys key_dim"],
    ) -> Float[Tensor, "batch queries keys"]:
        """Score every query against every key."""
        if self.name == "exact_match":
            away = squared_distance(queries, keys).detach() > (EQUAL * length(queries)).square()
            return torch.zeros_like(away, dtype=queries.dtype).masked_fill(away, -math.inf)
        return SCORES[self.name](queries, keys, *([self.width] if self.name in KERNELS else []))

    def bound(
        self,
        floor: Float[Tensor, "batch heads"],
        queries: Float[Tensor, "batch heads"],
        shortest: float,
        longest: float,
        key_dim: int,
    ) -> Float[Tensor, "batch heads"]:
        """The most that a document can score whose inner product is at most `floor`.

        Args:
            floor: the last inner product that was proposed.
            queries: |q|.
            shortest: no key is shorter.
            longest: no key is longer.
            key_dim: numbers in a key.
        """
        if self.name == "scaled_dot_product":
            return floor / math.sqrt(key_dim)
        if self.name == "cosine":  # to a query of length 0 every cosine is 0
            return torch.where(queries > 0, bound_cosine(floor, queries, shortest, longest), 0.0)
        if self.name == "additive":
            return bound_additive(torch.ones(key_dim).to(floor)).expand_as(floor)
        if self.name == "exact_match":
            nearest = queries.square() + shortest**2 - 2 * floor
            return torch.where(nearest > (EQUAL * queries).square(), -math.inf, 0.0)
        if self.name in KERNELS:
            return bound_kernel(floor, queries, shortest, self.name, self.width)
        if self.name in INNER_PRODUCTS:
            return floor
        return torch.full_like(floor, math.inf)  # no bound is known: nothing is certified


def ranks_by_inner_product(score: Score) -> bool:
    """Return True if the index ranks by this score, so that no candidate is re-scored."""
    return isinstance(score, NamedScore) and score.name in INNER_PRODUCTS


def checked_score(score: str | Score, width: float | None) -> Score:
    """The score of that name, or the function or module that was given.

    Raises:
        InvalidRequest: as `NamedScore`; a width beside a function, which has its own.
    """
    if isinstance(score, str):
        return NamedScore(score, width)
    if width is not None:
        raise InvalidRequest(f"width={width} beside a score of your own; give the score its width itself")
    return score


def checked_pooling(pooling: str) -> str:
    """The name of a pooling.

    Raises:
        InvalidRequest: there is no such pooling; the message lists those there are.
    """
    if pooling not in POOLINGS:
        raise InvalidRequest(f"pooling={pooling!r}; use one of {', '.join(POOLINGS)}")
    return pooling


def checked_temperature(temperature: float | None, score: Score) -> float | None:
    """The temperature that replaces the head's own, None for none: kernels have a width instead.

    Raises:
        InvalidRequest: it is not a number above 0.
    """
    if temperature is None:
        kernel = isinstance(score, KernelScore) or (isinstance(score, NamedScore) and score.has_support)
        return 1.0 if kernel else None
    if not 0 < temperature < math.inf:
        raise InvalidRequest(f"temperature={temperature}; use a number above 0, or None for the head's own")
    return temperature
