"""`dsearch mcp` lets an agent write only where it is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from dsearch.cli.commands import serve as command
from dsearch.cli.session import reopening
from dsearch.config import load_settings
from dsearch.service.mcp import transports


@pytest.mark.parametrize("write", [False, True])
def test_an_agent_writes_only_where_it_is_said(monkeypatch: pytest.MonkeyPatch, write: bool) -> None:
    given: list[Any] = []
    monkeypatch.setenv("DSEARCH_TASK_MEMORY_BYTES", "123456789")
    settings = load_settings(encoder="e", device="cuda", backend="torch")

    @contextmanager
    def opened(home: Any, **options: Any) -> Iterator[tuple[str, None]]:
        given.append((home, options))
        yield "engine", settings

    monkeypatch.setattr(command, "opened_engine", opened)
    monkeypatch.setattr(transports, "run_stdio", lambda engine, **options: given.append((engine, options)))
    command.mcp(write=write, encoder="e", device="cuda", backend="torch", threads=3)
    own = {"encoder": "e", "device": "cuda", "backend": "torch", "threads": 3}
    open_engine = given[1][1].pop("open_engine")  # of the tasks that a server left
    assert given == [
        (None, {"readonly": not write, "rebuild": write, **own}),
        ("engine", {"writes": write, "device": "cuda", "task_memory_bytes": 123456789}),
    ]
    assert (
        open_engine.args
        == reopening(settings).args
        == (Path("index"), "e", "cuda", None, "torch", None, None)
    )
