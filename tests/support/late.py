"""Modules of other projects, imported when a test first uses them.

Every process of a run reads every test file, and one of them runs it: the others need not import what takes
seconds. `openai = late("openai")` stands for the module, but for names with an underscore in front.
"""

from __future__ import annotations

import importlib
from typing import Any


class _Late:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks all that stands in a test file for such names
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def late(name: str) -> Any:
    """The module of that name, which need not be loaded yet."""
    return _Late(name)
