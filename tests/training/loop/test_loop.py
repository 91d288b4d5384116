"""The loop without queries or documents: a weight whose gradient is always 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.training.observers import StopWhen
from torch import Tensor, nn

from dsearch.errors import Cancelled
from dsearch.training.loop.loop import (
    Checkpoint,
    Epoch,
    NothingFurther,
    TrainingDiverged,
    TrainingSchedule,
    Watch,
    run_course,
)

COURSE = TrainingSchedule(examples=12, batch_size=3, epochs=3, seed=0)  # four steps an epoch


class Sinking(NothingFurther):
    """A `Task`: each step lowers the weight; `losses` says what a step reports."""

    def __init__(self, losses: Callable[[int], float] = lambda step: 1.0):
        self.trained = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.trained.weight)
        self.steps, self.losses = 0, losses

    @property
    def weight(self) -> float:
        return self.trained.weight.item()

    def parameter_groups(self) -> list[dict[str, object]]:
        return [{"params": list(self.trained.parameters()), "lr": 0.1}]

    def step(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        self.steps += 1
        self.trained.weight.grad = torch.ones_like(self.trained.weight)
        return torch.full((3,), self.losses(self.steps))


class Kept:
    """A `Keeper` in memory, with copies as a file would have."""

    def __init__(self) -> None:
        self.last: Checkpoint | None = None

    def checkpoint(self) -> Checkpoint | None:
        return self.last

    def keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        tensors, numbers = checkpoint
        self.last = ({name: tensor.detach().clone() for name, tensor in tensors.items()}, dict(numbers))


def test_an_epoch_tells_the_mean_over_its_examples() -> None:
    """Four batches, the last of a single example."""
    told: list[Epoch] = []
    task = Sinking(losses=float)
    run_course(task, TrainingSchedule(10, 3, 1, 0), on_epoch=lambda epoch: told.append(epoch) is None)
    assert [epoch.loss for epoch in told] == pytest.approx([(3 * 1 + 3 * 2 + 3 * 3 + 4) / 10])


def test_a_course_up_to_no_epoch_takes_no_step() -> None:
    task = Sinking()
    run_course(task, replace(COURSE, until=0))
    assert task.steps == 0


def test_a_course_ends_where_its_observer_has_seen_enough() -> None:
    """What it was told of is in the checkpoint."""
    keeper, task = Kept(), Sinking()
    run_course(task, COURSE, watch=Watch(keeper=keeper), on_epoch=lambda epoch: epoch.number < 2)
    assert task.steps == 8
    assert keeper.last is not None
    assert (keeper.last[1]["epoch"], keeper.last[1]["step"]) == (3, 0)


def test_the_time_of_a_resumed_course_is_that_of_all_its_parts() -> None:
    keeper, told = Kept(), list[Epoch]()
    run_course(Sinking(), replace(COURSE, until=1), watch=Watch(keeper=keeper))
    assert keeper.last is not None
    keeper.last[1]["elapsed_s"] = 1000.0
    run_course(Sinking(), COURSE, watch=Watch(keeper=keeper), on_epoch=lambda of: told.append(of) is None)
    assert [epoch.number for epoch in told] == [2, 3]
    assert all(1000 <= epoch.elapsed_s < 2000 for epoch in told)


@pytest.mark.parametrize("done", [0, 1, 2, 4, 6])
def test_a_cancelled_course_goes_on_at_its_next_step(done: int) -> None:
    keeper, first, again = Kept(), Sinking(), Sinking()
    with pytest.raises(Cancelled):
        run_course(first, COURSE, watch=Watch(observer=StopWhen(lambda: first.steps == done), keeper=keeper))
    run_course(again, COURSE, watch=Watch(keeper=keeper))
    assert first.steps + again.steps == 12


@pytest.mark.parametrize("done", [2, 4, 6])
def test_a_divergence_after_a_resume_restores_the_last_whole_epoch(done: int) -> None:
    """Never the weights of the checkpoint, which are of the middle of an epoch (2 and 6 of four steps)."""
    keeper, whole_epochs = Kept(), {0: 1.0}
    first = Sinking()

    def note(epoch: object) -> bool:
        whole_epochs[len(whole_epochs)] = first.weight
        return True

    stop = Watch(observer=StopWhen(lambda: first.steps == done), keeper=keeper)
    with pytest.raises(Cancelled):
        run_course(first, COURSE, watch=stop, on_epoch=note)
    again = Sinking(losses=lambda step: float("nan"))
    with pytest.raises(TrainingDiverged) as caught:
        run_course(again, COURSE, watch=Watch(keeper=keeper))
    assert caught.value.good_epoch == done // 4
    assert again.weight == whole_epochs[done // 4]
    assert done % 4 == 0 or first.weight != again.weight
