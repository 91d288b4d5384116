"""Select by held-out queries the checkpoint of a training, and the settings that serve its head.

A head is served with the gain on judged documents and less harm to others:

    θ(s) = (1 − s) θ₀ + s θ        θ₀: before training, θ: after it, s: the share
    w(f) = f · w                   w: the keyword weight of θ(s), f: the factor

Models interpolated between the start and the end of a fine-tuning keep most of its gain and lose less of the
previous quality: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv:2109.01903), eq. 1.
Also, the projections learn the answers to training queries, so training underestimates keywords for queries
about other documents; a higher keyword weight restores their quality. Held-out queries choose s and f, which
costs rankings of them and no further training.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.evaluation.confidence import AnsweredQueries
from dsearch.training.gate.held_out import Answers, is_clear, joined

_HARM = 2.0  # how much more a loss on unseen documents counts: whoever judged none of them cannot see it
MIN_SLICE = 20  # with fewer queries, a slice says too little to choose epochs by


class ServingChoice(NamedTuple):
    """Settings to serve a head: share of the learned change, hop, keyword factor, query keys, memory.

    `keywords` is the factor f of the learned keyword weight; `query_keys` is the strength of training queries
    as further keys of their answers, see data/examples.py; `memory` is the share of the strength that was
    chosen for the query memory.
    """

    share: float
    hop: float
    keywords: float = 1.0
    query_keys: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class FoldAnswers:
    """Answers of one fold: by the live model, by the start of training, and after each checkpoint.

    `served`: after the last one, for each setting that may serve the head; empty if none is to be chosen.
    `tuned`: by the search that needs no training, with its memory if it has one; as `before` without one.
    `queries`: index of each among all examples; None if unknown.
    `rankings`: ranks the fold by the head of a choice, for calibration; it and its result are None if that
    head is not there any more.
    """

    now: Answers
    before: Answers
    after: list[Answers]
    served: dict[ServingChoice, Answers]
    tuned: Answers | None = None
    queries: Int64[np.ndarray, " queries"] | None = None
    rankings: Callable[[CheckpointChoice], AnsweredQueries | None] | None = None

    def of(self, checkpoint: CheckpointChoice) -> Answers:
        """Answers of the selected checkpoint and settings."""
        if checkpoint.served is None:
            return [self.before, *self.after][checkpoint.checkpoint]
        return self.serving(checkpoint.served)

    def serving(self, of: ServingChoice) -> Answers:
        """Answers with these settings.

        Folds choose their own memory and hop beside it: one that did not try this hop answers without a hop,
        one that chose no memory without a memory.
        """
        ways = (of, of._replace(hop=0.0), of._replace(memory=0.0))
        return next((self.served[way] for way in ways if way in self.served), self.before)


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """A checkpoint (0: untrained), and how it is served; None: whole, with the hop of where it began."""

    checkpoint: int
    served: ServingChoice | None = None


@dataclass(frozen=True, slots=True)
class CrossFitted:
    """Choice by held-out queries, with cross-fitted answers.

    A choice evaluated on the queries that made it looks better than it is. So `after` has each fold's answers
    by the choice of the *other* folds (of a single fold, each half's by that of the other half).

    Attributes:
        choice: made by all of them together; the last checkpoint if none was held out.
        now: answers of the live model; None if none was held out, like the next two.
        before: answers of the start of training.
        after: answers of the trained model.
        tuned: answers of the search that needs no training.
        queries: index of each query among all examples; None if unknown.
    """

    choice: CheckpointChoice
    now: Answers | None = None
    before: Answers | None = None
    after: Answers | None = None
    tuned: Answers | None = None
    queries: Int64[np.ndarray, " queries"] | None = None


def cross_fitted(folds: list[FoldAnswers], *, checkpoints: int, seed: int) -> CrossFitted:
    """Choose by all folds, and answer each by what the others choose.

    Args:
        folds: perhaps none.
        checkpoints: number of checkpoints of a training.
        seed: random seed of the halves of a single fold.
    """
    if not folds:
        return CrossFitted(CheckpointChoice(checkpoints))
    choice = chosen(folds)
    parts = halves(folds[0], seed) if len(folds) == 1 else folds
    numbers = [part.queries for part in parts if part.queries is not None]
    others = [chosen(parts[:i] + parts[i + 1 :]) for i in range(len(parts))]
    return CrossFitted(
        choice,
        joined([part.now for part in parts]),
        joined([part.before for part in parts]),
        joined([part.of(of) for part, of in zip(parts, others, strict=True)]),
        joined([part.before if part.tuned is None else part.tuned for part in parts]),
        np.concatenate(numbers) if numbers else None,
    )


def chosen(folds: list[FoldAnswers]) -> CheckpointChoice:
    """The checkpoint to keep by these folds; for the last one how to serve it too."""
    before = joined([fold.before for fold in folds])
    after = [joined(list(parts)) for parts in zip(*(fold.after for fold in folds), strict=True)]
    checkpoint = kept_checkpoint(np.stack([before.all, *(answers.all for answers in after)]), before.seen)
    if not folds[0].served:
        return CheckpointChoice(checkpoint)
    ways = dict.fromkeys(of for fold in folds for of in fold.served)
    served = {of: joined([fold.serving(of) for fold in folds]) for of in ways}
    best = kept_served(served, joined([fold.now for fold in folds]))
    if checkpoint < len(after):
        early = [before, *after][checkpoint]
        if not best.memory or served[best].all.mean() <= early.all.mean():
            return CheckpointChoice(checkpoint)
    return CheckpointChoice(len(after), best)


def halves(fold: FoldAnswers, seed: int) -> list[FoldAnswers]:
    """Its queries in two parts, drawn, so that each can be scored with what the other chooses."""
    order = np.random.default_rng(seed).permutation(len(fold.before))
    return [
        FoldAnswers(
            fold.now.subset(half),
            fold.before.subset(half),
            [answers.subset(half) for answers in fold.after],
            {of: answers.subset(half) for of, answers in fold.served.items()},
            None if fold.tuned is None else fold.tuned.subset(half),
            None if fold.queries is None else fold.queries[half],
        )
        for half in (np.sort(order[::2]), np.sort(order[1::2]))
    ]


def kept_served(served: dict[ServingChoice, Answers], now: Answers) -> ServingChoice:
    """The best way by all queries, where what unseen documents lose against what answers now counts thrice.

    Each of the others with its best hop. Seen and unseen queries count alike, however many there are of each.
    With too few unseen documents to tell: all of what was learned, as it was learned, with the memory that
    was chosen if it gains.
    """
    hops: dict[ServingChoice, dict[float, Float[np.ndarray, " queries"]]] = {}
    # Of equals the plainest.
    for of in sorted(served, key=lambda of: (-of.share, of.query_keys, of.keywords, of.memory)):
        hops.setdefault(of._replace(hop=0.0), {})[of.hop] = served[of].all
    best = {of: of._replace(hop=kept_hop(values, now.seen)) for of, values in hops.items()}
    if (~np.isnan(now.unseen)).sum() < MIN_SLICE:
        whole = ServingChoice(max(of.share for of in best), 0.0)
        alike = [of for of in best if of._replace(memory=0.0) == whole]
        return max((best[of] for of in alike), key=lambda of: served[of].all.mean())
    gains = {of: float(np.nanmean(served[of].unseen - now.unseen)) for of in best.values()}
    weights = _balance(now.seen)
    return max(gains, key=lambda of: (served[of].all * weights).mean() + _HARM * min(0.0, gains[of]))


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
    return best if is_clear(gain, 2.0) else len(values) - 1


def kept_hop(values: dict[float, Float[np.ndarray, " queries"]], seen: Bool[np.ndarray, " queries"]) -> float:
    """The best hop strength, or none where it adds less than its standard error; seen and unseen alike.

    A hop costs a second search; and among several strengths some look better by luck.
    """
    weights = _balance(seen)
    if len(values) == 1:
        return next(iter(values))
    best = max(values, key=lambda strength: (values[strength] * weights).mean())
    gain = (values[best] - values[0.0]) * weights
    return best if is_clear(gain) else 0.0


def _balance(seen: Bool[np.ndarray, " queries"]) -> Float[np.ndarray, " queries"]:
    if min(seen.sum(), (~seen).sum()) < MIN_SLICE:
        return np.ones(len(seen))
    return np.where(seen, len(seen) / (2 * seen.sum()), len(seen) / (2 * (~seen).sum()))


SHARES = (0.25, 0.5, 0.75, 1.0)
KEYWORD_FACTORS = (1.0, 1.3, 1.6, 2.0)
MEMORY_SHARES = (0.5, 1.0)  # a head knows part of what the memory tells


def part_of_the_way(before: Head, trained: Head, share: float) -> Head:
    """The head at `share` of the way from one to the other, which have the same shape."""
    if share == 1.0:
        return trained
    between = deepcopy(trained)
    starts = dict(before.named_parameters())
    with torch.no_grad():
        for name, parameter in between.named_parameters():
            parameter.lerp_(starts[name].to(parameter), 1.0 - share)
    return between


def reweighed(head: Head, factor: float) -> Head:
    """The head with its keyword weights times this factor."""
    if factor == 1.0:
        return head
    weighed = deepcopy(head)
    with torch.no_grad():
        weighed.keyword_weight.mul_(factor)
    return weighed


def on_device_of(head: Head, memory: QueryMemory) -> QueryMemory:
    """The memory where the head is; on another device a copy, and `memory` stays where it was."""
    return memory.with_setting(*memory.setting).to(head.log_temperature.device)


def with_memory(head: Head, memory: QueryMemory | None, share: float) -> Head:
    """The head with this share of the strength of a query memory; 0 is none."""
    if memory is None or not share:
        return head
    strength, *others = memory.setting
    return head.remembering(memory.with_setting(strength * share, *others))
