"""Commands that messages tell to run, as they have to be typed here.

The library tells commands without a home, of which it knows nothing (`dsearch refresh -c notes`). Where this
command was given one, they would look into another.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from functools import cache

_HOME = "--home"
_LONGEST = 60  # characters of a command behind its name
_COMMAND = re.compile(r"(?<![\w./-])dsearch((?: [a-z]+)+)")


def for_this_home(text: str, arguments: Sequence[str] | None = None) -> str:
    """A message whose commands name the home that this command was given, if it was.

    Args:
        text: the message.
        arguments: of this command; those of the process when None.
    """
    home = _given(sys.argv[1:] if arguments is None else arguments)
    if home is None or "dsearch " not in text:
        return text

    def completed(found: re.Match[str]) -> str:
        if _HOME in text[found.end() : found.end() + _LONGEST]:
            return found.group()  # it says into which itself
        words = found.group(1).split()
        for count in (2, 1):
            if (command := " ".join(words[:count])) in _with_home():
                rest = "".join(f" {word}" for word in words[count:])
                return f"dsearch {command} {_HOME} {shlex.quote(home)}{rest}"
        return found.group()

    return _COMMAND.sub(completed, text)


def _given(arguments: Sequence[str]) -> str | None:
    home = None
    for number, argument in enumerate(arguments):
        if argument == _HOME:
            home = next(iter(arguments[number + 1 :]), None)
        elif argument.startswith(f"{_HOME}="):
            home = argument.removeprefix(f"{_HOME}=")
    return home


@cache
def _with_home() -> frozenset[str]:
    """The commands that take a home, those of groups with their group's name before them."""
    from typer.main import get_command

    from dsearch.cli.app import app

    found: set[str] = set()
    for name, command in getattr(get_command(app), "commands", {}).items():
        inside = getattr(command, "commands", None)
        named = {name: command} if inside is None else {f"{name} {one}": it for one, it in inside.items()}
        found.update(one for one, it in named.items() if any(_HOME in each.opts for each in it.params))
    return frozenset(found)
