"""Meaning of feedback actions for training: `ACTIONS`, by their Search UBI names.

A click shows that a document looked relevant at its position; later actions confirm it. A thumb is an
explicit opinion and does not depend on the position: it needs no position correction. An agent reads what it
needs for a task, wherever it stands (engine/feedback.py): no position correction either, and what it saw and
did not read is a negative.

The weight of each key in clicks is limited: caps on the shares of keys, and outliers are left out. A key is
an API key, or a client if there are no API keys; events without either form one key. The caps do not stop
anyone who can create keys at will: keys are trusted.
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
        grade: relevance grade of the document; 0: not relevant.
        explicit: True for a stated opinion, False for behaviour.
        meaning: description in words.
        of_agent: True where the rest of the page was looked at and left: no position correction, negatives.
    """

    grade: float
    explicit: bool
    meaning: str
    of_agent: bool = False


ACTIONS: MappingProxyType[str, Action] = MappingProxyType(
    {
        "click": Action(1.0, False, "opened from the page of hits"),
        "watch": Action(1.0, False, "played or read for a while"),
        "add_to_cart": Action(2.0, False, "put aside to be bought or read"),
        "purchase": Action(3.0, False, "bought, cited or downloaded"),
        "partly": Action(1.0, True, "called relevant in part"),
        "thumbs_up": Action(2.0, True, "called relevant"),
        "answer": Action(3.0, True, "called the answer"),
        "thumbs_down": Action(0.0, True, "called not relevant"),
        "used": Action(2.0, False, "useful to an agent in a task that succeeded", of_agent=True),
        "read": Action(1.0, False, "read by an agent; nothing speaks against it", of_agent=True),
        "dismissed": Action(0.0, False, "read by an agent in vain", of_agent=True),
    }
)


_ENOUGH_CLICKS = 10
_APART = 0.5  # of the median key's agreement


def factors_of(amounts: Mapping[str, float], share: float) -> dict[str, float]:
    """Factor of each key's amount, so that none has more than a share of the sum.

    The share is at least 2 / keys: one of two may give everything, one of ten a fifth. Keys of amount 0, such
    as those that only gave thumbs, do not count. The largest amounts are cut to one common cap c, the largest
    that satisfies c ≤ share · Σ min(amount, c).

    Args:
        amounts: key → amount, ≥ 0.
        share: largest share of one key.
    """
    ordered = sorted((amount for amount in amounts.values() if amount > 0), reverse=True)
    if not ordered:
        return dict.fromkeys(amounts, 1.0)
    share = min(1.0, max(share, 2 / len(ordered)))
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
    """Keys that agree with the others less than half as much as most do.

    Agreement is the share of the others of a query who clicked the same document, on average over what one
    clicked. Users who look for the same things differ little in it, since it averages their luck; somebody
    who clicks unpopular documents is far below, and has to spend clicks on popular ones to hide it.

    Args:
        clicked: query → document → keys.

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
