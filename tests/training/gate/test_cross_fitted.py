"""What is chosen by held-out queries is judged on others: each fold by what the other folds choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsearch.training.gate.held_out import Answers
from dsearch.training.gate.selection import (
    CheckpointChoice,
    FoldAnswers,
    ServingChoice,
    chosen,
    cross_fitted,
    halves,
    kept_checkpoint,
    kept_hop,
)

COUNT = 60


def answers(value: Any, seen: Any = False) -> Answers:
    values = np.broadcast_to(np.asarray(value, float), COUNT).copy()
    return Answers(values, np.broadcast_to(seen, COUNT).copy(), values)


def fold(*after: float, **more: Any) -> FoldAnswers:
    """Answers that are .5 before training, and so after each checkpoint."""
    return FoldAnswers(answers(0.5), answers(0.5), [answers(of) for of in after], {}, **more)


def test_a_fold_has_what_the_others_choose() -> None:
    """One is best after its first checkpoint, of which the two others think nothing."""
    folds = [fold(0.9, 0.2), fold(0.3, 0.6), fold(0.3, 0.7)]
    crossed = cross_fitted(folds, checkpoints=2, seed=0)
    assert crossed.choice == CheckpointChoice(2)
    assert crossed.after is not None
    assert crossed.after.all.reshape(3, COUNT).mean(1).tolist() == pytest.approx([0.2, 0.3, 0.3])
    assert cross_fitted([], checkpoints=4, seed=0).choice == CheckpointChoice(4)


def test_each_half_of_a_single_fold_has_what_the_other_chooses() -> None:
    order = np.random.default_rng(7).permutation(COUNT)
    first = np.isin(np.arange(COUNT), order[::2])
    one = FoldAnswers(
        answers(0.5),
        answers(0.5),
        [answers(np.where(first, 0.9, 0.2)), answers(0.6)],
        {},
        queries=np.arange(COUNT) + 100,
    )
    parts = halves(one, 7)
    assert [part.queries.tolist() for part in parts if part.queries is not None] == [
        (np.flatnonzero(of) + 100).tolist() for of in (first, ~first)
    ]
    crossed = cross_fitted([one], checkpoints=2, seed=7)
    assert crossed.after is not None
    assert crossed.queries is not None
    by_query = dict(zip(crossed.queries.tolist(), crossed.after.all.tolist(), strict=True))
    assert by_query == {100 + at: 0.6 if of else 0.2 for at, of in enumerate(first.tolist())}


def test_a_head_is_compared_with_the_tuned_search_and_its_memory() -> None:
    folds = [fold(0.6, tuned=answers(0.75)), fold(0.6)]
    crossed = cross_fitted(folds, checkpoints=1, seed=0)
    assert crossed.tuned is not None
    assert crossed.before is not None
    assert crossed.tuned.all.reshape(2, COUNT).mean(1).tolist() == [0.75, 0.5]
    assert crossed.before.all.tolist() == [0.5] * (2 * COUNT)


MEMORY = ServingChoice(1.0, 2.0, memory=0.5)


@pytest.mark.parametrize(
    ("tried", "answer"),
    [
        ({MEMORY: 0.9, MEMORY._replace(hop=0.0): 0.8, MEMORY._replace(memory=0.0): 0.7}, 0.9),
        ({MEMORY._replace(hop=0.0): 0.8, MEMORY._replace(memory=0.0): 0.7}, 0.8),
        ({MEMORY._replace(memory=0.0): 0.7}, 0.7),
        ({}, 0.5),
    ],
)
def test_a_fold_answers_with_as_much_of_a_setting_as_it_tried(
    tried: dict[ServingChoice, float], answer: float
) -> None:
    """Without the hop rather than without its memory."""
    served = {of: answers(value) for of, value in tried.items()}
    found = FoldAnswers(answers(0.5), answers(0.5), [], served).serving(MEMORY)
    assert found.all.tolist() == [answer] * COUNT


@pytest.mark.parametrize(("memory", "served", "checkpoint"), [(0.0, 0.9, 0), (0.5, 0.9, 1), (0.5, 0.6, 0)])
def test_an_earlier_checkpoint_gives_way_to_a_better_memory_alone(
    memory: float, served: float, checkpoint: int
) -> None:
    """A head as the last checkpoint has it was clearly worse: no way of serving it may hide that."""
    way = ServingChoice(1.0, 0.0, memory=memory)
    one = FoldAnswers(answers(0.5), answers(0.7), [answers(0.3)], {way: answers(served)})
    assert chosen([one]) == CheckpointChoice(checkpoint, way if checkpoint else None)


FEW_SEEN = np.arange(COUNT) < 20


def test_seen_and_unseen_queries_count_alike_for_a_hop_and_a_checkpoint() -> None:
    """Twenty gain more than forty lose, and all together hardly anything.

    With fewer than twenty each query counts once.
    """
    plain = np.full(COUNT, 0.5)
    hop = plain + np.where(FEW_SEEN, 0.3, -0.14)
    assert kept_hop({1.0: hop, 0.0: plain}, FEW_SEEN) == 1.0
    assert kept_checkpoint(np.stack([hop, plain]), FEW_SEEN) == 0
    fewer = np.arange(COUNT) < 19
    rare = plain + np.where(fewer, 0.3, -0.145)
    assert kept_hop({1.0: rare, 0.0: plain}, fewer) == 0.0
    assert kept_checkpoint(np.stack([rare, plain]), fewer) == 1
