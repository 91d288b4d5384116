"""Training loop of every scope: batches, Adam, a schedule, checkpoints; it stops at NaN and on request.

It is independent of queries and documents: a `TrainingTask` computes a step and names what learns. An
`Observer` receives the progress of a job and may stop it; a `Student` is the model in training, which answers
held-out queries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from dsearch.attention.adam import Adam
from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, LearningEncoder
from dsearch.errors import Cancelled, DsearchError
from dsearch.training.data.examples import Examples
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


class Student(nn.Module):
    """A head and, in the scopes `query` and `full`, a copy of the encoder that learns with it.

    Args:
        head: head of the model.
        encoder: encoder to train; None if the stored embeddings of documents and queries are used.
    """

    def __init__(self, head: Head, encoder: LearningEncoder | None = None):
        super().__init__()
        self.head = head
        self.encoder = encoder

    @property
    def change(self) -> EncoderChange | None:
        """Change of the encoder."""
        return None if self.encoder is None else self.encoder.change()

    def states(self, examples: Examples) -> Float32[np.ndarray, "queries encoder_dim"]:
        """The query embeddings as they are now."""
        return examples.states if self.encoder is None else self.encoder.encode_queries(examples.texts)

    def embed(self, texts: Sequence[str]) -> Any:
        """Query embeddings in the graph.

        Raises:
            TypeError: no encoder learns here.
        """
        if self.encoder is None:
            raise TypeError("this student has no encoder")
        return self.encoder.embed(texts, "query")


_log = logging.getLogger(__name__)

WARM_UP_SHARE = 0.1
CHECKPOINT_S = 60.0  # between two within an epoch

Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]
"""(tensors, numbers)"""


class TrainingDiverged(DsearchError):
    """The loss, a gradient or a weight became NaN or infinite: training stopped there.

    Attributes:
        epoch: epoch in which it happened.
        step: step of the epoch, from 1.
        kept: epoch to whose end the model was reset; 0 for the start.
        student: the reset model; None if the error comes from another process.
    """

    code = "training_diverged"

    def __init__(self, message: str, *, epoch: int = 0, step: int = 0, good_epoch: int = 0):
        super().__init__(message)
        self.epoch, self.step, self.good_epoch = epoch, step, good_epoch
        self.student: Any = None


@runtime_checkable
class CheckpointStorage(Protocol):
    """Storage of checkpoints."""

    def checkpoint(self) -> Checkpoint | None:
        """The last one; None at the start."""
        ...

    def keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Put it in the place of the one before."""
        ...


@dataclass(frozen=True, slots=True)
class Watch:
    """Environment of one run of the loop.

    Attributes:
        stage: its name in progress: "validate", "train".
        observer: receives progress; checked before each step for a request to stop.
        keeper: reads and writes checkpoints; None disables them.
    """

    stage: str = "train"
    observer: Observer = field(default_factory=Observer)
    keeper: CheckpointStorage | None = None


