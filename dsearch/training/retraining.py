"""A head trained once more as another was, without some of its examples.

What is fitted to a head's scores (a null slot, an overlay) is fitted and judged on queries that the head did
not learn from; the one that answers learned from all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsearch.attention.head import Head
from dsearch.training.examples import Examples
from dsearch.training.finetune import Trained
from dsearch.training.loop import Watch
from dsearch.training.options import TrainingOptions
from dsearch.training.shrinkage import part_of_the_way, reweighed
from dsearch.training.trainer import new_head, train_student


def trained_without(
    trained: Trained,
    examples: Examples,
    held_out: Sequence[int],
    options: TrainingOptions,
    *,
    device: str = "cpu",
    watch: Watch | None = None,
) -> tuple[Head, Examples]:
    """A head of the same keyword start, hop, epochs, share and keyword factor, and what it learned from.

    Args:
        trained: by scope head.
        examples: what it was trained on.
        held_out: indices of those to leave out.
        options: how it was trained.
        device: where the arithmetic runs.
        watch: who follows.
    """
    rest = examples.subset(sorted(set(range(len(examples))) - set(held_out)))
    start = reweighed(trained.head, 1 / trained.keyword_factor)
    student = train_student(rest, options, start=start, epochs=trained.epochs, device=device, watch=watch)
    beginning = new_head(examples.states.shape[1], options, start)
    head = part_of_the_way(beginning, student.head, trained.share)
    return reweighed(head, trained.keyword_factor), rest
