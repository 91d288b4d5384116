"""Engines for the official suites: a local one, and a client of a real server."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.service.service_fakes import WordEncoder, serving

import dsearch
from dsearch.client import Client, LocalEngine

_numbers = itertools.count()
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when it is imported


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutines of the official suites, which have no mark of a plugin."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    with dsearch.open(tmp_path_factory.mktemp("local") / "home", encoder=WordEncoder) as engine:
        yield engine


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home: Path = tmp_path_factory.mktemp("remote") / "home"
    with serving(home) as (origin, _):
        yield origin


@pytest.fixture(scope="module")
def remote(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


@pytest.fixture(scope="module", params=["local", "remote"])
def engine(request: pytest.FixtureRequest) -> Client | LocalEngine:
    return request.getfixturevalue(request.param)


@pytest.fixture
def empty(engine: Client | LocalEngine) -> str:
    """Name of a new, empty collection."""
    name = f"empty{next(_numbers)}"
    engine.create_collection(name)
    return name


@pytest.fixture
def empty_local(local: LocalEngine) -> str:
    name = f"local{next(_numbers)}"
    local.create_collection(name)
    return name
