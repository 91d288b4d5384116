"""`finetune_values`: train a head to predict a field, and evaluate it on held-out documents.

A held-out document is no evidence either, neither in training nor for the others: it is predicted like a new
document, from the documents that were trained on.

The gate requires a significant gain in R² (numbers) or in the mean log share of the right label, whose
accuracy must not fall by more than the margin. The head must also beat the constant prediction, that is the
mean of all values or the frequencies of the labels: with too low a temperature an untrained head is worse
than that, and a head that has only learned the constant would look like a gain.

A metric trained for a field may rank a search worse. So the version answers predictions and no searches.
Judgements, if there are any, only show what it would do to search.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64

from dsearch.attention.retrieval.head import Head
from dsearch.errors import InvalidRequest
from dsearch.training.data.examples import Examples
from dsearch.training.gate.gate import Gate, GateReport, judge, overlap_of_canaries
from dsearch.training.gate.held_out import ENOUGH, MOST, Answers
from dsearch.training.gate.selection import kept_checkpoint
from dsearch.training.loop.loop import Watch
from dsearch.training.loop.observer import Epoch, Observer, Student
from dsearch.training.loop.run_folder import RunFolder, Stage
from dsearch.training.options import ValueOptions
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import ndcg_at_10
from dsearch.training.values.examples import ValueExamples, described
from dsearch.training.values.task import (
    HeldEvidence,
    ValueData,
    measures_of_values,
    scores_of_values,
    train_on_values,
)

_CHECKPOINTS = 10


@dataclass(frozen=True, slots=True)
class TrainedValues:
    """A head that predicts a field, and its evaluation.

    Attributes:
        head: head trained on all documents.
        epochs: number of epochs selected.
        gate: the gate's report on held-out documents.
        before: accuracy and log loss, or R² and root mean squared error, of the live model.
        after: the same of the trained head; both cross-fitted, None if nothing was held out.
        seconds: duration of all trainings.
        record: all of this as JSON, for the model's file.
    """

    head: Head
    epochs: int
    gate: GateReport
    before: dict[str, float] | None
    after: dict[str, float] | None
    seconds: float
    record: dict[str, Any]

    def to_text(self) -> str:
        """The gate's report, and the measures before and after."""
        if self.before is None or self.after is None:
            return self.gate.to_text()
        pairs = [f"{name} {self.before[name]:.4f} → {self.after[name]:.4f}" for name in self.before]
        return f"{self.gate.to_text()}\n  held-out documents: {', '.join(pairs)}"


@dataclass(frozen=True, slots=True)
class _Fold:
    """Held-out examples, their predictions untrained and after each checkpoint, scores of knowing nothing."""

    queries: Int64[np.ndarray, " queries"]
    nothing: Float[np.ndarray, " asked"]
    scores: Float[np.ndarray, "checkpoints asked"]
    predicted: list[Float32[np.ndarray, "asked value_dim"]]


