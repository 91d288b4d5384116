"""Attention pooling: queries weigh keys, and the weights pool the values.

    Attention(q, D) = Σᵢ α(q, kᵢ) vᵢ        D = {(k₁, v₁), …, (k_n, v_n)}

The form of α decides what the sum is:

| α | the result lies in | built by |
|---|---|---|
| any non-negative weights | the convex cone of the values | `pool`; `cone` makes them of a score |
| non-negative, sum 1 | their convex hull | `normalise`, then `pool` |
| softmax of a score | the hull, differentiable everywhere | `soft` |
| a single 1 | it is one of the values: a database look-up | `hard` |
| all equal | it is their mean: average pooling | `uniform` |

Sampled hard attention, which has a gradient where `hard` has none, is in `sampled.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dsearch.attention.arrays import CONE, cone_logits, masked_softmax, temper
from dsearch.attention.scores import Score, score_named
from dsearch.errors import InvalidRequest

Weights = Float[Tensor, "*shape"]
Mask = Bool[Tensor, "*#shape"] | None


class AttentionResult(NamedTuple):
    """Result of attention: `context [..., m, value_dim]`, pooled by `weights [..., m, n]`."""

    context: Tensor
    weights: Tensor


def attend(
    queries: Float[Tensor, "*#batch queries query_dim"],
    keys: Float[Tensor, "*#batch keys key_dim"],
    values: Float[Tensor, "*#batch keys value_dim"] | None = None,
    *,
    score: str | Score = "scaled_dot_product",
    pooling: str = "soft",
    mask: Bool[Tensor, ...] | None = None,
    temperature: float | Float[Tensor, ...] = 1.0,
) -> AttentionResult:
    """Attend from every query over all keys and pool their values.

    Args:
        queries: m queries; leading dimensions broadcast against those of keys and values.
        keys: n keys.
        values: n values; None pools the keys themselves.
        score: a name in `SCORES` or any function or module with their interface.
        pooling: a name in `POOLINGS`: soft, hard or uniform; exp, relu or sigmoid, whose weights
            (`cone`) need not sum to 1.
        mask: broadcastable to `[..., m, n]`, True where attention is allowed.
        temperature: divisor of the scores; a positive number, or a tensor that broadcasts to the scores.

    Returns:
        Context and weights; zero where nothing is allowed or there are no keys.

    Raises:
        InvalidRequest: an unknown score or pooling.

    With the defaults this is softmax(QKᵀ/√d)V (Vaswani et al., 2017, eq. 1).
    """
    if pooling not in POOLINGS:
        raise InvalidRequest(f"pooling={pooling!r}; use one of {', '.join(POOLINGS)}")
    score = score_named(score) if isinstance(score, str) else score
    weights = POOLINGS[pooling](temper(score(queries, keys), temperature), mask)
    return AttentionResult(pool(weights, keys if values is None else values), weights)


def pool(
    weights: Float[Tensor, "*#batch queries keys"], values: Float[Tensor, "*#batch keys value_dim"]
) -> Float[Tensor, "*batch queries value_dim"]:
    """Σᵢ αᵢ vᵢ for any weights; zero over no keys."""
    return weights @ values


def normalise(weights: Weights, mask: Mask = None) -> Weights:
    """Non-negative weights over their sum along the last dimension; zero where the sum is zero.

    Raises:
        InvalidRequest: a weight is negative; the sum would then be no mean of the values.
    """
    if bool((weights < 0).any()):
        raise InvalidRequest(f"a weight of {float(weights.min()):g}; use weights of 0 and above, or `soft`")
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def soft(logits: Weights, mask: Mask = None) -> Weights:
    """Softmax weights."""
    return masked_softmax(logits, mask)


def hard(logits: Weights, mask: Mask = None) -> Weights:
    """One-hot weights at the largest allowed logit; the first of equal ones, so ties break by row.

    Piecewise constant: no gradient reaches the logits, though the pooled values keep theirs.
    """
    allowed = _allowed(logits, mask)
    if logits.shape[-1] == 0:
        return torch.zeros_like(logits)
    best = logits.masked_fill(~allowed, -math.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(logits).scatter(-1, best, 1.0).masked_fill(~allowed, 0.0)


def uniform(logits: Weights, mask: Mask = None) -> Weights:
    """Equal weights over the allowed places, whatever their logits: average pooling."""
    allowed = _allowed(logits, mask).to(logits.dtype)
    return allowed / allowed.sum(-1, keepdim=True).clamp_min(1.0)


def cone(logits: Weights, mask: Mask = None, kind: str = "exp") -> Weights:
    """Non-negative weights φ(l), which need not sum to 1: no other logit changes one; zero where masked.

    Args:
        logits: finite or −inf, which has the weight 0.
        mask: True where attention is allowed.
        kind: name of φ: exp, relu or sigmoid, see `cone_logits`.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    return cone_logits(logits, kind).exp()


POOLINGS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "soft": soft,
    "hard": hard,
    "uniform": uniform,
    **{kind: partial(cone, kind=kind) for kind in CONE},
}


def _allowed(logits: Tensor, mask: Tensor | None) -> Tensor:
    allowed = logits != -math.inf
    return allowed if mask is None else allowed & mask


def with_zero_gradient(
    output: Float[Tensor, "*any"], states: Float[Tensor, "*queries dim"]
) -> Float[Tensor, "*any"]:
    """Return the output, with gradient 0 in states that have no part in it: a choice of one is flat."""
    return output + 0.0 * states.sum() if states.requires_grad and torch.is_grad_enabled() else output
