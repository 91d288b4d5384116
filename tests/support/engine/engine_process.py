"""The processes that engine_trials.py kills: one scenario.

engine_process HOME SCENARIO SEED before|of
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

    home, scenario, seed, part = sys.argv[1:]
    scenarios.live(Path(home), getattr(scenarios, part)(scenario, int(seed)))
