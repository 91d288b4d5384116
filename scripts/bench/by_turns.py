"""Systems measured by turns, each in a process of its own, and the medians: what comparing scripts share."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def by_turns(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    limit_s: float,
    environment: Mapping[str, str],
    after_round: Callable[[dict[str, list[Any]], dict[str, str]], None],
) -> None:
    """Run every command once a round; the last line that each prints is its figures, as JSON.

    What fails, or takes longer than `limit_s`, is not run again; what it gave before is kept.

    Args:
        commands: system → what measures it.
        rounds: how often.
        limit_s: of one command.
        environment: beside that of this process.
        after_round: told the figures of all rounds so far, and the problem of each system that has one.
    """
    runs: dict[str, list[Any]] = {}
    problems: dict[str, str] = {}
    for _ in range(rounds):
        for system, command in commands.items():
            if system in problems:
                continue
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    env={**os.environ, **environment},
                    timeout=limit_s,
                )
            except subprocess.TimeoutExpired:
                problems[system] = f"not done in {limit_s:g} s"
                continue
            if done.returncode:
                problems[system] = (done.stderr.strip().splitlines() or ["failed"])[-1][:80]
            else:
                runs.setdefault(system, []).append(json.loads(done.stdout.splitlines()[-1]))
        after_round(runs, problems)


def medians(of: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """The median of each figure over the rounds of one system."""
    return {name: statistics.median(float(one[name]) for one in of) for name in names}
