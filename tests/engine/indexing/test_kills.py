"""kill -9 at the system calls of eight scenarios, through the engine: nothing acknowledged is lost, nothing
deleted comes back, and what is left opens.

The trials are in engine_trials.py; scripts/trials/soak_store.py runs them by the thousand.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine.engine_scenarios import SCENARIOS
from support.engine.engine_trials import forks, kills
from support.forked import Forks
from support.sizes import by_size

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace chooses the call to die in"),
]


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    with forks() as ready:
        yield ready


def test_killed_at_calls_of_every_scenario(forked: Forks, tmp_path: Path) -> None:
    trials, least = by_size((64, 2), (1040, 25))
    seen = kills(forked, tmp_path, trials)
    assert seen["kills"] >= min(trials, seen["calls"]) * 0.95, seen
    assert all(seen[f"kills in {scenario}"] >= least for scenario in SCENARIOS), seen
