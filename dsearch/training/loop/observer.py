"""`Observer`: receives the progress of a running job, and may stop it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.training.gate.held_out import Headroom


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the examples: the mean losses, and the seconds since the start.

    Attributes:
        before: nDCG@10 of held-out queries before training: "all", "seen" and "unseen"; None where no query
            was held out, and after epochs that are no checkpoints.
        after: the same after this epoch.
    """

    number: int
    of: int
    loss: float
    retention: float
    elapsed_s: float
    before: Mapping[str, float | None] | None = None
    after: Mapping[str, float | None] | None = None


class Observer:
    """Receives the reports of a training, a tuning or an evaluation; override the methods that matter.

    Every method is called in the thread that runs the job.
    """

    def remark(self, text: str) -> None:
        """Receive a sentence for people: data left out, folders used."""

    def headroom(self, room: Headroom) -> None:
        """Receive the gain that is left, before training starts."""

    def epoch(self, stage: str, epoch: Epoch) -> None:
        """Receive the end of an epoch; `stage` is "validate" or "train"."""

    def progress(self, progress: Progress) -> None:
        """Receive the number of steps done."""

    def cancelled(self) -> bool:
        """Return True to stop the job before its next step; it then raises `Cancelled`."""
        return False
