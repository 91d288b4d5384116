"""The commands that a text names in passing, in backquotes: whether there are such commands and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from dsearch.cli.grouped_help import app

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"`((?:dsearch|python|scripts/)[^`]*)`")
_INDENTED = re.compile(r"^    ((?:dsearch|python) .*)$", re.MULTILINE)


def commands_in(text: str) -> Iterator[str]:
    """`dsearch …`, `python scripts/…` and `scripts/…` outside of fenced blocks, each on one line."""
    prose = _FENCED.sub("", text)
    for pattern in (_QUOTED, _INDENTED):
        for found in pattern.findall(prose):
            yield re.sub(r"\s+", " ", found).strip()


def problem_with(command: str, root: Path) -> str | None:
    """What is wrong with a command; None: nothing."""
    words = command.split()
    if words[0] == "dsearch":
        return _of_dsearch(words[1:])
    script = words[1] if words[0] == "python" else words[0]
    if not script.startswith("scripts/") or "*" in script:
        return None
    file = root / script
    if words[0] == "python" and file.is_dir():
        file /= "__main__.py"
    if not file.is_file():
        return f"there is no {script}"
    source = file.read_text(encoding="utf-8")
    if ".venv/bin/python -m pytest" in source:
        return None  # the options are pytest's
    if "dsearch demo" in source:
        return _of_dsearch(["demo", *words[1:]])
    missing = [word for word in words if word.startswith("--") and word.split("=")[0] not in source]
    return f"{script} has no {', '.join(missing)}" if missing else None


@cache
def _all_commands() -> Any:
    return typer.main.get_command(app)


def _of_dsearch(words: list[str]) -> str | None:
    command = _all_commands()
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            return _without_options(command, words)
        name, *words = words
        if name.isupper() or name == "…":
            return None
        found = command.commands.get(name)
        if found is None:
            return f"there is no command {name!r}"
        command = found
    return _without_options(command, words)


def _without_options(command: Any, words: list[str]) -> str | None:
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    given = [word.split("=")[0].rstrip(",.;:") for word in words if re.match(r"--?[a-z]", word)]
    missing = [option for option in given if option not in known]
    return f"{command.name} has no {', '.join(missing)}" if missing else None
