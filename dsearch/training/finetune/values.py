"""`finetune_values`: learn the values of a field, and evaluate them on held-out documents.

A held-out document is no evidence either, neither in training nor for the others: it is predicted like a new
document, from the documents that were trained on.

The gate compares learned values with stored ones, pooled by the same attention. It requires a significant
gain in R² (numbers) or in the mean log share of the right label, whose accuracy must not fall by more than
the margin. Learned values must also beat the constant prediction, that is the mean of all values or the
frequencies of the labels: where pooled values are worse than that, values that have only learned the constant
would look like a gain.

Only W_V, W_O and b learn, and no ranking depends on them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.engine.models.files import READOUT, SCOPE
from dsearch.jobs import CONTEXT
from dsearch.training.candidate import JudgedCandidate
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import ENOUGH, MOST, Answers
from dsearch.training.gate.selection import kept_checkpoint
from dsearch.training.loop.loop import Epoch, Observer, Student, Watch
from dsearch.training.loop.run_folder import RunFolder, Stage
from dsearch.training.options import ValueOptions
from dsearch.training.values import (
    ValueData,
    ValueExamples,
    ValuesTask,
    described,
    measures_of_values,
    predicted_by,
    scores_of_values,
    served_by,
)

_CHECKPOINTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedValues(JudgedCandidate):
    """Learned values of a field: a head with W_V, W_O and b of all documents, and their evaluation.

    Attributes:
        epochs: number of epochs selected.
        before: accuracy and log loss, or R² and root mean squared error, of stored values.
        after: the same of learned values; both cross-fitted, None if nothing was held out.
    """

    epochs: int
    before: dict[str, float] | None
    after: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class _Fold:
    """Held-out documents: what stored values predict for them, and learned ones at each checkpoint.

    Attributes:
        asked: the documents, by their place in the examples.
        nothing: scores of the constant prediction.
        stored: predictions by stored values.
        scores: scores of learned values at the start and at each checkpoint.
        learned: predictions by these.
    """

    asked: Int64[np.ndarray, " asked"]
    nothing: Float[np.ndarray, " asked"]
    stored: Float32[np.ndarray, "asked value_dim"]
    scores: Float[np.ndarray, "checkpoints asked"]
    learned: list[Float32[np.ndarray, "asked value_dim"]]


def finetune_values(
    examples: ValueExamples,
    options: ValueOptions | None = None,
    *,
    gate: Gate | None = None,
    start: Head | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
    run: RunFolder | None = None,
) -> TrainedValues:
    """Learn the values of a field; nothing is published.

    Args:
        examples: documents with their values.
        options: options of the training.
        gate: requirements on the values.
        start: head whose attention pools them; the untrained one when None.
        device: device of the training.
        observer: receives epochs (of the stages "validate" and "train") and progress; stops it.
        run: folder of checkpoints and metrics; an interrupted run resumes from it.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
        Cancelled: the observer stopped it.
    """
    options, gate = options or ValueOptions(), gate or Gate()
    start = Head(examples.snapshot.embeddings(examples.positions[:1]).shape[1]) if start is None else start
    examples = replace(examples, snapshot=examples.snapshot.with_bm25(start.keyword_weighting))
    started = time.monotonic()
    data = ValueData(examples, keywords=options.keywords, device=device)
    pooling = start if device == "cpu" else copy.deepcopy(start).to(device)
    session = _Session(data, options, pooling, run, observer or Observer())
    checkpoints = sorted({round(options.epochs * (step + 1) / _CHECKPOINTS) for step in range(_CHECKPOINTS)})
    checkpoints = [0, *(epoch for epoch in checkpoints if epoch)]
    folds = session.folds(checkpoints)
    epochs, before, after, scores = options.epochs, None, None, None
    if folds:
        epochs = checkpoints[_choose_checkpoint(folds)]
        if len(folds) == 1:
            folds = _halves(folds[0], options.seed)
        chosen = [_choose_checkpoint(folds[:i] + folds[i + 1 :]) for i in range(len(folds))]
        asked, nothing = (
            np.concatenate([getattr(fold, of) for fold in folds]) for of in ("asked", "nothing")
        )
        stored = np.concatenate([fold.stored for fold in folds])
        learned = np.concatenate([fold.learned[at] for fold, at in zip(folds, chosen, strict=True)])
        before, after = (measures_of_values(examples, asked, of) for of in (stored, learned))
        scores = ValueScores(
            scores_of_values(examples, asked, stored), scores_of_values(examples, asked, learned), nothing
        )
    head = session.train_on_all(epochs)
    _in_own_units(head, examples)
    report = judge_values(
        scores,
        gate,
        measures=None if before is None or after is None else (before, after),
        measure="log share of the right label" if examples.kind == "label" else "R²",
        seed=options.seed,
    )
    record = {
        "scope": SCOPE,
        "objective": CONTEXT,
        "options": asdict(options),
        "epochs": epochs,
        **described(examples),
        READOUT: {
            "field": examples.field,
            "kind": examples.kind,
            "labels": list(examples.labels) or None,
        },
        "values": {"before": before, "after": after},
        "gate": report.to_dict(),
        "seconds": round(time.monotonic() - started, 2),
    }
    if run is not None:
        run.finish()
    return TrainedValues(head=head, record=record, gate=report, epochs=epochs, before=before, after=after)


@dataclass(frozen=True, slots=True)
class _Session:
    """The trainings of one run: without each fold, and on all."""

    data: ValueData
    options: ValueOptions
    start: Head
    run: RunFolder | None
    observer: Observer

    def folds(self, checkpoints: list[int]) -> list[_Fold]:
        options, count = self.options, len(self.data.examples)
        if options.folds == 0 or count < 2 * options.folds:
            return []
        order = np.random.default_rng(options.seed).permutation(count)
        folds: list[_Fold] = []
        for number in range(options.folds):
            if sum(len(fold.asked) for fold in folds) >= ENOUGH:
                break
            folds.append(self._fold(number, np.sort(order[number :: options.folds]), checkpoints))
        return folds

    def train_on_all(self, epochs: int) -> Head:
        task = ValuesTask(self.data, self.options, self.start)
        return self._train(task, "train", self._stage("train"), epochs, None)

    def _fold(self, number: int, part: Int64[np.ndarray, " part"], checkpoints: list[int]) -> _Fold:
        data, examples = self.data, self.data.examples
        evidence = np.setdiff1d(np.arange(len(examples)), part)
        asked = part if len(part) <= MOST else _drawn(part, self.options.seed)
        pooled = served_by(data, self.start, asked, evidence)
        task, stage = ValuesTask(data, self.options, self.start, evidence), self._stage(f"fold-{number}")
        predicted = {0: predicted_by(task.head, pooled.contexts, examples.kind)}

        def report(epoch: Epoch, head: Head) -> None:
            if epoch.number in checkpoints:
                predicted[epoch.number] = predicted_by(head, pooled.contexts, examples.kind)
                if stage is not None:
                    stage.keep_array(f"epoch-{epoch.number}", predicted[epoch.number])

        if stage is not None:  # what an interrupted run has kept
            predicted |= stage.arrays({epoch: f"epoch-{epoch}" for epoch in checkpoints})
        self._train(task, "validate", stage, None, report)
        learned = [predicted[epoch] for epoch in checkpoints]
        scores = np.stack([scores_of_values(examples, asked, prediction) for prediction in learned])
        always = np.tile(examples.values[evidence].mean(0), (len(asked), 1))
        nothing = scores_of_values(examples, asked, always)
        return _Fold(asked, nothing, pooled.stored.cpu().numpy(), scores, learned)

    def _stage(self, name: str) -> Stage | None:
        return None if self.run is None else self.run.stage(name)

    def _train(
        self,
        task: ValuesTask,
        name: str,
        stage: Stage | None,
        epochs: int | None,
        report: Callable[[Epoch, Head], None] | None,
    ) -> Head:
        if stage is not None:
            stage.forget_unfinished_metrics()

        def tell(epoch: Epoch, head: Head) -> None:
            if report is not None:
                report(epoch, head)
            if stage is not None:
                stage.add_metrics(epoch, Student(head))
            self.observer.epoch(name, epoch)

        return task.train(epochs, watch=Watch(name, self.observer, stage), on_epoch=tell)


def _drawn(part: Int64[np.ndarray, " part"], seed: int) -> Int64[np.ndarray, " drawn"]:
    return np.sort(np.random.default_rng(seed).choice(part, MOST, replace=False))


def _in_own_units(head: Head, examples: ValueExamples) -> None:
    """Fold the field's scale and mean into the output projection."""
    if examples.kind == "label":
        return
    assert head.output is not None
    scale = torch.as_tensor(examples.scale)
    with torch.no_grad():
        head.output.weight.mul_(scale[:, None])
        head.output.bias.mul_(scale).add_(torch.as_tensor(examples.centre))


