"""Training runs on the command line: where their folders lie, and Ctrl-C that loses nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dsearch.errors import Cancelled, InvalidRequest

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.training import RunFolder
    from dsearch.training.processes import Processes

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
    from dsearch.training.processes import Processes, asked_for, joined

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
