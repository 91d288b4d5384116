"""Ranking score of several heads' attention: it orders hits even where their weights underflow.

    Z_h = log Σ_c exp(l_h(c))
    s(c) = t (log Σ_h m_h exp(l_h(c) − Z_h) + Σ_h m_h Z_h)

The first part is the logarithm of the mixture's weight, so the order is that of the weights; the second, the
same for all candidates of a query, gives with one head exactly its score t · l(c).
"""

from __future__ import annotations

import math

from jaxtyping import Bool, Float

from dsearch.attention.arrays import Array, fill, log, logsumexp, temper


def partition_by_head(
    raw: Float[Array, "batch heads candidates"],
    mask: Bool[Array, "batch candidates"],
    temperature: float | Float[Array, ""],
) -> Float[Array, "batch heads"]:
    """Z_h of each head over the candidates where `mask` is True; 0 where there are none."""
    logits = fill(temper(raw, temperature), ~mask[:, None], -math.inf)
    empty = ~(logits != -math.inf).any(-1)
    return fill(logsumexp(fill(logits, empty[..., None], 0.0), -1), empty, 0.0)


def ranking_score(
    raw: Float[Array, "batch heads candidates"],
    partition: Float[Array, "batch heads"],
    temperature: float | Float[Array, ""],
    mixture: Float[Array, "*#batch heads"],
) -> Float[Array, "batch candidates"]:
    """s of each candidate.

    Args:
        raw: scores, t · l_h(c).
        partition: Z_h.
        temperature: t.
        mixture: m_h.
    """
    if raw.shape[1] == 1:
        return raw[:, 0]
    log_weights = log(mixture)[..., None] + temper(raw, temperature) - partition[..., None]
    return temperature * (logsumexp(log_weights, 1) + (mixture * partition).sum(-1)[:, None])
