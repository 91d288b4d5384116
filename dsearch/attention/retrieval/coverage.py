"""Covered mass: the share of the exact softmax that the candidates of a top-k search hold.

    covered = Σ_{d ∈ candidates} exp(l_d) / Z          Z over the whole corpus

At 1 the top-k answer is the exact one; what is missing bounds how far the pooled context can be off, by
(1 − covered) times the distance between the values inside and outside.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor


def covered_mass(
    candidate_logits: Float[Tensor, "*batch candidates"], log_partition: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Exact covered share, given log Z from `log_partition`; 1 for an empty corpus.

    Args:
        candidate_logits: logits of distinct candidates, −inf where one is missing.
        log_partition: log Z of the same logits over the whole corpus.
    """
    nothing = log_partition == -math.inf
    relative = candidate_logits - log_partition.masked_fill(nothing, 0.0).unsqueeze(-1)
    return relative.exp().sum(-1).clamp(max=1.0).masked_fill(nothing, 1.0)
