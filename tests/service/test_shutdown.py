"""The end of a server, and what it asks of the machine before it begins, without a server."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from dsearch.service import server as module


def test_a_server_that_stops_says_so_first_and_listens_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVING_S", 0.0)
    told: list[str] = []
    service: Any = SimpleNamespace(leave=lambda: told.append("leaving"))
    config = uvicorn.Config(lambda *_: None, log_config=None, lifespan="off")
    config.load()
    server = module._Server(config, service)  # pyright: ignore[reportPrivateUsage]
    server.servers, server.lifespan = [], config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asyncio.run(server.shutdown([listening]))
        assert listening.fileno() == -1
    assert told == ["leaving"]


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, 4096),
        (1024, 100_000, 8192),
        (1024, None, 8192),
        (9000, 100_000, None),
        (None, None, None),
    ],
)
def test_as_many_files_may_be_open_as_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int | None, hard: int | None, wanted: int | None
) -> None:
    resource: Any = pytest.importorskip("resource")
    unlimited, chosen = resource.RLIM_INFINITY, list[Any]()
    limits = tuple(unlimited if limit is None else limit for limit in (soft, hard))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, given: chosen.append(given))
    module._allow_open_files()  # pyright: ignore[reportPrivateUsage]
    assert chosen == ([] if wanted is None else [(wanted, limits[1])])