def finetune_values(
    examples: ValueExamples,
    options: ValueOptions | None = None,
    *,
    gate: Gate | None = None,
    start: Head | None = None,
    judged: Examples | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
    run: RunFolder | None = None,
) -> TrainedValues:
    """Train a head to predict a field; nothing is published.

    Args:
        examples: documents with their values.
        options: options of the training.
        gate: requirements on the head.
        start: what answers now, an untrained head perhaps with a tuned keyword weight; the untrained one
            when None.
        judged: queries that say what becomes of search; not learned from.
        device: device of the training.
        observer: receives epochs (of the stages "validate" and "train") and progress; stops it.
        run: folder of checkpoints and metrics; an interrupted run resumes from it.

    Raises:
        TrainingDiverged: NaN or infinity in the loss.
        Cancelled: the observer stopped it.
    """
    options, gate = options or ValueOptions(), gate or Gate()
    if options.contrastive and examples.kind != "vector":
        raise InvalidRequest(
            f"objective contrastive with {examples.field!r}, a {examples.kind}; give a field of vectors, "
            "or use objective context"
        )
    start = Head(examples.states.shape[1]).eval() if start is None else start
    examples = replace(examples, snapshot=examples.snapshot.weighed(start.keyword_weighting))
    started = time.monotonic()
    data = ValueData(examples, keywords=options.keywords, device=device)
    session = _Session(data, options, start, run, observer or Observer())
    checkpoints = sorted({round(options.epochs * (step + 1) / _CHECKPOINTS) for step in range(_CHECKPOINTS)})
    checkpoints = [epoch for epoch in checkpoints if epoch]
    folds = session.folds(checkpoints)
    epochs, before, after = options.epochs, None, None
    measure = "log share of the right label" if examples.kind == "label" else "R²"
    if options.contrastive:
        measure = "log share of the right vector"
    first, last, nothing = (np.zeros(0) for _ in range(3))
    if folds:
        checkpoint = _choose_checkpoint(folds)
        epochs = [0, *checkpoints][checkpoint]
        if len(folds) == 1:
            folds = _halves(folds[0], options.seed)
        chosen = [_choose_checkpoint(folds[:i] + folds[i + 1 :]) for i in range(len(folds))]
        queries = np.concatenate([fold.queries for fold in folds])
        first = np.concatenate([fold.scores[0] for fold in folds])
        last = np.concatenate([fold.scores[at] for fold, at in zip(folds, chosen, strict=True)])
        nothing = np.concatenate([fold.nothing for fold in folds])
        predicted = [fold.predicted[at] for fold, at in zip(folds, chosen, strict=True)]
        before = measures_of_values(examples, queries, np.concatenate([fold.predicted[0] for fold in folds]))
        after = measures_of_values(examples, queries, np.concatenate(predicted))
    head = session.train_on_all(epochs)
    readout: dict[str, Any] = {}
    if head.output is not None:
        _in_own_units(head, examples)
        labels = list(examples.labels) or None
        readout = {"readout": {"field": examples.field, "kind": examples.kind, "labels": labels}}
    overlap = overlap_of_canaries(examples.snapshot, start, head, seed=options.seed)
    searched = None if judged is None else search_by(judged, start, head)
    report = judge_values(
        ValueScores(first, last, nothing) if folds else None,
        gate,
        measures=None if before is None or after is None else (before, after),
        canary_overlap=overlap,
        measure=measure,
        seed=options.seed,
    )
    seconds = time.monotonic() - started
    record = {
        "scope": "head",
        "purpose": "predict",
        "objective": "value" if options.values == "stored" else "context",
        "options": asdict(options),
        "epochs": epochs,
        **described(examples),
        **readout,
        "values": {"before": before, "after": after},
        "search": None if searched is None else {"before": searched[0], "after": searched[1]},
        "gate": report.to_dict(),
        "seconds": round(seconds, 2),
    }
    if run is not None:
        run.finish()
    return TrainedValues(head, epochs, report, before, after, seconds, record)


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
            if sum(len(fold.queries) for fold in folds) >= ENOUGH:
                break
            folds.append(self._fold(number, np.sort(order[number :: options.folds]), checkpoints))
        return folds

    def train_on_all(self, epochs: int) -> Head:
        return self._train("train", "train", None, None, epochs, None)

    def _fold(self, number: int, part: Int64[np.ndarray, " part"], checkpoints: list[int]) -> _Fold:
        data, examples = self.data, self.data.examples
        own = examples.own[part]
        others = np.setdiff1d(np.arange(len(examples)), part)
        evidence = np.setdiff1d(np.arange(len(examples.positions)), own[own >= 0])
        pooled = HeldEvidence(data, evidence)
        queries = part[:MOST] if len(part) <= MOST else _drawn(part, self.options.seed)
        predicted = {0: pooled.served(self.start.to(data.device), queries)}
        self.start.cpu()
        stage = None if self.run is None else self.run.stage(f"fold-{number}")

        def report(epoch: Epoch, head: Head) -> None:
            if epoch.number in checkpoints:
                predicted[epoch.number] = pooled.served(head, queries)
                if stage is not None:
                    stage.keep_array(f"epoch-{epoch.number}", predicted[epoch.number])

        if stage is not None:  # what is there of before the run was interrupted
            predicted |= stage.arrays({epoch: f"epoch-{epoch}" for epoch in checkpoints})
        self._train("validate", f"fold-{number}", others, evidence, None, report)
        predictions = [predicted[epoch] for epoch in (0, *checkpoints)]
        contrastive = self.options.contrastive
        scores = np.stack(
            [
                scores_of_values(examples, queries, prediction, contrastive=contrastive)
                for prediction in predictions
            ]
        )
        always = np.tile(examples.values[evidence].mean(0), (len(queries), 1))
        nothing = scores_of_values(examples, queries, always, contrastive=contrastive)
        return _Fold(queries, nothing, scores, predictions)

    def _train(
        self,
        name: str,
        folder: str,
        queries: Int64[np.ndarray, " asked"] | None,
        evidence: Int64[np.ndarray, " documents"] | None,
        epochs: int | None,
        report: Callable[[Epoch, Head], None] | None,
    ) -> Head:
        stage: Stage | None = None if self.run is None else self.run.stage(folder)
        if stage is not None:
            stage.forget_unfinished_metrics()

        def tell(epoch: Epoch, head: Head) -> None:
            if report is not None:
                report(epoch, head)
            if stage is not None:
                stage.add_metrics(epoch, Student(head))
            self.observer.epoch(name, epoch)

        return train_on_values(
            self.data,
            self.options,
            queries=queries,
            evidence=evidence,
            start=self.start,
            epochs=epochs,
            watch=Watch(name, self.observer, stage),
            on_epoch=tell,
        )


