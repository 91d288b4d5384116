"""The runnable examples of scripts/ run, and print what their last lines say they do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.paths import SCRIPTS
from support.warm.processes import warm_start

EXPECTED = {
    "folder": "training.md",
    "tickets": "'my card was debited two times': billing",
    "regression": "of the average 72.3",
    "recommender": "a timetable of alpine railways  (because of: night trains through Europe)",
    "context": "Question: what happens to clicks before they train a head?",
    "own_loss": "v1 answers:",
    "trainer": "v1 answers:",
    "fabric": "resumed after step 10",
    "two_processes": "v1 answers:",
    "policy": "the agent's success rose",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_runs(name: str) -> None:
    if name == "fabric":
        pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed")
    command = [sys.executable, str(SCRIPTS / "examples" / f"{name}.py")]
    run = warm_start()(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert EXPECTED[name] in output


def test_examples_are_short() -> None:
    found = sorted((SCRIPTS / "examples").glob("*.py"))
    assert len(found) >= 7
    for path in found:
        assert len(path.read_text().splitlines()) < 80, path.name
