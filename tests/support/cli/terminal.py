"""The command line, run in this process."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import typer.main

from dsearch.cli import main

_tree_of = functools.cache(typer.main.get_command)  # a process builds the commands' tree once, for 50 ms


class Terminal:
    """Runs commands as `dsearch …` would."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self._home, self._capsys, self._monkeypatch = home, capsys, monkeypatch

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        command = ["dsearch", *map(str, arguments)]
        self._monkeypatch.setattr(sys, "argv", command)
        self._monkeypatch.setattr(typer.main, "get_command", _tree_of)
        self._monkeypatch.setenv("DSEARCH_HOME", str(self._home))
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = self._capsys.readouterr()
        return code, out, err
