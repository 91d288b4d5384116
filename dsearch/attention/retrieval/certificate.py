"""Certify that a re-scored top-k is the exact top-k.

A score that no index ranks by is computed in two stages: an inner product generates candidates, the score
re-ranks them. The result is exact if no other document can reach the k-th place. If the first stage is exact,
every document that it did not propose has an inner product of at most the last proposed one, the *floor*;
where the score is bounded by a function of the inner product, so is every unseen document:

    k-th re-scored candidate  >  bound(floor)          ⇒  the top k is exact

(The argument of the threshold algorithm; Fagin et al., 2003.) The bounds below are for the scores of this
package; a score without a bound gets no certificate, and its margin is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dsearch.attention.kernels import Width, boxcar, epanechnikov, gaussian
from dsearch.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof, for each query, that its top k is exact; `margin` is by how much (NaN without a bound)."""

    proved: Bool[Tensor, "*batch"]
    margin: Float[Tensor, "*batch"]
    reason: str


def certify(
    scores: Float[Tensor, "*batch candidates"],
    k: int,
    unseen: Float[Tensor, "*batch"] | None,
    *,
    documents: int | None = None,
) -> Certificate:
    """Compare the k-th best re-scored candidate with the bound on all that was not scored.

    Args:
        scores: final scores of all candidates, in any order; −inf where one is missing.
        k: number of places to certify.
        unseen: upper bound of the scores of all documents that are no candidates; None if unknown. It holds
            only if the first stage was exact: an approximate index gives no floor.
        documents: size of the corpus, if known; candidates that are all of it need no bound.

    Raises:
        InvalidRequest: k is below 1.

    The comparison is strict. At equality an unseen document could tie, and ties break by row.
    """
    if k < 1:
        raise InvalidRequest(f"k={k}; use 1 or more")
    exhaustive = (scores != -math.inf).sum(-1) >= (math.inf if documents is None else documents)
    if unseen is None:
        margin = torch.full(scores.shape[:-1], math.nan, dtype=scores.dtype, device=scores.device)
        return Certificate(exhaustive, margin, "no bound on unseen documents is known for this score")
    enough = scores.shape[-1] >= k
    kth = scores.topk(k, -1).values[..., -1] if enough else torch.full_like(unseen, -math.inf)
    return Certificate(
        (kth > unseen) | exhaustive,
        kth - unseen,
        "proved where the k-th score is above the bound on unseen documents, or all documents were scored",
    )


def floor_of(first_stage: Float[Tensor, "*batch candidates"]) -> Float[Tensor, "*batch"]:
    """The last inner product that an exact first stage proposed: no unseen document has a larger one."""
    return first_stage.amin(-1)


def bound_sum(
    floor: Float[Tensor, "*batch"], extra: float | Float[Tensor, "*#batch"]
) -> Float[Tensor, "*batch"]:
    """Bound on q·k + extra(d) when extra never exceeds `extra`: the keyword part, whose BM25 b is below 1."""
    return floor + extra


def bound_cosine(
    floor: Float[Tensor, "*batch"],
    query_length: Float[Tensor, "*batch"],
    shortest: float,
    longest: float,
) -> Float[Tensor, "*batch"]:
    """Bound on the cosine when all keys have lengths in [shortest, longest], the first of them above 0."""
    return floor / query_length / torch.where(floor >= 0, shortest, longest)


def bound_kernel(
    floor: Float[Tensor, "*batch"],
    query_length: Float[Tensor, "*batch"],
    shortest: float,
    kernel: Literal["gaussian", "epanechnikov", "boxcar"],
    width: Width = 1.0,
) -> Float[Tensor, "*batch"]:
    """Bound on a log kernel when no key is shorter than `shortest`: |q − k|² = |q|² + |k|² − 2 q·k."""
    function = {"gaussian": gaussian, "epanechnikov": epanechnikov, "boxcar": boxcar}[kernel]
    nearest = (query_length.square() + shortest**2 - 2 * floor).clamp_min(0.0).sqrt()
    place = nearest.unsqueeze(-1).unsqueeze(-1)
    return function(torch.zeros_like(place), place, width).squeeze(-1).squeeze(-1)


def bound_additive(vector: Float[Tensor, " hidden"]) -> Float[Tensor, ""]:
    """Bound on vᵀ tanh(·), whatever the keys: Σ|vᵢ|. Seldom tight enough to prove anything."""
    return vector.abs().sum()
