"""What the tests of dsearch.processes run in other processes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dsearch.errors import InvalidRequest
from dsearch.processes import Report, run_spawned
from dsearch.types import Progress


@dataclass(frozen=True)
class Made:
    folder: Path
    numbers: list[int]


def count(report: Report, upto: int, folder: Path) -> Made:
    for done in range(upto):
        report(Progress("count", done + 1, upto, 0.0))
    return Made(folder, list(range(upto)))


def surroundings(report: Report) -> dict[str, object]:
    """Which modules came in which order, and whether this process is a copy of another."""
    import threadpoolctl

    order = [name for name in sys.modules if name in ("torch", "faiss", "support.process_targets")]
    pools = sorted({pool["num_threads"] for pool in threadpoolctl.threadpool_info()})
    return {"pid": os.getpid(), "order": order, "pools": pools, "main": "pytest" in sys.modules}


def refuse(report: Report) -> None:
    raise InvalidRequest("limit=0; use 1 to 1000")


def fail(report: Report) -> None:
    raise KeyError("no such thing")


class Odd(Exception):
    def __init__(self, first: str, second: str):
        super().__init__(f"{first} and {second}")


def fail_oddly(report: Report) -> None:
    raise Odd("this", "that")


def terminate_at_the_end(report: Report, cleaning: bool) -> None:
    """Is sent SIGTERM when it exits, after a result, or a second time after the first."""
    atexit.register(os.kill, os.getpid(), signal.SIGTERM)
    if cleaning:
        os.kill(os.getpid(), signal.SIGTERM)


def kill_itself(report: Report) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(report: Report) -> None:
    os._exit(7)


def take_memory(report: Report, megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20))


def take_tensor(report: Report, megabytes: int) -> int:
    import torch

    return torch.zeros(megabytes * 2**20, dtype=torch.uint8).shape[0]


def wait(report: Report, folder: Path, stubborn: bool = False) -> None:
    """Until the end of time; leaves its number, and on the way out a note that it cleaned up."""
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        # Inside: whoever reads the number may tell this process to stop at once.
        (folder / "pid").write_text(str(os.getpid()))
        report(Progress("wait", 0, 1, 0.0))
        while True:
            time.sleep(0.05)
    finally:
        (folder / "cleaned").touch()


def wait_below(report: Report, folder: Path) -> None:
    """Wait in a process of this process's own."""
    run_spawned(wait, folder)


def interrupt_itself(report: Report) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"
