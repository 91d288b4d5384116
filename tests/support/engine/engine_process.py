"""The processes that engine_trials.py kills: one scenario, as it is or with a promise broken on purpose.

engine_process HOME SCENARIO SEED before|of [BROKEN]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def prepare() -> None:
    """What is imported late is imported now."""
    import tempfile

    from support.engine import engine_scenarios as scenarios
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # it would start a thread, and what is forked beside one has no second
    with tempfile.TemporaryDirectory() as scratch:
        everything = [
            *scenarios.before("publish", 0),
            *scenarios.of("backup", 0),
            *scenarios.of("promote", 0),
        ]
        out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        scenarios.live(Path(scratch) / "home", everything)
        os.dup2(out, 1)


def main() -> None:
    from support.engine import engine_scenarios as scenarios

    home, scenario, seed, part, *broken = sys.argv[1:]
    if broken == ["published before it is built"]:
        publish_first()
    steps = getattr(scenarios, part)(scenario, int(seed))
    scenarios.live(Path(home), steps, said_too_early=broken == ["acknowledged too early"])


def publish_first() -> None:
    """A broken promise: the row that makes a generation live is committed before its folder has its name."""
    from dsearch.engine import rebuild
    from dsearch.engine.indexing import ingest
    from dsearch.index import build

    final = build.publish_folder
    late: list[tuple[Path, Path]] = []

    def build_files(*given: object, **named: object) -> object:
        build.publish_folder = lambda unfinished, folder: late.append((unfinished, folder))
        try:
            return original(*given, **named)  # type: ignore[arg-type]
        finally:
            build.publish_folder = final

    original = rebuild.build_files
    rebuild.build_files = build_files  # type: ignore[assignment]
    from dsearch.engine.state import live as state

    def opened(self: object, built: object) -> object:
        ingest.publish(self._store, built)  # type: ignore[attr-defined, arg-type]
        final(*late.pop())
        return before(self, built)  # type: ignore[arg-type]

    before = state.LiveState.opened
    state.LiveState.opened = opened  # type: ignore[method-assign, assignment]
    state.publish = lambda store, built: None
