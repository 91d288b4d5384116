"""What every command that trains does alike: examples in, progress told, a version out, and its exit code.

Training runs on the command line: where their folders lie, and Ctrl-C that loses nothing.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli.session import ProgressBars, say
from dsearch.errors import Cancelled, InvalidRequest

if TYPE_CHECKING:
    from dsearch.attention.head import Head
    from dsearch.cli.training.options import Asked
    from dsearch.encoder import TextEncoder
    from dsearch.engine import Collection
    from dsearch.training import Examples, Gate, RunFolder, Trained, TrainingOptions
    from dsearch.training.loop.distributed import Processes
    from dsearch.training.scopes.head import MakeTask


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


_NUMBER = re.compile(r"[0-9]{6}")


def run_folder(
    collection: Collection, described: dict[str, Any], path: Path | None, *, resume: bool
) -> RunFolder:
    """The folder that was named, or `runs/000001` of the collection; with `resume` the last one there.

    Raises:
        InvalidRequest: there is no run to resume; see `RunFolder`.
    """
    from dsearch.training import RunFolder

    if path is None:
        runs = collection.store.path / "runs"
        numbers = sorted(int(one.name) for one in runs.glob("*") if _NUMBER.fullmatch(one.name))
        if resume and not numbers:
            raise InvalidRequest(
                f"collection {collection.name!r} has no run to resume; leave --resume out to start one"
            )
        number = numbers[-1] if resume else (numbers[-1] if numbers else 0) + 1
        path = runs / f"{number:06d}"
    return RunFolder(path, described, resume=resume)


@contextmanager
def training_processes(scope: str, device: str | None) -> Iterator[Processes]:
    """This process and those that `torchrun` started beside it, for scope full; else this one.

    Raises:
        InvalidRequest: several processes for another scope.
    """
    from dsearch.training.loop.distributed import Processes, asked_for, joined

    if not asked_for():
        yield Processes()
        return
    if scope != "full":
        raise InvalidRequest(f"torchrun started several processes, and --scope {scope} uses one; run dsearch")
    with joined(device or "cpu") as processes:
        yield processes


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Says whether Ctrl-C was pressed, so that training can keep a checkpoint; a second one stops at once.

    Raises:
        Cancelled: passed on, with how to go on.
    """
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    except Cancelled as error:
        raise Cancelled(f"{error}; go on with the same command and --resume") from None
    finally:
        signal.signal(signal.SIGINT, before)