def _drawn(part: Int64[np.ndarray, " part"], seed: int) -> Int64[np.ndarray, " drawn"]:
    return np.sort(np.random.default_rng(seed).choice(part, MOST, replace=False))


def _in_own_units(head: Head, examples: ValueExamples) -> None:
    """Fold the field's scale and mean into the output projection."""
    if examples.kind == "label" or head.output is None:
        return
    scale = torch.as_tensor(examples.scale)
    with torch.no_grad():
        head.output.weight.mul_(scale[:, None])
        head.output.bias.mul_(scale).add_(torch.as_tensor(examples.centre))


def _choose_checkpoint(folds: list[_Fold]) -> int:
    """The checkpoint to keep by these folds, 0 for the untrained head."""
    scores = np.concatenate([fold.scores for fold in folds], axis=1)
    return kept_checkpoint(scores, np.zeros(scores.shape[1], bool))


def _halves(fold: _Fold, seed: int) -> list[_Fold]:
    order = np.random.default_rng(seed).permutation(len(fold.queries))
    return [
        _Fold(
            fold.queries[half],
            fold.nothing[half],
            fold.scores[:, half],
            [prediction[half] for prediction in fold.predicted],
        )
        for half in (np.sort(order[::2]), np.sort(order[1::2]))
    ]


@dataclass(frozen=True, slots=True)
class ValueScores:
    """Scores of each held-out document: by the live model, the trained head, and the constant prediction."""

    before: Float[np.ndarray, " asked"]
    after: Float[np.ndarray, " asked"]
    nothing: Float[np.ndarray, " asked"]


def judge_values(
    scores: ValueScores | None,
    gate: Gate,
    *,
    measures: tuple[dict[str, float], dict[str, float]] | None,
    canary_overlap: float | None,
    measure: str,
    seed: int,
) -> GateReport:
    """The verdict on a head that was trained to predict a field.

    Args:
        scores: None when nothing was held out.
        gate: requirements of the gate.
        measures: accuracy and log loss, or R² and root mean squared error, before and after.
        canary_overlap: see `overlap_of_canaries`.
        measure: name of the measure, for the report.
        seed: random seed of the resampling.
    """
    before, after = (None, None) if scores is None else map(unseen_answers, (scores.before, scores.after))
    report = judge(before, after, gate, canary_overlap=canary_overlap, measure=measure, seed=seed)
    if scores is not None:
        report = _also_over_nothing(report, scores.nothing, scores.after, seed)
    return _also_accuracy(report, measures)


def search_by(judged: Examples, before: Head, after: Head) -> tuple[float, float]:
    """Mean nDCG@10 of both heads on judged queries."""
    ranking = Ranking(judged)
    first, last = (
        ndcg_at_10(ranking.top(head, hop_strength=head.hop_strength.item()), judged.relevant).mean()
        for head in (before, after)
    )
    return float(first), float(last)


def unseen_answers(scores: Float[np.ndarray, " asked"]) -> Answers:
    """Held-out documents were never seen."""
    return Answers(scores, np.zeros(len(scores), bool), scores)


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
        unseen_answers(nothing), unseen_answers(after), report.gate, measure=report.measure, seed=seed
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
