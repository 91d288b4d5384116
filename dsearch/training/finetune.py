"""`finetune`: see on held-out queries how training goes, train on all, and say whether it helped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from dsearch.attention.head import Head
from dsearch.encoder import EncoderChange, TextEncoder
from dsearch.engine import EncodedDocuments
from dsearch.errors import InvalidRequest
from dsearch.training.examples import Examples
from dsearch.training.gate import Gate, GateReport, judge, overlap_of_canaries
from dsearch.training.headroom import Headroom, headroom
from dsearch.training.holdout import ENOUGH, MOST, Answers, HeldOut, joined, split_folds
from dsearch.training.loop import Epoch, TrainingDiverged, Watch
from dsearch.training.options import TrainingOptions
from dsearch.training.runfolder import RunFolder, Stage
from dsearch.training.student import Student
from dsearch.training.trainer import train_student
from dsearch.types import Progress

MIN_HELD_OUT = 10  # with fewer, held-out queries say nothing; all epochs are run
MIN_SLICE = 20  # with fewer, a slice says too little to choose epochs by
_CHECKPOINTS = 10  # of a training run, at which held-out queries are ranked

OnTraining = Callable[[str, Epoch], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained head and what is known of it.

    Attributes:
        head: trained on all examples.
        epochs: how many were kept.
        headroom: what was left to gain.
        gate: what held-out queries say.
        seconds: of all trainings.
        record: all of this as JSON, for the model's file.
        encoder: what was changed of the encoder, in the scopes query and full.
        documents: encoded by it, in scope full.
    """

    head: Head
    epochs: int
    headroom: Headroom
    gate: GateReport
    seconds: float
    record: dict[str, Any]
    encoder: EncoderChange | None = None
    documents: EncodedDocuments | None = None

    @property
    def verdict(self) -> tuple[bool, str]:
        """Whether it should go live, and why in words."""
        return self.gate.passed, self.gate.reason


@dataclass(frozen=True, slots=True)
class _Fold:
    """One fold's answers, untrained and after each checkpoint."""

    before: Answers
    after: list[Answers]


def finetune(
    examples: Examples,
    options: TrainingOptions | None = None,
    *,
    gate: Gate | None = None,
    start: Head | None = None,
    encoder: TextEncoder | None = None,
    device: str = "cpu",
    on_headroom: Callable[[Headroom], None] | None = None,
    on_epoch: OnTraining | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    run: RunFolder | None = None,
) -> Trained:
    """Train a head, in scope query the query encoder with it, on examples; nothing is published.

    First without the queries of a fold, to see how they are answered at each checkpoint, and so on fold by
    fold until `ENOUGH` queries were held out once. Then, with all examples, on the same schedule, up to the
    last epoch or to an earlier checkpoint that was clearly better. Both start from `start`.

    The gate scores each fold at the checkpoint that the *other* folds would choose (a single fold: each half
    of it): what is chosen on the queries that it is judged by looks better than it is.

    Args:
        examples: queries and their documents.
        options: how.
        gate: what is asked of the head.
        start: an untrained head with a tuned keyword weight and hop strength, to start from and to be
            compared with; the untrained one when None.
        encoder: the collection's, for scope query; a copy of it learns.
        device: where the arithmetic runs.
        on_headroom: told what is left to gain, before training.
        on_epoch: told the stage ("validate", "train") and the epoch.
        on_progress: told the stage and its steps.
        cancelled: asked before each step.
        run: where checkpoints and metrics go; a run that was killed goes on from there.

    Raises:
        TrainingDiverged: NaN or infinity in the loss; the head of the last whole epoch is its `student`'s,
            and lies in the run's folder.
        Cancelled: `cancelled` said so.
        InvalidRequest: scope query without an encoder, or with one that cannot be trained.
    """
    start = Head(examples.states.shape[1]).eval() if start is None else start
    options = options or TrainingOptions()
    if options.scope == "query" and encoder is None:
        raise InvalidRequest("scope='query' trains the query encoder; give encoder=collection.encoder")
    started = time.monotonic()
    session = _Session(
        examples,
        options,
        start,
        encoder if options.scope == "query" else None,
        device,
        run,
        on_epoch,
        on_progress,
        cancelled,
    )
    room = headroom(examples, start, keywords=options.keywords)
    if on_headroom is not None:
        on_headroom(room)
    checkpoints = _checkpoints(options.epochs)
    folds = session.held_out_folds(checkpoints)
    epochs, before, after = options.epochs, None, None
    if folds:
        chosen = _chosen(folds)
        epochs = [0, *checkpoints][chosen]
        if len(folds) == 1:
            folds = _halves(folds[0], options.seed)
        others = [_chosen(folds[:i] + folds[i + 1 :]) for i in range(len(folds))]
        before = joined([fold.before for fold in folds])
        after = joined([[fold.before, *fold.after][at] for fold, at in zip(folds, others, strict=True)])

    student = session.train_on_all(epochs)
    head = student.head
    # Canaries are stored embeddings: they say nothing of an encoder that changed.
    overlap = None
    if student.encoder is None:
        overlap = overlap_of_canaries(examples.snapshot, start, head, seed=options.seed)
    gated = judge(before, after, gate, canary_overlap=overlap, seed=options.seed)
    seconds = time.monotonic() - started
    record = {
        "scope": options.scope,
        "options": asdict(options),
        "epochs": epochs,
        "examples": len(examples),
        "left_out": examples.left_out,
        "data_sha256": examples.digest,
        "headroom": room.to_dict(),
        "gate": gated.to_dict(),
        "seconds": round(seconds, 2),
    }
    if run is not None:
        run.finish()
    return Trained(head, epochs, room, gated, seconds, record, student.change)


