#!/usr/bin/env python3
"""Write the manual page dsearch(1), made of the help of the commands: scripts/tools/man_page.py [FILE]

python scripts/tools/man_page.py dsearch.1 && man -l dsearch.1
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from dsearch.cli.grouped_help import app
from dsearch.version import __version__

EXITS = (
    ("0", "done"),
    ("1", "it failed; the message gives the reason and what to do"),
    ("2", "the command was not understood"),
    ("3", "the gate held a model back, or what answers is worse than the baseline"),
)


def main() -> int:
    """Write the page to a file, or to stdout."""
    text = "\n".join(lines()) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def lines() -> Iterator[str]:
    """The page, in roff."""
    group: Any = typer.main.get_command(app)
    yield f'.TH DSEARCH 1 "" "dsearch {escaped(__version__)}" "User Commands"'
    yield ".SH NAME"
    yield "dsearch \\- differentiable search engine"
    yield ".SH SYNOPSIS"
    yield ".B dsearch"
    yield "COMMAND [OPTIONS] ..."
    yield ".SH DESCRIPTION"
    yield from paragraphs(group.help or "")
    yield ".SH COMMANDS"
    yield from commands("dsearch", group)
    yield ".SH EXIT STATUS"
    for status, meaning in EXITS:
        yield from (".TP", f".B {status}", escaped(meaning))
    yield ".SH ENVIRONMENT"
    yield "Each setting is a variable DSEARCH_NAME, too: see"
    yield '.BR "dsearch config" .'


def commands(path: str, group: Any) -> Iterator[str]:
    """Each command of a group, with its arguments and options."""
    for name, command in group.commands.items():
        called = f"{path} {name}"
        yield f".SS {escaped(called)}"
        yield from paragraphs(command.help or "")
        if hasattr(command, "commands"):
            yield from commands(called, command)
            continue
        for parameter in command.params:
            help_text = getattr(parameter, "help", None) or ""
            flags = [*parameter.opts, *parameter.secondary_opts]
            if parameter.param_type_name == "argument":
                flags = [(parameter.metavar or parameter.name)]
            yield ".TP"
            yield f".B {escaped(', '.join(flags))}"
            yield escaped(" ".join(help_text.split())) or "\\&"


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        yield ".PP"
        yield escaped(" ".join(paragraph.split()))


def escaped(text: str) -> str:
    """Text whose backslashes, hyphens and leading dots are themselves in roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    raise SystemExit(main())
