"""Imports the engine once and forks a process for each trial: importing takes seconds, a trial a fraction.

Reads lines of JSON on standard input, `{"home", "scenario", "seed", "part", "out", "broken"}`; prints the pid
of the process that does it, which has stopped itself until SIGCONT, and on the next line read waits for its
end and prints its exit status (below zero: the signal).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsearch.threads import set_threads

set_threads(1)  # nothing forks after threads have run


def main() -> None:
    import tempfile

    import engine_scenarios as scenarios
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # it would start a thread, and what is forked beside one has no second
    with tempfile.TemporaryDirectory() as scratch:  # what is imported late is imported now
        everything = [
            *scenarios.before("publish", 0),
            *scenarios.of("backup", 0),
            *scenarios.of("promote", 0),
        ]
        out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        scenarios.live(Path(scratch) / "home", everything)
        os.dup2(out, 1)
    assert len(os.listdir("/proc/self/task")) == 1
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(asked)
        print(pid, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(asked: dict[str, str | int]) -> None:
    import engine_scenarios as scenarios

    status = 1
    try:
        os.dup2(os.open(str(asked["out"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
        os.kill(os.getpid(), signal.SIGSTOP)
        steps = getattr(scenarios, str(asked["part"]))(asked["scenario"], asked["seed"])
        if asked["broken"] == "published before it is built":
            publish_first()
        scenarios.live(
            Path(str(asked["home"])), steps, said_too_early=asked["broken"] == "acknowledged too early"
        )
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def publish_first() -> None:
    """A broken promise: the row that makes a generation live is committed before its folder has its name."""
    from dsearch.engine import indexing, rebuild
    from dsearch.index import generation

    final = generation.publish_folder
    late: list[tuple[Path, Path]] = []

    def build_files(*given: object, **named: object) -> object:
        generation.publish_folder = lambda unfinished, folder: late.append((unfinished, folder))
        try:
            return original(*given, **named)  # type: ignore[arg-type]
        finally:
            generation.publish_folder = final

    original = rebuild.build_files
    rebuild.build_files = build_files  # type: ignore[assignment]
    from dsearch.engine import state

    def opened(self: object, built: object) -> object:
        indexing.publish(self._store, built)  # type: ignore[attr-defined, arg-type]
        final(*late.pop())
        return before(self, built)  # type: ignore[arg-type]

    before = state.LiveState.opened
    state.LiveState.opened = opened  # type: ignore[method-assign, assignment]
    state.publish = lambda store, built: None


if __name__ == "__main__":
    main()
