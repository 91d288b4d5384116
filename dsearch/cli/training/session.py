"""Shared parts of the training commands: judgements, progress, exit code, run folders, Ctrl-C."""

from __future__ import annotations

import _thread
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dsearch.cli.engine import in_process
from dsearch.cli.session import opened_engine, say
from dsearch.errors import Cancelled, InvalidRequest, amount
from dsearch.evaluation import read_pairs, read_qrels
from dsearch.jobs import LearningJob, TrainingJob

if TYPE_CHECKING:
    from dsearch.cli.engine import Engine
    from dsearch.engine import Collection
    from dsearch.training import RunFolder
    from dsearch.training.loop.distributed import Processes


PATIENCE_S = 3.0  # of Ctrl-C with steps of a training, of which the longest take that
HELD_BACK = 3  # the exit code when the gate did not let a model answer


def stop_unless(live: bool) -> None:
    """Exit code 3 when a model that should have answered was held back by the gate."""
    if not live:
        raise typer.Exit(HELD_BACK)


_NUMBER = re.compile(r"[0-9]{6}")


def run_folder(
    collection: Collection, identity: Mapping[str, Any], path: Path | None, *, resume: bool
) -> RunFolder:
    """The folder that was named, or `runs/000001` of the collection; with `resume` the last one there.

    Raises:
        InvalidRequest: there is no run to resume; see `RunFolder`.
    """
    from dsearch.training import RunFolder

    if path is None:
        runs = collection.store.path / "runs"
        numbers = sorted(int(folder.name) for folder in runs.glob("*") if _NUMBER.fullmatch(folder.name))
        if resume and not numbers:
            raise InvalidRequest(
                f"collection {collection.name!r} has no run to resume; leave --resume out to start one"
            )
        number = numbers[-1] if resume else (numbers[-1] if numbers else 0) + 1
        path = runs / f"{number:06d}"
    return RunFolder(path, dict(identity), resume=resume)


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
    """Says whether Ctrl-C was pressed, so that training keeps a checkpoint; a second one stops at once.

    So does the first one where nothing asks within `PATIENCE_S`: between the epochs of a training, say.

    Raises:
        KeyboardInterrupt: training has stopped, or was not asking.
    """
    pressed_s: list[float] = []
    heard, ended = threading.Event(), threading.Event()

    def press(number: int, frame: FrameType | None) -> None:
        pressed_s.append(time.monotonic())
        signal.signal(signal.SIGINT, before)

    def pressed() -> bool:
        if pressed_s:
            heard.set()
        return bool(pressed_s)

    def lose_patience() -> None:
        while not ended.wait(PATIENCE_S / 10) and not heard.is_set():
            if pressed_s and time.monotonic() > pressed_s[0] + PATIENCE_S:
                _thread.interrupt_main()
                return

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, press)
    threading.Thread(target=lose_patience, daemon=True).start()
    try:
        yield pressed
    except Cancelled as error:
        say(f"dsearch: {error}")
        raise KeyboardInterrupt from None
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)


AnyJob = TypeVar("AnyJob", bound=LearningJob)


@dataclass(frozen=True, slots=True)
class JudgedFolder:
    """The files of judgements that a command was given.

    Attributes:
        data: a BEIR folder.
        split: the judgements are those of qrels/SPLIT.tsv.
        exclude: a file of pairs that are left out.
        teacher: a file of a teacher's scores.
        strict: refuse data with any fault.
    """

    data: Path
    split: str
    exclude: Path | None = None
    teacher: Path | None = None
    strict: bool = False


DEFAULT_SPLIT = "train"


def require_data(data: Path | None, **about: object) -> None:
    """Refuse options about judgements, by name, where none are given.

    Raises:
        InvalidRequest: one of them has a value.
    """
    values = {**about, "split": about.get("split") != DEFAULT_SPLIT}
    if data is None and (names := ", ".join(f"--{name}" for name, value in values.items() if value)):
        raise InvalidRequest(f"{names} without --data; give the judgements with --data, or leave it out")


def judged_by(
    engine: Engine, home: Path | None, collection: str, job: AnyJob, folder: JudgedFolder
) -> AnyJob:
    """`judged_job` by a collection that a server may have open: it is then read beside."""
    if (local := in_process(engine)) is not None:
        return judged_job(local.engine.collection(collection), job, folder)
    with opened_engine(home, readonly=True) as (reader, _):
        return judged_job(reader.collection(collection), job, folder)


def judged_job(collection: Collection, job: AnyJob, folder: JudgedFolder) -> AnyJob:
    """The job with the judgements of a folder; faults of the data are reported and left out.

    Raises:
        InvalidSource: a file is missing or malformed; with `strict`, anything is wrong.
    """
    from dsearch.training import checked_judgements
    from dsearch.training.gate.held_out import FEW_QUERIES

    checked = checked_judgements(collection, folder.data, folder.split, strict=folder.strict)
    if checked.report.counts:
        say(checked.report.to_text())
    positives = [{id for id, grade in judged.items() if grade > 0} for judged in checked.qrels.values()]
    rows = collection.store.rows_of(sorted(set[str]().union(*positives)))
    answered = sum(not ids.isdisjoint(rows) for ids in positives)
    if isinstance(job, TrainingJob) and answered < FEW_QUERIES:
        say(
            f"{amount(answered, 'judged query has', 'judged queries have')} an answer; reliable training "
            f"needs {FEW_QUERIES}, so "
            f"{FEW_QUERIES - answered} are missing: until then `dsearch tune` gains more"
        )
    data = {
        "queries": checked.queries,
        "judgements": checked.qrels,
        "left_out": dict(checked.report.counts),
    }
    if folder.exclude is not None:
        data["exclude"] = {query: sorted(ids) for query, ids in read_pairs(folder.exclude).items()}
    if isinstance(job, TrainingJob) and folder.teacher is not None:
        data["teacher"] = read_qrels(folder.teacher)
    return replace(job, **data)