def _choose_checkpoint(folds: list[_Fold]) -> int:
    """The checkpoint to keep by these folds, 0 for the start."""
    scores = np.concatenate([fold.scores for fold in folds], axis=1)
    return kept_checkpoint(scores, np.zeros(scores.shape[1], bool))


def _halves(fold: _Fold, seed: int) -> list[_Fold]:
    order = np.random.default_rng(seed).permutation(len(fold.asked))
    return [
        _Fold(
            fold.asked[half],
            fold.nothing[half],
            fold.stored[half],
            fold.scores[:, half],
            [prediction[half] for prediction in fold.learned],
        )
        for half in (np.sort(order[::2]), np.sort(order[1::2]))
    ]


@dataclass(frozen=True, slots=True)
class ValueScores:
    """Scores of each held-out document: by stored values, learned ones, and the constant prediction."""

    before: Float[np.ndarray, " asked"]
    after: Float[np.ndarray, " asked"]
    nothing: Float[np.ndarray, " asked"]


def judge_values(
    scores: ValueScores | None,
    gate: Gate,
    *,
    measures: tuple[dict[str, float], dict[str, float]] | None,
    measure: str,
    seed: int,
) -> GateReport:
    """The verdict on learned values.

    Args:
        scores: None when nothing was held out.
        gate: requirements of the gate.
        measures: accuracy and log loss, or R² and root mean squared error, before and after.
        measure: name of the measure, for the report.
        seed: random seed of the resampling.
    """
    before, after = (None, None) if scores is None else map(Answers.of_scores, (scores.before, scores.after))
    report = judge(before, after, gate, measure=measure, seed=seed)
    if scores is not None:
        report = _also_over_nothing(report, scores.nothing, scores.after, seed)
    return _also_accuracy(report, measures)


def _also_over_nothing(
    report: GateReport,
    nothing: Float[np.ndarray, " asked"],
    after: Float[np.ndarray, " asked"],
    seed: int,
) -> GateReport:
    """Refused where what is predicted is no better than the same answer for every document."""
    if not report.passed:
        return report
    over = judge(
        Answers.of_scores(nothing), Answers.of_scores(after), report.gate, measure=report.measure, seed=seed
    )
    if over.passed:
        return report
    reason = (
        f"{report.reason}; but always giving the mean, or the labels' frequencies, has {nothing.mean():.4f}, "
        "and it is not significantly better than that: the field does not show in the documents"
    )
    return replace(report, verdict="refused", reason=reason)


def _also_accuracy(
    report: GateReport, measures: tuple[dict[str, float], dict[str, float]] | None
) -> GateReport:
    """Refused where the right label is named clearly less often, whatever the shares say."""
    if not report.passed or measures is None or "accuracy" not in measures[0]:
        return report
    fall = measures[0]["accuracy"] - measures[1]["accuracy"]
    if fall <= report.gate.margin:
        return report
    reason = f"accuracy falls by {fall:.4f} (allowed {report.gate.margin:g})"
    return replace(report, verdict="refused", reason=reason)
