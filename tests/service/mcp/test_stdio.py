"""The service of an agent on this machine has its settings, and ends with the conversation."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp")

import mcp.server.stdio

from dsearch.service.mcp import transports


def test_settings_arrive_and_nothing_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class _Service:
        def __init__(self, engine: Any, **options: Any):
            told.append((engine, options))

        def start(self) -> None:
            told.append("started")

        async def stop(self) -> None:
            told.append("stopped")

    def broken() -> None:
        raise BrokenPipeError("the agent is gone")

    monkeypatch.setattr(transports, "Service", _Service)
    monkeypatch.setattr(mcp.server.stdio, "stdio_server", broken)
    given: dict[str, Any] = {"open_engine": "opener", "task_memory_bytes": 7, "device": "cuda"}
    engine: Any = "engine"
    with pytest.raises(BrokenPipeError):
        transports.run_stdio(engine, **given)
    assert told == [("engine", given), "started", "stopped"]
