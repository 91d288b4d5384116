"""`python interrupted_command.py PLACE ARGUMENT …`: `dsearch ARGUMENT …` that waits in PLACE for a signal.

PLACE is a function, `module:name` or `module:Class.name`. It says "here" on stderr. Not a test.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any, NoReturn

from support.fakes import HashingEncoder

from dsearch.cli import main
from dsearch.encoder import Encoder


def encoder_of(name: str = "hashing", **_: Any) -> HashingEncoder:
    """In place of a model of sentence-transformers; "other" is another one, for migrations."""
    return HashingEncoder(name="other" if name == "other" else "hashing")


def wait_here(*_: Any, **__: Any) -> NoReturn:
    """Wait for the signal that ends the process."""
    print("here", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.01)


if __name__ == "__main__":
    place = sys.argv.pop(1)
    Encoder.load = encoder_of  # type: ignore[assignment, method-assign]
    module, path = place.split(":")
    *owners, name = path.split(".")
    owner: Any = import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, wait_here)
    main()
