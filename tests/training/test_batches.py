"""Examples as tensors: documents at the first position are documents, and padding is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.training import examples_from_judgements
from dsearch.training.head_task import (
    Epoch,
    _Batches,
    _FrozenDocuments,
    descend,
    head_groups,
    train_head,
    train_student,
)
from dsearch.training.options import TrainingOptions

DIM = 4


def _pair(positions: list[int], numbers: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(positions, np.int64), np.array(numbers, np.float32)


class Given:
    """Two queries: the first is answered by documents 0 and 2, the second by 1 alone."""

    def __init__(self, **changes: Any):
        self.states = np.eye(2, DIM, dtype=np.float32)
        self.relevant = [_pair([0, 2], [1.0, 3.0]), _pair([1], [2.0])]
        self.teacher: Any = [_pair([0, 1, 3], [0.5, 0.25, 0.125]), _pair([0], [0.75])]
        self.weights: Any = None
        self.negatives: Any = np.array([0, 4], np.int64)
        vars(self).update(changes)

    def __len__(self) -> int:
        return len(self.states)


def batch_of(given: Given, which: list[int]) -> Any:
    examples: Any = given
    return _Batches(examples, "cpu").of(Head(DIM), torch.zeros(5, DIM), torch.tensor(which), None)


def test_documents_of_a_batch_are_those_that_were_given() -> None:
    batch = batch_of(Given(), [0, 1])
    assert batch.relevant.tolist() == [[0, 2], [1, 0]]
    assert batch.target.tolist() == [[0.25, 0.75], [1.0, 0.0]]  # the padding has no part
    assert batch.scored.tolist() == [[0, 1, 3], [0, 0, 0]]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.teacher[batch.mask].tolist() == [0.5, 0.25, 0.125, 0.75]
    assert batch.judged.tolist() == [0, 1, 2, 4]
    assert torch.equal(batch.states, torch.eye(2, DIM))
    assert batch_of(Given(), [1, 0]).relevant.tolist() == [[1, 0], [0, 2]]


@pytest.mark.parametrize("which", [[0], [1, 0]])
def test_weights_scale_the_target_and_no_teacher_scores_nothing(which: list[int]) -> None:
    batch = batch_of(Given(weights=np.array([2.0, 0.5], np.float32), teacher=None, negatives=None), which)
    assert batch.target.tolist() == [[[0.5, 1.5], [0.5, 0.0]][at] for at in which]
    assert not batch.mask.any()
    assert batch.judged.tolist() == [0, 1, 2]


def test_documents_are_weighed_as_in_the_search_that_it_starts_from(collection: Collection) -> None:
    """k1 and b of the start are those that will be served: the head learns beside them."""
    examples = examples_from_judgements(collection, {"q": "number3"}, {"q": {"d3": 1.0}})
    start = Head(collection.store.dimension)
    start.weigh_keywords(0.5, 0.4)
    scores: list[np.ndarray] = []

    class Stopped(Exception):
        pass

    def task(examples: Any, *_: Any) -> Any:
        scores.append(examples.snapshot.all_keyword_scores(["number3"]))
        raise Stopped

    for given in (start, None):
        with pytest.raises(Stopped):
            train_student(examples, TrainingOptions(), start=given, task=task)
    own = collection.snapshot.with_bm25((0.5, 0.4)).all_keyword_scores(["number3"])
    assert (scores[0] == own).all()
    assert not (scores[1] == own).all()


def test_the_encoder_learns_at_a_rate_of_its_own_and_decay_pulls_back() -> None:
    options = TrainingOptions(learning_rate=0.5, encoder_learning_rate=0.0625, retention=2.0, decay=3.0)
    head, weight = Head(DIM), torch.zeros(1)
    encoder: Any = SimpleNamespace(learning=lambda: [weight])
    task: Any = SimpleNamespace(trained=SimpleNamespace(head=head, encoder=encoder), _options=options)
    groups = _FrozenDocuments.parameter_groups(task)
    assert (groups[-1]["params"], groups[-1]["lr"], groups[0]["lr"]) == ([weight], 0.0625, 0.5)
    with torch.no_grad():
        head.key_delta[0, 0] = 2.0
    loss = head.key_delta.sum() * 5
    losses = descend(loss, torch.tensor(0.25), head, options)
    assert losses.tolist() == [10.0, 0.25, 10.0 + 2 * 0.25 + 3 * 4.0]
    assert head.key_delta.grad is not None
    assert head.key_delta.grad[0, 0] == 5.0 + 3 * 2 * 2.0


@pytest.mark.parametrize("going_on", [True, False])
def test_a_head_is_trained_until_it_is_told_to_stop(collection: Collection, going_on: bool) -> None:
    queries = {f"q{n}": f"number{n}" for n in range(4)}
    examples = examples_from_judgements(collection, queries, {f"q{n}": {f"d{n}": 1.0} for n in range(4)})
    epochs: list[int] = []

    def told(epoch: Epoch, head: Head) -> bool:
        epochs.append(epoch.number)
        return going_on or epoch.number < 2

    train_head(examples, TrainingOptions(epochs=4), on_epoch=told)
    assert epochs == [1, 2, 3, 4][: None if going_on else 2]


@pytest.mark.parametrize(
    ("heads", "options", "learned"),
    [
        (1, {}, {"query_delta", "key_delta", "log_temperature", "keyword_weight"}),
        (1, {"keywords": False}, {"query_delta", "key_delta", "log_temperature"}),
        (1, {"train_keys": False}, {"query_delta", "log_temperature", "keyword_weight"}),
        (
            2,
            {"heads": 2},
            {"query_in", "query_out", "key_delta", "log_temperature", "keyword_weight", "mixture_logits"},
        ),
    ],
    ids=["one head", "no keywords", "no keys", "two heads"],
)
def test_what_has_no_part_in_a_training_stays(heads: int, options: dict[str, Any], learned: set[str]) -> None:
    head = Head(DIM, heads=heads)
    groups = head_groups(head, TrainingOptions(**options))
    names = {id(parameter): name for name, parameter in head.named_parameters()}
    assert {names[id(parameter)] for group in groups for parameter in group["params"]} == learned
    assert {name for name, parameter in head.named_parameters() if parameter.requires_grad} == learned
