"""What every command that trains does alike: examples in, progress told, a version out, and its exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsearch.cli.runs import interruptible
from dsearch.cli.session import ProgressBars, say

if TYPE_CHECKING:
    from dsearch.attention.head import Head
    from dsearch.cli.train_asked import Asked
    from dsearch.encoder import TextEncoder
    from dsearch.engine import Collection
    from dsearch.training import Examples, Gate, RunFolder, Trained, TrainingOptions
    from dsearch.training.trainer import MakeTask

HELD_BACK = 3  # the exit code when the gate did not let a model answer


def stop_unless(live: bool) -> None:
    """Exit code 3 when a model that should have answered was held back by the gate."""
    if not live:
        raise typer.Exit(HELD_BACK)


def train_with_progress(
    examples: Examples,
    training: TrainingOptions,
    device: str,
    gate: Gate | None = None,
    start: Head | None = None,
    encoder: TextEncoder | None = None,
    run: RunFolder | None = None,
    task: MakeTask | None = None,
) -> Trained:
    """Train: first what is left to gain, then a bar for the folds held out and one for the whole."""
    from dsearch.training import finetune

    if run is not None:
        say(f"metrics and checkpoints: {run.path}")
    with interruptible() as cancelled, ProgressBars("steps") as on_progress:
        return finetune(
            examples,
            training,
            gate=gate,
            start=start,
            encoder=encoder,
            device=device,
            on_headroom=lambda room: say(room.to_text()),
            on_progress=on_progress,
            cancelled=cancelled,
            run=run,
            task=task,
        )


def judged_examples(
    collection: Collection,
    data: Path,
    split: str,
    exclude: Path | None,
    teacher: Path | None = None,
    *,
    strict: bool = False,
) -> Examples:
    """The judged queries of a split of a BEIR folder; what cannot be learned from is told and left out."""
    from dsearch.evaluation import read_pairs, read_qrels
    from dsearch.training import checked_judgements, examples_from_judgements

    checked = checked_judgements(collection, data, split, strict=strict)
    if checked.report.counts:
        say(checked.report.to_text())
    pairs = read_pairs(exclude) if exclude else {}
    scores = None if teacher is None else read_qrels(teacher)
    examples = examples_from_judgements(collection, checked.queries, checked.qrels, pairs, teacher=scores)
    return replace(examples, left_out=dict(checked.report.counts))


def judged_of(collection: Collection, asked: Asked) -> Examples:
    """The judged queries that `dsearch train` was given."""
    return judged_examples(
        collection, asked.judgements, asked.split, asked.exclude, asked.teacher, strict=asked.strict
    )
