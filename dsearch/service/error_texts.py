"""Texts of errors as answers have them: without the place of the home on the machine.

Errors of the engine name the files that they are about, which helps at a terminal. Whoever asks over a
network learns a file's place in the home, and not where the home lies.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsearch.errors import DsearchError

_hidden: set[str] = set()


def hide_folder(folder: Path) -> None:
    """Let no answer of this process say where this folder lies."""
    _hidden.update(str(place) for place in (folder.absolute(), folder.resolve()))


def without_home(text: str) -> str:
    """The text with files of a hidden folder named by their place in it."""
    for folder in sorted(_hidden, key=len, reverse=True):
        text = text.replace(folder + os.sep, "").replace(folder, "the home")
    return text


def problem_members(error: DsearchError) -> dict[str, Any]:
    """The error as JSON: `code`, `detail` and, where there is one, `hint`."""
    return {**error.to_dict(), "detail": without_home(str(error))}
