"""Observers for tests: one that stops a training, one that keeps what it receives."""

from __future__ import annotations

from collections.abc import Callable

from dsearch.training import Epoch, Headroom, Observer
from dsearch.types import Progress


class StopWhen(Observer):
    """Stops the job as soon as `condition` returns True; never when it is None."""

    def __init__(self, condition: Callable[[], bool] | None):
        self._condition = condition

    def cancelled(self) -> bool:
        return self._condition is not None and self._condition()


class Recorder(Observer):
    """Keeps every report."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.headrooms: list[Headroom] = []
        self.epochs: list[tuple[str, Epoch]] = []
        self.steps: list[Progress] = []

    @property
    def stages(self) -> list[str]:
        """The stage of each epoch, in order."""
        return [stage for stage, _ in self.epochs]

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def headroom(self, room: Headroom) -> None:
        self.headrooms.append(room)

    def epoch(self, stage: str, epoch: Epoch) -> None:
        self.epochs.append((stage, epoch))

    def progress(self, progress: Progress) -> None:
        self.steps.append(progress)
