"""The runnable examples of scripts/ run, and print what their last lines say they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import SCRIPTS
from support.sizes import by_size
from support.warm.processes import warm_start

import dsearch

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
QUESTIONS = {
    "folder": "how do I undo a training?",
    "context": "what happens to clicks before they train a head?",
}
READ = ("training.md", "concepts.md", "languages.md")  # of the guides, a sixth of their words


def arguments_of(name: str, folder: Path) -> list[str]:
    """An example that encodes all guides reads some of them, but for --nightly."""
    if name not in QUESTIONS or by_size(default=False, nightly=True):
        return []
    for file in READ:
        (folder / file).symlink_to(Path(dsearch.__file__).parent / "guide" / file)
    words = [QUESTIONS[name], str(folder)]
    return words[::-1] if name == "folder" else words


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(EXPECTED), "own_loss --bf16 --compile"])
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    name, *flags = name.split()
    if name == "fabric":
        pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed")
    command = [
        sys.executable,
        str(SCRIPTS / "examples" / f"{name}.py"),
        *arguments_of(name, tmp_path),
        *flags,
    ]
    run = warm_start()(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert EXPECTED[name] in output
