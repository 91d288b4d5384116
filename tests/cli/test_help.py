"""Every command, by a walk through the parser: an example that parses, --json, -h, and what Ctrl-C says."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from support.cli.terminal import Terminal
from typer.core import TyperCommand

from dsearch.cli.grouped_help import EXAMPLES, READING, STANDS, app

ROOT: Any = typer.main.get_command(app)
BESIDE_JSON = {
    "demo": "it ends in a server",
    "watch": "it runs until Ctrl-C",
    "serve": "it runs until Ctrl-C",
    "mcp": "its stdout is the protocol's",
    "export": "its answer is lines of JSON",
    "feedback export": "its answer is lines of JSON",
}
"""Commands without --json, and why."""


def commands(group: Any = ROOT, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{path}{name}", command


EVERY = dict(commands())


def parsed(line: str) -> Any:
    """The context of the command that a line names; raises a usage error where it does not parse."""
    words = shlex.split(line)
    assert words[0] == "dsearch"
    context = ROOT.make_context("dsearch", words[1:])
    while hasattr(context.command, "commands") and (rest := [*context._protected_args, *context.args]):
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("name", EVERY)
def test_a_command_has_an_example_that_parses_and_prints_json(name: str) -> None:
    examples = [of[name] for of in EXAMPLES.values() if name in of]
    assert len(examples) == 1, "name it, with one example, in dsearch/cli/grouped_help.py"
    context = parsed(examples[0])
    assert context.command_path.split(" ", 1)[1] == name
    flags = {flag for parameter in EVERY[name].params for flag in parameter.opts}
    assert ("--json" in flags) != (name in BESIDE_JSON)
    assert {"-h", "--help"} <= set(context.help_option_names)
    help_text = EVERY[name].get_help(context)
    assert help_text.rstrip().endswith(examples[0])


def test_the_list_is_grouped_and_has_no_command_that_is_gone(dsearch: Terminal) -> None:
    groups = {name for name, command in ROOT.commands.items() if hasattr(command, "commands")}
    listed = [name for of in EXAMPLES.values() for name in of]
    assert sorted(listed) == sorted({*EVERY, *groups})
    text = dsearch("-h")[1]
    places = [text.index(f"\n{purpose}:") for purpose in EXAMPLES]
    assert places == sorted(places)
    assert "\nMore:" not in text


@pytest.mark.parametrize(
    "group", ["", *(name for name, command in ROOT.commands.items() if hasattr(command, "commands"))]
)
def test_a_list_of_commands_shows_first_sentences_whole(dsearch: Terminal, group: str) -> None:
    text = " ".join(dsearch(*group.split(), "-h")[1].split()).replace("- ", "-")  # lines break at hyphens
    commands = (ROOT.commands[group] if group else ROOT).commands
    assert commands
    for name, command in commands.items():
        whole = " ".join(command.help.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
        assert f" {name} {whole}" in text


@pytest.mark.parametrize(
    "name", [name for name in EVERY if name not in ("models", "judgements", "serve", "mcp", "watch")]
)
def test_ctrl_c_says_how_to_go_on(dsearch: Terminal, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TyperCommand, "invoke", interrupted)
    words = shlex.split(next(of[name] for of in EXAMPLES.values() if name in of))
    code, _, err = dsearch(*words[1:])
    assert code == 130
    first, stands, last = err.strip().split("; ")
    assert (first, last) == ("dsearch: interrupted", f"to go on, run it again: {shlex.join(words)}")
    assert stands == STANDS.get(name, stands)
    assert ("nothing was changed" in stands) == (name in READING)


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [("dsearch.cli.grouped_help", "numpy"), ("dsearch.index", "scipy")],
    ids=["help", "search"],
)
def test_what_costs_much_to_import_is_not_imported_before_it_is_used(module: str, unneeded: str) -> None:
    code = f"import sys, {module}; print({unneeded!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stdout + done.stderr
