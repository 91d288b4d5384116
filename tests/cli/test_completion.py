"""Completion for bash, zsh and fish: what their scripts ask the command line, and what it answers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

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


# Each sources the script as users do, and asks for `dsearch se` as the shell does when tab is pressed.
IN_SHELL = {
    "bash": ["--norc", "-c", "\n".join((
        "source {script}",
        "COMP_WORDS=(dsearch se) COMP_CWORD=1",
        "completer=$(complete -p dsearch)",
        "completer=${{completer##*-F }}",
        "${{completer%% *}} dsearch",
        "echo ${{COMPREPLY[@]}}",
    ))],
    "zsh": ["-fc", "\n".join((
        "autoload -Uz compinit; compinit -u -D",  # which registers it
        "source {script}",
        "_arguments() {{ print -r -- $@ }}",  # where it would be shown
        "words=(dsearch se) CURRENT=2",
        "$_comps[dsearch]",
    ))],
    "fish": ["--no-config", "-c", "source {script}; complete -C 'dsearch se'"],
}  # fmt: skip


@pytest.mark.parametrize("shell", IN_SHELL)
def test_the_script_completes_in_the_shell_itself(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script, program = tmp_path / "completion", tmp_path / "bin" / "dsearch"
    script.write_text(answered("--show-completion", shell))
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(CODE)} "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    command = [shell, *(part.format(script=script) for part in IN_SHELL[shell])]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    words = ran.stdout.replace('"', " ").split()
    assert {"search", "serve"} <= set(words), (ran.stdout, ran.stderr)
    assert "train" not in words
