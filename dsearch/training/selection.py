"""What held-out queries choose: the checkpoint of a training to keep, and how its head is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dsearch.training.holdout import Answers, joined

MIN_SLICE = 20  # with fewer queries, a slice says too little to choose epochs by


class Served(NamedTuple):
    """How a trained head is served: the share of what it learned (shrinkage.py), and its hop strength."""

    share: float
    hop: float


@dataclass(frozen=True, slots=True)
class FoldAnswers:
    """One fold's answers: of what answers now, of where training starts, and after each checkpoint.

    `served`: after the last one, in each way that the head may be served; empty where none is chosen.
    """

    now: Answers
    before: Answers
    after: list[Answers]
    served: dict[Served, Answers]

    def of(self, kept: Kept) -> Answers:
        """The answers of what was kept."""
        return (
            [self.before, *self.after][kept.checkpoint] if kept.served is None else self.served[kept.served]
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint (0: untrained), and how it is served; None: whole, with the hop of where it began."""

    checkpoint: int
    served: Served | None = None


def chosen(folds: list[FoldAnswers]) -> Kept:
    """The checkpoint to keep by these folds; for the last one how to serve it too."""
    before = joined([fold.before for fold in folds])
    after = [joined(list(parts)) for parts in zip(*(fold.after for fold in folds), strict=True)]
    kept = kept_checkpoint(np.stack([before.all, *(one.all for one in after)]), before.seen)
    if kept < len(after) or not folds[0].served:
        return Kept(kept)
    served = {of: joined([fold.served[of] for fold in folds]) for of in folds[0].served}
    return Kept(kept, kept_served(served, joined([fold.now for fold in folds])))


def halves(fold: FoldAnswers, seed: int) -> list[FoldAnswers]:
    """Its queries in two parts, drawn, so that each can be scored with what the other chooses."""
    order = np.random.default_rng(seed).permutation(len(fold.before))
    return [
        FoldAnswers(
            fold.now.subset(half),
            fold.before.subset(half),
            [one.subset(half) for one in fold.after],
            {of: one.subset(half) for of, one in fold.served.items()},
        )
        for half in (np.sort(order[::2]), np.sort(order[1::2]))
    ]


def kept_served(served: dict[Served, Answers], now: Answers) -> Served:
    """As much of what was learned as leaves unseen documents where they are, each share with its best hop.

    That is the largest share with which they fall, against what answers now, by no more than their standard
    error; where every share loses more, the one that loses least. With too few of them to tell: all of it.
    """
    best: dict[float, Served] = {}
    for share in sorted({of.share for of in served}, reverse=True):
        hops = {of.hop: answers.all for of, answers in served.items() if of.share == share}
        best[share] = Served(share, kept_hop(hops, now.seen))
    judged = ~np.isnan(now.unseen)
    if judged.sum() < MIN_SLICE:
        return best[max(best)]
    gains = {of: (served[of].unseen - now.unseen)[judged] for of in best.values()}
    for of, gain in gains.items():
        if gain.mean() >= -gain.std() / np.sqrt(len(gain)):
            return of
    return max(gains, key=lambda of: gains[of].mean())


def kept_checkpoint(
    values: Float[np.ndarray, "checkpoints queries"], seen: Bool[np.ndarray, " queries"]
) -> int:
    """The last checkpoint, or an earlier one (0: untrained) that was better by twice the standard error.

    The learning rate falls to zero at the end, so the last epoch has the least noise, while the best of
    thirty noisy ones is mostly luck: on SciFact's training split (3 folds) it lost .013 against the last.
    Seen and unseen queries count alike, however many of each there are.
    """
    weighted = values * _balance(seen)
    best = int(weighted.mean(axis=1).argmax())
    gain = weighted[best] - weighted[-1]
    clear = gain.mean() > 2 * gain.std() / np.sqrt(len(gain))
    return best if clear else len(values) - 1


def kept_hop(values: dict[float, Float[np.ndarray, " queries"]], seen: Bool[np.ndarray, " queries"]) -> float:
    """The best hop strength, or none where it adds less than its standard error; seen and unseen alike.

    A hop costs a second search; and among several strengths some look better by luck.
    """
    weights = _balance(seen)
    if len(values) == 1:
        return next(iter(values))
    best = max(values, key=lambda strength: (values[strength] * weights).mean())
    gain = (values[best] - values[0.0]) * weights
    return best if gain.mean() > gain.std() / np.sqrt(len(gain)) else 0.0


def _balance(seen: Bool[np.ndarray, " queries"]) -> Float[np.ndarray, " queries"]:
    if min(seen.sum(), (~seen).sum()) < MIN_SLICE:
        return np.ones(len(seen))
    return np.where(seen, len(seen) / (2 * seen.sum()), len(seen) / (2 * (~seen).sum()))
