from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.service.service_fakes import WordEncoder, documents, serving

import dsearch
from dsearch.attention.retrieval.head import Head
from dsearch.client import AsyncClient, Client, LocalEngine
from dsearch.engine import PassageOptions, SearchEngine
from dsearch.types import Document


def moved_head(heads: int, *, hop_strength: float = 0.0) -> Head:
    torch.manual_seed(4)
    head = Head(32, heads=heads, rank=3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        head.hop_strength.fill_(hop_strength)
    return head


def pairs(count: int) -> list[tuple[Document, Document]]:
    """Documents, each with another."""
    return list(zip(documents(count), documents(count, seed=1), strict=True))


class Awaited:
    """An `AsyncClient` as if it were not: each call runs an event loop of its own to the end."""

    def __init__(self, client: AsyncClient):
        self._runner, self._client = asyncio.Runner(), client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await method(*args, **kwargs)

        return lambda *args, **kwargs: self._runner.run(awaited(*args, **kwargs))

    def finish(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two equal homes: 60 documents, two written later, two deleted; v1 has two heads, v2 one, v3 hops.

    Beside them "long", of which every document has several passages; v1 has two heads.
    """
    folder = tmp_path_factory.mktemp("homes")
    with SearchEngine(folder / "served", encoder=WordEncoder) as engine:
        papers = engine.create("papers")
        papers.ingest(documents(60))
        papers.upsert(documents(62)[60:])
        papers.delete(["d003", "d060"])
        for head in (moved_head(2), moved_head(1), moved_head(1, hop_strength=0.5)):
            papers.add_model(head, {"note": "moved"})
        long = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
        long.ingest(replace(one, text=f"{one.text} {other.text} {one.text}") for one, other in pairs(12))
        long.add_model(moved_head(2), {})
    shutil.copytree(folder / "served", folder / "local")
    return folder / "served", folder / "local"


@pytest.fixture(scope="session")
def server(homes: tuple[Path, Path]) -> Iterator[str]:
    """The address of a server in another process."""
    with serving(homes[0]) as (origin, _):
        yield origin


@pytest.fixture(scope="session")
def remote(server: str) -> Iterator[Client]:
    """A client of the server, which it has waited for: it loads its encoder first."""
    with Client(server) as client:
        client.ready()
        yield client


@pytest.fixture(scope="session")
def local(homes: tuple[Path, Path]) -> Iterator[LocalEngine]:
    with dsearch.open(homes[1], encoder=WordEncoder) as engine:
        yield engine


@pytest.fixture(scope="session")
def apis(remote: Client, local: LocalEngine) -> Iterator[dict[str, Any]]:
    """Everything that has the calls."""
    awaited = Awaited(AsyncClient(remote.url))
    yield {"http": remote, "async": awaited, "local": local}
    awaited.finish()