@dataclass(frozen=True, slots=True)
class _Session:
    """The trainings of one run: without each fold, and on all."""

    examples: Examples
    options: TrainingOptions
    start: Head
    encoder: TextEncoder | None
    device: str
    run: RunFolder | None
    on_epoch: OnTraining | None
    on_progress: Callable[[Progress], None] | None
    cancelled: Callable[[], bool] | None

    def held_out_folds(self, checkpoints: list[int]) -> list[_Fold]:
        examples, options = self.examples, self.options
        if options.folds == 0 or len(examples) < MIN_HELD_OUT:
            return []
        folds: list[_Fold] = []
        for number, part in enumerate(split_folds(examples, options.folds, options.seed)):
            if sum(len(fold.before) for fold in folds) >= ENOUGH:
                break
            folds.append(self._fold(number, part, checkpoints))
        return folds

    def train_on_all(self, epochs: int) -> Student:
        stage = None if self.run is None else self.run.stage("train")

        def told(epoch: Epoch, student: Student) -> bool:
            return self._tell("train", stage, epoch, student)

        return self._train(self.examples, "train", stage, epochs, told)

    def _fold(self, number: int, part: list[int], checkpoints: list[int]) -> _Fold:
        examples, options = self.examples, self.options
        training = examples.subset(sorted(set(range(len(examples))) - set(part)))
        ranked = part
        if len(part) > MOST:
            ranked = np.sort(np.random.default_rng(options.seed).choice(part, MOST, replace=False)).tolist()
        held_out = HeldOut(examples.subset(ranked), training, keywords=options.keywords)
        stage = None if self.run is None else self.run.stage(f"fold-{number}")
        before = held_out.answers(self.start)
        after: dict[int, Answers] = {}
        for epoch in checkpoints:  # of before the run was interrupted
            kept = None if stage is None else stage.answers(f"epoch-{epoch}")
            if kept is not None:
                after[epoch] = kept

        def told(epoch: Epoch, student: Student) -> bool:
            answers = held_out.answers(student.head, student.states(held_out.examples))
            if epoch.number in checkpoints:
                after[epoch.number] = answers
                if stage is not None:
                    stage.keep_answers(f"epoch-{epoch.number}", answers)
            epoch = replace(epoch, before=before.means(), after=answers.means())
            return self._tell("validate", stage, epoch, student)

        self._train(training, "validate", stage, None, told)
        return _Fold(before, [after[epoch] for epoch in checkpoints])

    def _train(
        self,
        examples: Examples,
        name: str,
        stage: Stage | None,
        epochs: int | None,
        told: Callable[[Epoch, Student], bool],
    ) -> Student:
        if stage is not None:
            stage.forget_unfinished_metrics()
        try:
            return train_student(
                examples,
                self.options,
                encoder=self.encoder,
                start=self.start,
                epochs=epochs,
                device=self.device,
                watch=Watch(name, self.on_progress, self.cancelled, stage),
                on_epoch=told,
            )
        except TrainingDiverged as error:
            if self.run is not None and error.kept:
                path = self.run.keep_last_good(error.student.head)
                error.add_note(f"the head after epoch {error.kept} is in {path}")
            raise

    def _tell(self, name: str, stage: Stage | None, epoch: Epoch, student: Student) -> bool:
        if stage is not None:
            stage.add_metrics(epoch, student)
        if self.on_epoch is not None:
            self.on_epoch(name, epoch)
        return True


def _halves(fold: _Fold, seed: int) -> list[_Fold]:
    order = np.random.default_rng(seed).permutation(len(fold.before))
    return [
        _Fold(fold.before.subset(half), [one.subset(half) for one in fold.after])
        for half in (np.sort(order[::2]), np.sort(order[1::2]))
    ]


def _checkpoints(epochs: int) -> list[int]:
    """Some ten epochs, the last among them."""
    count = min(epochs, _CHECKPOINTS)
    return sorted({round(epochs * (step + 1) / count) for step in range(count)})


def _chosen(folds: list[_Fold]) -> int:
    """The checkpoint to keep by these folds, 0 for the untrained head."""
    before = joined([fold.before for fold in folds])
    after = [joined(list(parts)) for parts in zip(*(fold.after for fold in folds), strict=True)]
    return kept_checkpoint(np.stack([before.all, *(one.all for one in after)]), before.seen)


def kept_checkpoint(
    values: Float[np.ndarray, "checkpoints queries"], seen: Bool[np.ndarray, " queries"]
) -> int:
    """The last checkpoint, or an earlier one (0: untrained) that was better by twice the standard error.

    The learning rate falls to zero at the end, so the last epoch has the least noise, while the best of
    thirty noisy ones is mostly luck: on SciFact's training split (3 folds) it lost .013 against the last.
    Seen and unseen queries count alike, however many of each there are.
    """
    weights = np.ones(len(seen))
    if min(seen.sum(), (~seen).sum()) >= MIN_SLICE:
        weights = np.where(seen, len(seen) / (2 * seen.sum()), len(seen) / (2 * (~seen).sum()))
    weighted = values * weights
    best = int(weighted.mean(axis=1).argmax())
    gain = weighted[best] - weighted[-1]
    clear = gain.mean() > 2 * gain.std() / np.sqrt(len(gain))
    return best if clear else len(values) - 1
