"""What is synced to disk, and what gets or loses its name, in the order in which it happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def synced_nodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the node of each file and folder that is synced from now on."""
    nodes: list[int] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        nodes.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return nodes


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that `os` appends to from now on: "sync NAME", "rename NAME" and "unlink NAME"."""
    happened: list[str] = []

    def note(kind: str, call: Callable[..., Any], name_of: Callable[..., str]) -> None:
        def noted(*arguments: Any, **options: Any) -> Any:
            name = name_of(*arguments)
            result = call(*arguments, **options)
            happened.append(f"{kind} {name}")
            return result

        monkeypatch.setattr(os, call.__name__, noted)

    note("sync", os.fsync, lambda number: Path(os.readlink(f"/proc/self/fd/{number}")).name)
    note("rename", os.rename, lambda _, target: Path(target).name)
    note("rename", os.replace, lambda _, target: Path(target).name)
    note("unlink", os.unlink, lambda path: Path(path).name)
    return happened
