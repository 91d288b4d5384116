"""The runnable examples of scripts/ run, and print what their last lines say they do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.paths import SCRIPTS

EXPECTED = {
    "folder": "training.md",
    "tickets": "'my card was debited two times': billing",
    "regression": "of the average 72.3",
    "recommender": "a timetable of alpine railways  (because of: night trains through Europe)",
    "rag": "Question: what happens to clicks before they train a head?",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_runs(name: str) -> None:
    command = [sys.executable, str(SCRIPTS / "examples" / f"{name}.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert EXPECTED[name] in run.stdout


def test_examples_are_short() -> None:
    found = sorted((SCRIPTS / "examples").glob("*.py"))
    assert len(found) >= 7
    for path in found:
        assert len(path.read_text().splitlines()) < 80, path.name
