"""Constants and defaults that were measured or promised are what constants.txt says; it changes with them.

Options of a request stand in service/wire/bounds.txt, those of commands in cli/defaults.txt.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

WRITTEN = Path(__file__).with_name("constants.txt")


def _owner(place: str) -> Any:
    """The module of a constant; for `module.maker()`, options with their defaults."""
    if not place.endswith("()"):
        return import_module(f"dsearch.{place}")
    module, _, maker = place.removesuffix("()").rpartition(".")
    return getattr(import_module(f"dsearch.{module}"), maker)()


def test_constants_are_those_that_are_written_down() -> None:
    written = [line.split(" = ") for line in WRITTEN.read_text("utf-8").splitlines()]
    assert written == sorted(written)
    differing = []
    for place, value in written:
        of, _, name = place.rpartition(".")
        present = repr(getattr(_owner(of), name, None))
        if present != value:
            differing.append(f"{place} = {present}, written down as {value}")
    assert not differing, "change constants.txt if that is meant:\n" + "\n".join(differing)
