"""What the actions of feedback mean to training: `ACTIONS`, by their Search UBI names.

A click says that a document looked worth a look from where it stood; what follows a click says more of the
same. A thumb says what somebody thinks, wherever the document stood: it needs no correction for its place.

How much any one contributor may count for: caps on the shares of API keys, and who stands apart.

A contributor is an API key, or a client where there are none; whoever gives neither is one contributor with
all the others who do so. Somebody who can make keys at will is not held by this: keys are what is trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    Attributes:
        grade: how relevant the document is taken to be; 0: not at all.
        explicit: whether somebody said so, rather than only acting so.
        meaning: in words.
    """

    grade: float
    explicit: bool
    meaning: str


ACTIONS: MappingProxyType[str, Action] = MappingProxyType(
    {
        "click": Action(1.0, False, "opened from the page of hits"),
        "watch": Action(1.0, False, "played or read for a while"),
        "add_to_cart": Action(2.0, False, "put aside to be bought or read"),
        "purchase": Action(3.0, False, "bought, cited or downloaded"),
        "thumbs_up": Action(2.0, True, "called relevant"),
        "thumbs_down": Action(0.0, True, "called not relevant"),
    }
)


_ENOUGH_CLICKS = 10
_APART = 0.5  # of the median key's agreement


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


def outsiders(clicked: Mapping[str, Mapping[str, Collection[str]]]) -> set[str]:
    """Contributors who agree with the others less than half as much as most do.

    Agreement is the share of the others of a query who clicked the same document, on average over what one
    clicked. Users who look for the same things differ little in it, since it averages their luck; somebody
    who clicks what nobody likes is far below, and has to spend clicks on what everybody likes to be not.

    Args:
        clicked: query → document → contributors.

    Returns:
        Those of at least ten clicks on queries that others clicked on, too.
    """
    agreement: dict[str, list[float]] = {}
    for documents in clicked.values():
        everybody = {key for keys in documents.values() for key in keys}
        if len(everybody) < 2:
            continue
        for keys in documents.values():
            share = (len(keys) - 1) / (len(everybody) - 1)
            for key in keys:
                agreement.setdefault(key, []).append(share)
    means = {key: sum(of) / len(of) for key, of in agreement.items() if len(of) >= _ENOUGH_CLICKS}
    least = _APART * median(means.values()) if means else 0.0
    return {key for key, mean in means.items() if mean < least}
