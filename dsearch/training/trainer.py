"""The loop: batches of queries, two losses, Adam, a schedule. It knows neither qrels nor models on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsearch.attention.head import Head
from dsearch.errors import DsearchError, InvalidRequest
from dsearch.training.examples import Examples
from dsearch.training.objectives import NEED_TEACHER, OBJECTIVES, Batch, FrozenAttention, retention
from dsearch.training.options import TrainingOptions
from dsearch.training.ranking import KeywordScores, corpus_embeddings, padded

_WARM_UP_SHARE = 0.1
_SCALARS_LEARN_FASTER = 3.0
_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.float32))


class TrainingDiverged(DsearchError):
    """The loss became NaN or infinite; nothing was kept."""

    code = "training_diverged"


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the queries: the mean losses, and the seconds since the start."""

    number: int
    of: int
    loss: float
    retention: float
    elapsed_s: float


OnEpoch = Callable[[Epoch, Head], bool]


def train_head(
    examples: Examples,
    options: TrainingOptions,
    *,
    start: Head | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    on_epoch: OnEpoch | None = None,
) -> Head:
    """Train a head from the identity; equal examples and options give an equal head on the same machine.

    Args:
        examples: queries and their documents.
        options: how.
        start: keyword weight and hop strength are taken from it; the hop strength stays.
        epochs: stop after so many, on the schedule of `options.epochs`; all of them when None.
        device: where the arithmetic runs; the corpus' embeddings are moved there.
        on_epoch: told after each epoch; training stops when it returns False.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
        InvalidRequest: an objective that learns from a teacher, without a teacher's scores.
    """
    if options.objective in NEED_TEACHER and examples.teacher is None:
        raise InvalidRequest(
            f"objective={options.objective!r} learns from a teacher's scores, and there are none; give them "
            "(dsearch train --teacher FILE), or use another objective"
        )
    head = Head(examples.states.shape[1], heads=options.heads, seed=options.seed).to(device)
    if start is not None:
        with torch.no_grad():
            head.keyword_weight.fill_(start.keyword_weight.mean())
            head.hop_strength.copy_(start.hop_strength)
    corpus = corpus_embeddings(examples.snapshot).to(device)
    batches = _Batches(examples, device)
    objective = OBJECTIVES[options.objective]
    keyword = KeywordScores(examples, device) if options.keywords else None
    optimizer = torch.optim.Adam(_parameter_groups(head, options))
    generator = torch.Generator().manual_seed(options.seed)
    steps_an_epoch = -(-len(examples) // options.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, _warm_up_then_down(steps_an_epoch * options.epochs)
    )
    started = time.monotonic()
    draws = steps_an_epoch * options.epochs * options.retention_batch if options.retention else 0
    frozen = FrozenAttention(corpus, draws)
    for number in range(1, (options.epochs if epochs is None else epochs) + 1):
        losses = torch.zeros(2)
        for batch in torch.randperm(len(examples), generator=generator).split(options.batch_size):
            loss = objective(batches.of(head, corpus, batch, keyword and keyword(batch)))
            drawn = torch.randint(len(corpus), (options.retention_batch,), generator=generator)
            kept = torch.zeros(())
            if options.retention:
                kept = retention(head, corpus[drawn], corpus, frozen(drawn))
            total = loss + options.retention * kept + options.decay * head.distance_from_identity()
            if not torch.isfinite(total):
                raise TrainingDiverged(
                    f"the loss is {total.item()} in epoch {number}; nothing was kept. "
                    f"Use a learning rate below {options.learning_rate}"
                )
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            schedule.step()
            losses += torch.stack([loss.detach(), kept.detach()]).cpu() * len(batch)
        mean_loss, mean_retention = (losses / len(examples)).tolist()
        epoch = Epoch(number, options.epochs, mean_loss, mean_retention, time.monotonic() - started)
        if on_epoch is not None and not on_epoch(epoch, head):
            break
    return head.cpu().eval()


def _parameter_groups(head: Head, options: TrainingOptions) -> list[dict[str, object]]:
    """What learns, and how fast; values and hops have no part in this objective."""
    fusion = [head.log_temperature, *([head.keyword_weight] if options.keywords else [])]
    if options.heads > 1:
        fusion.append(head.mixture_logits)
    keys = [head.key_delta] if options.train_keys else []
    queries = [head.query_delta] if head.heads == 1 else [head.query_in, head.query_out]
    groups: list[dict[str, object]] = [
        {"params": queries + keys, "lr": options.learning_rate},
        {"params": fusion, "lr": options.learning_rate * _SCALARS_LEARN_FASTER},
    ]
    learning = {id(parameter) for group in groups for parameter in group["params"]}  # type: ignore[attr-defined]
    for parameter in head.parameters():
        parameter.requires_grad_(id(parameter) in learning)
    return groups


def _warm_up_then_down(steps: int) -> Callable[[int], float]:
    def factor(step: int) -> float:
        rising = (step + 1) / max(1.0, _WARM_UP_SHARE * steps)
        return min(1.0, rising) * (1 - step / steps)

    return factor


class _Batches:
    """Examples as tensors, once, and any of them as a `Batch`."""

    def __init__(self, examples: Examples, device: str):
        relevant, grades = padded(examples.relevant)
        target = grades / grades.sum(1, keepdims=True)
        if examples.weights is not None:
            target = target * examples.weights[:, None]  # losses linear in the target are weighted by it
        scored, teacher = padded(examples.teacher or [_NOTHING] * len(examples))
        self._states, self._relevant, self._target, self._scored, self._teacher, self._mask = (
            torch.as_tensor(array).to(device)
            for array in (
                examples.states,
                np.maximum(relevant, 0),
                target,
                np.maximum(scored, 0),
                teacher,
                scored >= 0,
            )
        )
        self._judged = torch.as_tensor(np.unique(relevant[relevant >= 0])).to(device)

    def of(self, head: Head, corpus: Tensor, which: Tensor, keyword: Tensor | None) -> Batch:
        """The examples at these indices."""
        return Batch(
            head=head,
            states=self._states[which],
            keyword=keyword,
            corpus=corpus,
            relevant=self._relevant[which],
            target=self._target[which],
            judged=self._judged,
            scored=self._scored[which],
            teacher=self._teacher[which],
            mask=self._mask[which],
        )
