"""Defaults and bounds of options are promises: those that are written down in defaults.txt are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from dsearch.cli.grouped_help import app

PROMISED = Path(__file__).with_name("defaults.txt")


def _options(group: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each option by its command and flag, with what is promised of it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _options(command, f"{path}{name} ")
        for parameter in command.params:
            about = [f"default {parameter.default!r}"]
            about += [] if getattr(parameter, "min", None) is None else [f"≥ {parameter.min:g}"]
            about += [] if getattr(parameter, "max", None) is None else [f"≤ {parameter.max:g}"]
            about += ["required"] if parameter.required else []
            flags = "/".join([*parameter.opts, *parameter.secondary_opts])
            yield f"{path}{name} {flags}", ", ".join(about)


def test_defaults_and_bounds_are_those_that_are_written_down() -> None:
    now = dict(_options(typer.main.get_command(app)))
    promised = dict(line.split(": ", 1) for line in PROMISED.read_text(encoding="utf-8").splitlines())
    broken = {name: (about, now.get(name)) for name, about in promised.items() if now.get(name) != about}
    assert not broken, "change defaults.txt if that is meant:\n" + "\n".join(
        f"{name}: promised {before}; now {after}" for name, (before, after) in broken.items()
    )
    assert len(promised) > 174