@runtime_checkable
class TrainingTask(Protocol):
    """Model to train, and one step of its training."""

    @property
    def trained(self) -> nn.Module:
        """Module that contains all learned parameters."""
        ...

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Learned parameters with their learning rates: Adam's groups."""
        ...

    def step(self, batch: Int64[Tensor, " batch"], generator: torch.Generator) -> Float[Tensor, 3]:
        """Leave gradients for the examples at these indices; (loss, retention, what was minimised)."""
        ...

    def lessen(self) -> str | None:
        """Take half the memory a step from now on, for the same gradient, and say how; None: it cannot."""
        ...

    def more_state(self) -> dict[str, Tensor]:
        """State of a checkpoint beside the learned parameters."""
        ...

    def load_more_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `more_state` gave."""
        ...


class NothingFurther:
    """Mixin for a `TrainingTask` whose checkpoints have the learned parameters alone."""

    def lessen(self) -> None:
        """Nothing to halve."""

    def more_state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def load_more_state(self, state: dict[str, Tensor]) -> None:
        """Nothing was kept."""


@dataclass(frozen=True, slots=True)
class TrainingSchedule:
    """Length, order and schedule of a training.

    Attributes:
        examples: number of examples.
        batch_size: examples per step.
        epochs: epochs of the schedule: the rate rises over the first tenth and falls to zero at the end.
        seed: random seed of the order.
        until: last epoch to train; None for all.
    """

    examples: int
    batch_size: int
    epochs: int
    seed: int
    until: int | None = None

    @property
    def steps_an_epoch(self) -> int:
        """Batches."""
        return -(-self.examples // self.batch_size)

    @property
    def last(self) -> int:
        """The last epoch that is trained."""
        return self.epochs if self.until is None else self.until

    def rate(self, step: int) -> float:
        """The factor of the learning rate at a step of the whole course, from 0."""
        steps = self.steps_an_epoch * self.epochs
        rising = (step + 1) / max(1.0, WARM_UP_SHARE * steps)
        return min(1.0, rising) * (1 - step / steps)


def run_course(
    task: TrainingTask,
    course: TrainingSchedule,
    *,
    watch: Watch | None = None,
    on_epoch: Callable[[Epoch], bool] | None = None,
) -> None:
    """Train, from the last checkpoint where there is one.

    Args:
        task: model and its training step.
        course: length, order and schedule.
        watch: observer and checkpoints of the run.
        on_epoch: told after each epoch, before its checkpoint is kept; training stops when it returns False.

    Raises:
        TrainingDiverged: NaN or infinity; what is trained is as it was after the last whole epoch.
        Cancelled: the watch said so; the checkpoint holds everything so far.
    """
    _Run(task, course, watch or Watch()).go(on_epoch)


class _Run:
    def __init__(self, task: TrainingTask, course: TrainingSchedule, watch: Watch):
        self._task, self._course, self._watch = task, course, watch
        self._optimizer = Adam(task.parameter_groups(), fused=True)
        learning = {id(p) for p in self._optimizer.parameters}
        self._learning = {name: p for name, p in task.trained.named_parameters() if id(p) in learning}
        self._rates = [group["lr"] for group in self._optimizer.groups]
        self._generator = torch.Generator().manual_seed(course.seed)
        self._order: Tensor | None = None
        self._epoch, self._step, self._sums = 1, 0, torch.zeros(2)
        self._elapsed_before = 0.0
        self._started = time.monotonic()
        self._good_epoch, self._good = 0, self._copies()
        self._restore()

    @property
    def _elapsed_s(self) -> float:
        return self._elapsed_before + time.monotonic() - self._started

    def go(self, on_epoch: Callable[[Epoch], bool] | None) -> None:
        course, kept_at = self._course, time.monotonic()
        while self._epoch <= course.last:
            if self._order is None:
                self._order = torch.randperm(course.examples, generator=self._generator)
            for batch in self._order.split(course.batch_size)[self._step :]:
                if self._watch.observer.cancelled():
                    self._keep()
                    raise Cancelled(f"training was cancelled in epoch {self._epoch}, after step {self._step}")
                self._one_step(batch)
                if time.monotonic() - kept_at > CHECKPOINT_S:
                    self._keep()
                    kept_at = time.monotonic()
            loss, retention = (self._sums / course.examples).tolist()
            epoch = Epoch(self._epoch, course.epochs, loss, retention, self._elapsed_s)
            if not all(torch.isfinite(parameter).all() for parameter in self._learning.values()):
                self._diverged("a weight is NaN or infinite")
            self._good_epoch, self._good = self._epoch, self._copies()
            self._epoch, self._step, self._order, self._sums = self._epoch + 1, 0, None, torch.zeros(2)
            go_on = on_epoch is None or on_epoch(epoch)
            self._keep()
            if not go_on:
                return

    def _one_step(self, batch: Int64[Tensor, " batch"]) -> None:
        course = self._course
        done = (self._epoch - 1) * course.steps_an_epoch + self._step
        for group, rate in zip(self._optimizer.groups, self._rates, strict=True):
            group["lr"] = rate * course.rate(done)
        losses = self._gradients(batch)
        if not torch.isfinite(losses).all():
            self._step += 1
            self._diverged(f"the loss is {losses[2].item()}")
        self._optimizer.step()
        self._sums += losses[:2] * len(batch)
        self._step += 1
        total = course.last * course.steps_an_epoch
        self._watch.observer.progress(Progress(self._watch.stage, done + 1, total, self._elapsed_s))

    def _gradients(self, batch: Int64[Tensor, " batch"]) -> Float[Tensor, 3]:
        """Leave the gradients of a step, in smaller parts once memory did not suffice."""
        drawn = self._generator.get_state()
        while True:
            self._optimizer.zero_grad()
            try:
                return self._task.step(batch, self._generator).cpu()
            except torch.OutOfMemoryError:
                less = self._task.lessen()
                if less is None:
                    raise
                _log.warning("out of memory in stage %s: %s", self._watch.stage, less)
            # Outside of the handler, whose traceback keeps what was computed.
            torch.cuda.empty_cache()
            self._generator.set_state(drawn)

    def _diverged(self, what: str) -> None:
        with torch.no_grad():
            for name, parameter in self._learning.items():
                parameter.copy_(self._good[name])
        state = f"it is as it was after epoch {self._good_epoch}" if self._good_epoch else "nothing was kept"
        raise TrainingDiverged(
            f"{what} in epoch {self._epoch}, step {self._step} (stage {self._watch.stage}); {state}. "
            f"Use a learning rate below {max(self._rates):g}",
            epoch=self._epoch,
            step=self._step,
            good_epoch=self._good_epoch,
        )

    def _copies(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self._learning.items()}

    # ---- checkpoints

    def _keep(self) -> None:
        if self._watch.keeper is None:
            return
        tensors = {f"learned/{name}": parameter for name, parameter in self._learning.items()}
        if self._step:  # between epochs what is good is what is there
            tensors |= {f"good/{name}": copied for name, copied in self._good.items()}
        for number, of in self._optimizer.moments().items():
            tensors |= {f"adam/{number}/{name}": value for name, value in of.items()}
        tensors |= {f"task/{name}": value for name, value in self._task.more_state().items()}
        tensors["generator"] = self._generator.get_state()
        tensors["sums"] = self._sums
        if self._order is not None:
            tensors["order"] = self._order
        numbers = {
            "epoch": self._epoch,
            "step": self._step,
            "good_epoch": self._good_epoch,
            "elapsed_s": self._elapsed_s,
        }
        self._watch.keeper.keep_checkpoint((tensors, numbers))

    def _restore(self) -> None:
        checkpoint = None if self._watch.keeper is None else self._watch.keeper.checkpoint()
        if checkpoint is None:
            return
        tensors, numbers = checkpoint
        with torch.no_grad():
            for name, parameter in self._learning.items():
                parameter.copy_(tensors[f"learned/{name}"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("adam/"):
                _, number, key = name.split("/")
                state.setdefault(int(number), {})[key] = value
        self._optimizer.load_moments(state)
        more = {name.removeprefix("task/"): t for name, t in tensors.items() if name.startswith("task/")}
        self._task.load_more_state(more)
        self._generator.set_state(tensors["generator"])
        self._sums, self._order = tensors["sums"], tensors.get("order")
        self._epoch, self._step = numbers["epoch"], numbers["step"]
        self._good_epoch = numbers["good_epoch"]
        label = "good" if self._step else "learned"
        self._good = {name: tensors[f"{label}/{name}"].to(p) for name, p in self._learning.items()}
        self._elapsed_before = numbers["elapsed_s"]
