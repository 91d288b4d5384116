"""Ranking score of several heads' attention: it orders hits even where their weights underflow.

    Z_h = log Σ_c exp(l_h(c))
    s(c) = t (log Σ_h m_h exp(l_h(c) − Z_h) + Σ_h m_h Z_h)

The first part is the logarithm of the mixture's weight, so the order is that of the weights; the second, the
same for all candidates of a query, gives with one head exactly its score t · l(c).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dsearch.attention.softmax import temper


def partition_by_head(
    raw: Float[Tensor, "batch heads candidates"],
    mask: Bool[Tensor, "batch candidates"],
    temperature: float | Float[Tensor, ""],
) -> Float[Tensor, "batch heads"]:
    """Z_h of each head over the candidates where `mask` is True; 0 where there are none."""
    logits = temper(raw, temperature).masked_fill(~mask[:, None], -torch.inf)
    empty = ~(logits != -torch.inf).any(-1, keepdim=True)
    return logits.masked_fill(empty, 0.0).logsumexp(-1).masked_fill(empty[..., 0], 0.0)


def ranking_score(
    raw: Float[Tensor, "batch heads candidates"],
    partition: Float[Tensor, "batch heads"],
    temperature: float | Float[Tensor, ""],
    mixture: Float[Tensor, "*#batch heads"],
) -> Float[Tensor, "batch candidates"]:
    """s of each candidate.

    Args:
        raw: scores, t · l_h(c).
        partition: Z_h.
        temperature: t.
        mixture: m_h.
    """
    if raw.shape[1] == 1:
        return raw[:, 0]
    log_weights = mixture.log()[..., None] + temper(raw, temperature) - partition[..., None]
    return temperature * (log_weights.logsumexp(1) + (mixture * partition).sum(-1)[:, None])
