"""Contributors of a query memory: a bound on what one of them can change.

Anybody may contribute outcomes and clicks. The rows of contributor u share at most `KEY_SHARE` of a query's
attention; the null key gets what is cut off:

    a'_i = a_i · min(1, KEY_SHARE / Σ_{j of u} a_j)

So u changes no score by more than γ · `KEY_SHARE`, however many rows it has. Judgements are trusted: no cap.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int64

from dsearch.attention.arrays import Array, as_like, at_least

KEY_SHARE = 0.5
TRUSTED = -1  # contributor of judgements


def all_trusted(queries: int) -> Int64[np.ndarray, " queries"]:
    """Contributors of queries that were judged."""
    return np.full(queries, TRUSTED, np.int64)


def capped(
    weights: Float[Array, "batch near"], contributors: Int64[Array, "batch near"]
) -> Float[Array, "batch near"]:
    """Attention in which no contributor has more than `KEY_SHARE`; within its rows the proportions stay."""
    same = (contributors[:, :, None] == contributors[:, None]) & (contributors != TRUSTED)[:, None]
    total = (as_like(same, weights) * weights[:, None]).sum(-1)
    return weights * (KEY_SHARE / at_least(total, KEY_SHARE))
