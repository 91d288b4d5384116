"""Shared parts of the training commands: judgements, run folders, Ctrl-C, report and exit code."""

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
from dsearch.cli.session import command_line, opened_engine, print_json, say, with_home
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


def show_training(collection: str, job: TrainingJob, result: dict[str, Any], *, json: bool) -> None:
    """Print the result of a training; exit code 3 if it should have gone live and the gate prevented that."""
    if json:
        print_json({"version": result["model"], **result})
    else:
        typer.echo("\n".join(training_lines(collection, job, result)))
    stop_unless(result["live"] or not job.promote)


def training_lines(collection: str, job: TrainingJob, result: Mapping[str, Any]) -> list[str]:
    """The result of a training in words."""
    live, version, trained = result["live"], result["model"], result["trained"]
    if job.field is None:
        learned = f"trained on {amount(result['examples'], 'query', 'queries')}"
        epochs = epochs_text(result["epochs"])
        epochs += _served(result.get("share", 1.0), result.get("keyword_factor", 1.0))
    else:
        documents = amount(result["examples"], "document")
        learned = f"learned values of {job.field!r} ({result['kind']}) from {documents}"
        epochs = epochs_of_values(result["epochs"])
    lines = [
        result["verdict"],
        f"{collection}: {trained} {learned} in {result['seconds']:.1f} s ({epochs})",
        *gate_lines(result),
        *_measure_lines(result.get("values") or {}),
        *_tuned_lines(result.get("tuned")),
    ]
    outcomes, stage = result.get("outcomes"), result.get("second_stage")
    if outcomes is not None:
        gate, rows = outcomes["gate"], amount(outcomes["examples"], "row")
        lines.append(f"{rows} of past queries from feedback: {gate['verdict']}: {gate['reason']}")
    if stage is not None:
        lines.append(stage["text"])
    if not live:
        try_it = None if job.field is None else f"predict with model={trained!r}"
        return [*lines, stored_line(collection, result["passed"] or trained, try_it)]
    if version != trained and (stage is None or stage["verdict"] != "passed"):
        named = "the tuned search" if outcomes is None else "with the memory of past queries"
        lines.append(f"{version}, {named}, is better than what answered before")
    return [*lines, live_line(version, result["undo"])]


def _measure_lines(values: Mapping[str, Any]) -> list[str]:
    before, after = values.get("before"), values.get("after")
    if before is None or after is None:
        return []
    pairs = [f"{name} {before[name]:.4f} → {after[name]:.4f}" for name in before]
    return [f"  held-out documents: {', '.join(pairs)}"]


def _tuned_lines(tuned: Mapping[str, Any] | None) -> list[str]:
    if tuned is None:
        return []
    from dsearch.training.tune import setting_from

    gate = tuned["gate"]
    line = f"tuned search, {setting_from(tuned)}: {gate['verdict']}: {gate['reason']}"
    return [line, *decision_lines(tuned), *leg_lines(tuned)]


def live_line(version: str, undo: str | None) -> str:
    """A line about the live version, with the way back; `undo`: `Registration.undo`."""
    line = f"{version} is live now"
    return line if undo is None else f"{line}. {undo_line(undo)}"


def undo_line(command: str) -> str:
    """The one way back, as every output names it; `command` names no home."""
    return f"Undo: {with_home(command, 'rollback', 'promote')}"


def stored_line(collection: str, version: str, try_it: str | None = None) -> str:
    """A line about a version that is not live, with the ways to use it."""
    try_it = try_it or f"try it with --model {version}"
    promote = command_line("promote", version, "-c", collection)
    return f"{version} is stored but not live; {try_it}, or: {promote}"


def gate_lines(result: Mapping[str, Any]) -> list[str]:
    """The gate's report in the result of a task, and which version became live meanwhile."""
    from dsearch.training.gate.gate import report_text

    return [report_text(result["gate"]), *([result["reason"]] if result.get("outdated_by") else [])]


def decision_lines(record: Mapping[str, Any]) -> list[str]:
    """The gate's decision in words; records of earlier versions have none."""
    decision = (record.get("gate") or {}).get("decision")
    return [] if decision is None else [f"  {decision['text']}"]


def leg_lines(record: Mapping[str, Any]) -> list[str]:
    """Name dense or keyword search where it answers the judged queries better than both together, untuned."""
    scores = record.get("scores") or {}
    legs = [leg for leg in ("dense", "keyword") if leg in scores]
    leg = max(legs, key=lambda name: scores[name], default=None)
    if leg is None or "untuned" not in scores or scores[leg] <= scores["untuned"]:
        return []
    line = (
        f"  {leg} alone answers the judged queries better than both legs untuned, nDCG@10 {scores[leg]:.4f}"
    )
    return [f"{line} against {scores['untuned']:.4f}"]


def epochs_text(epochs: int | str) -> str:
    """Count the epochs; there are none where held-out queries were answered best by what was there before."""
    if epochs == 0:
        return "0 epochs: no amount of training answered held-out queries better"
    return amount(epochs, "epoch") if isinstance(epochs, int) else f"{epochs} epochs"


def epochs_of_values(epochs: int) -> str:
    """Count the epochs of learned values; none where the regression that they start from is as good."""
    return amount(epochs, "epoch") if epochs else "0 epochs: the ridge regression that training starts from"


def _served(share: float, keyword_factor: float) -> str:
    text = "" if share == 1.0 else f", of which {share:.0%} is served"
    text += "" if keyword_factor == 1.0 else f", keywords weighed {keyword_factor:g} times as high"
    return f"{text}, for the sake of unseen documents" if text else ""
