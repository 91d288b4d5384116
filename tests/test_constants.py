"""Constants that were measured or promised are what constants.txt says: a change of one is made there too."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

WRITTEN = Path(__file__).with_name("constants.txt")


def test_constants_are_those_that_are_written_down() -> None:
    written = [line.split(" = ") for line in WRITTEN.read_text("utf-8").splitlines()]
    assert written == sorted(written)
    differing = []
    for place, value in written:
        module, _, name = place.rpartition(".")
        present = repr(getattr(import_module(f"dsearch.{module}"), name, None))
        if present != value:
            differing.append(f"{place} = {present}, written down as {value}")
    assert not differing, "change constants.txt if that is meant:\n" + "\n".join(differing)
