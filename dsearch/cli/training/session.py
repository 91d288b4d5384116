"""Shared parts of the training commands: progress, exit code, run folders, Ctrl-C."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli.session import ProgressBars, say
from dsearch.errors import Cancelled, InvalidRequest
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.training import Headroom, Observer, RunFolder
    from dsearch.training.loop.distributed import Processes

HELD_BACK = 3  # the exit code when the gate did not let a model answer


def stop_unless(live: bool) -> None:
    """Exit code 3 when a model that should have answered was held back by the gate."""
    if not live:
        raise typer.Exit(HELD_BACK)


@contextmanager
def terminal_observer(unit: str = "steps") -> Iterator[Observer]:
    """Show the progress of a job as bars on stderr; Ctrl-C stops it and keeps a checkpoint."""
    from dsearch.training import Observer

    with interruptible() as pressed, ProgressBars(unit) as on_progress:

        class Terminal(Observer):
            def remark(self, text: str) -> None:
                say(text)

            def headroom(self, room: Headroom) -> None:
                say(room.to_text())

            def progress(self, progress: Progress) -> None:
                on_progress(progress)

            def cancelled(self) -> bool:
                return pressed()

        yield Terminal()


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
