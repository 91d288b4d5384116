"""`dsearch mcp` lets an agent write only where it is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("mcp")

from dsearch.cli.services import mcp as command
from dsearch.service.mcp import stdio


@pytest.mark.parametrize("write", [False, True])
def test_an_agent_writes_only_where_it_is_said(monkeypatch: pytest.MonkeyPatch, write: bool) -> None:
    given: list[Any] = []

    @contextmanager
    def opened(home: Any, **options: Any) -> Iterator[tuple[str, None]]:
        given.append((home, options))
        yield "engine", None

    monkeypatch.setattr(command, "opened_engine", opened)
    monkeypatch.setattr(stdio, "run_stdio", lambda engine, **options: given.append((engine, options)))
    command.mcp(write=write, encoder="e", device="cuda", backend="torch", threads=3)
    own = {"encoder": "e", "device": "cuda", "backend": "torch", "threads": 3}
    assert given == [
        (None, {"readonly": not write, "rebuild": write, **own}),
        ("engine", {"writes": write}),
    ]
