"""Parts of messages: a number with its noun, the time left."""

from __future__ import annotations

import re


def amount(count: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: `1 query`, `3 queries`.

    Args:
        count: the number.
        singular: the noun of one, with what stands between it and the number.
        plural: of several, where it is more than the ending: `"hit is", "hits are"`.
    """
    if plural is None:
        plural = f"{singular[:-1]}ies" if re.search("[^aeiou]y$", singular) else f"{singular}s"
    return f"{count} {singular if count == 1 else plural}"


def seconds_left(done: int, total: int, elapsed_s: float, share: float | None = None) -> float | None:
    """Estimate the remaining time; None as long as nothing is done or the total is unknown.

    Args:
        done: number of units that are done.
        total: number of units; 0 if unknown.
        elapsed_s: time taken by them.
        share: share of the work that is done, where units differ in cost.
    """
    if share is None:
        share = done / total if total else 0.0
    return elapsed_s * (1 - share) / share if share > 0 else None
