"""How much any one contributor may count for: caps on the shares of API keys.

A contributor is an API key, or a client where there are none; whoever gives neither is one contributor with
all the others who do so. Somebody who can make keys at will is not held by this: keys are what is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping


def factors_of(amounts: Mapping[str, float], share: float) -> dict[str, float]:
    """What to multiply each contributor's amount by, so that nobody's is more than a share of the sum.

    The share is at least 2 / contributors: one of two may give everything, one of ten a fifth. Largest
    amounts are cut to one common cap c, the largest that holds: c ≤ share · Σ min(amount, c).

    Args:
        amounts: contributor → what it gave, ≥ 0.
        share: the largest share that one may have.
    """
    if not amounts:
        return {}
    share = min(1.0, max(share, 2 / len(amounts)))
    ordered = sorted(amounts.values(), reverse=True)
    cap, rest = ordered[0], sum(ordered)
    for cut, amount in enumerate(ordered):
        # With the `cut` largest at the cap: c = share · (cut · c + the others' sum).
        open_share = 1 - share * cut
        cap = share * rest / open_share if open_share > 1e-12 else amount
        if amount <= cap:
            break
        rest -= amount
    return {key: min(1.0, cap / amount) if amount else 1.0 for key, amount in amounts.items()}
