"""Softmax over padded, masked or empty candidate sets, without a NaN in value or gradient.

    a_i = exp(l_i) / Σ_j exp(l_j)        over the allowed j; zero elsewhere; all zero when nothing is allowed

A mask is True where a candidate **may be attended** (the convention of
`torch.nn.functional.scaled_dot_product_attention`). A logit of −inf masks its own place. An empty slice has
no distribution, so its weights are zero: a search that finds nothing pools nothing.
"""

from __future__ import annotations

import math
from typing import Any, cast

from jaxtyping import Bool, Float

from dsearch.attention.arrays import Array, fill, is_array, known_all, log, softmax


def masked_softmax(
    logits: Float[Array, "*shape"], mask: Bool[Array, "*#shape"] | None = None, dim: int = -1
) -> Float[Array, "*shape"]:
    """Softmax along `dim` over the allowed places.

    Args:
        logits: finite or −inf; the largest is subtracted first, so ±1e4 do not overflow.
        mask: broadcastable to `logits`, True where attention is allowed; None allows all.
        dim: the dimension of the candidates; it may have length 0.

    Returns:
        Weights of the shape of `logits`. Each slice sums to 1, or to 0 where nothing is allowed. Masked
        places pass on no gradient.
    """
    open_ = _open(logits, mask)
    if known_all(open_):
        return softmax(logits, dim)
    return fill(softmax(_filled(logits, open_, dim), dim), ~open_, 0.0)


def masked_log_softmax(
    logits: Float[Array, "*shape"],
    mask: Bool[Array, "*#shape"] | None = None,
    dim: int = -1,
    fill: float = -math.inf,
) -> Float[Array, "*shape"]:
    """Logarithm of `masked_softmax`, computed without leaving log space.

    Args:
        logits: as in `masked_softmax`.
        mask: as in `masked_softmax`.
        dim: the dimension of the candidates.
        fill: value of masked places. −inf is the logarithm of their weight; use 0 if the result is
            multiplied by targets that vanish at the same places (0 · −inf is NaN).
    """
    open_ = _open(logits, mask)
    if known_all(open_):
        return logits.log_softmax(dim)
    return _filled(logits, open_, dim).log_softmax(dim).masked_fill(~open_, fill)


def temper(
    scores: Float[Array, "*shape"], temperature: float | Float[Array, "*#shape"]
) -> Float[Array, "*shape"]:
    """Logits: scores over temperature. A score of −inf stays outside the division.

    It would come out as −inf all the same, but the temperature's gradient would be 0 · −inf, a NaN.
    """
    finite = scores != -math.inf
    if known_all(finite):
        return scores / temperature
    return fill(fill(scores, ~finite, 0.0) / temperature, ~finite, -math.inf)


def entropy(weights: Float[Array, ...], dim: int = -1) -> Float[Array, ...]:
    """Shannon entropy −Σ a log a along `dim`, in nats; 0 log 0 is 0, for one-hot and for empty slices alike.

    The derivative at a = 0 is +∞; here it is taken as 0, so that an underflowed weight cannot make a NaN.
    """
    if not is_array(weights):
        import torch

        if not torch.is_grad_enabled():
            terms = cast("Array", torch.special.entr(weights))  # pyright: ignore[reportUnknownMemberType]
            return terms.sum(dim)
    return -(weights * log(fill(weights, weights <= 0, 1.0))).sum(dim)


def _open(logits: Array, mask: Array | None) -> Array:
    """The allowed places."""
    open_ = logits != -math.inf
    return open_ if mask is None else open_ & mask


def _filled(logits: Array, open_: Array, dim: int) -> Array:
    """Logits that are −inf where they are not allowed, but 0 throughout a slice with none allowed.

    The zeros keep softmax and its derivative finite in a slice whose result is discarded. Without them a NaN
    would pass through both, unseen except by anomaly detection.
    """
    empty: Any = ~open_.any(dim, keepdims=True)  # pyright: ignore  # `keepdim` of tensors, too
    return fill(fill(logits, ~open_, -math.inf), cast("Array", empty), 0.0)
