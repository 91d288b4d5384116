"""Completion for bash, zsh and fish: what their scripts ask the command line, and what it answers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import sys; sys.argv = ['dsearch', *sys.argv[1:]]; from dsearch.cli import main; main()"


def answered(*arguments: str, **variables: str) -> str:
    command = [sys.executable, "-c", CODE, *arguments]
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("bash", {"COMP_WORDS": "dsearch se", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "dsearch se"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "dsearch se", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_each_shell_completes_commands(shell: str, variables: dict[str, str]) -> None:
    commands = answered(_DSEARCH_COMPLETE=f"complete_{shell}", **variables)
    assert "search" in commands
    assert "serve" in commands
    assert "train" not in commands
    script = answered("--show-completion", shell)
    assert "_DSEARCH_COMPLETE" in script
    assert f"complete_{shell}" in script


def test_options_are_completed_too() -> None:
    words = {"COMP_WORDS": "dsearch evaluate --fail", "COMP_CWORD": "2"}
    assert answered(_DSEARCH_COMPLETE="complete_bash", **words).split() == ["--fail-if-worse"]
