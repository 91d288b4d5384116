"""Every test starts from the same seed; a module's collection `shop` is asked at three doors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from starlette.testclient import TestClient
from support.attention.three_doors import Doors, in_three_ways
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.service import create_app


@pytest.fixture(autouse=True)
def seeded():
    """The same seed, and one thread: on tensors this small more would only wait for each other."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def draw():
    """Normal float64 tensors that ask for gradients."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    return normal


@pytest.fixture(scope="module")
def client(shop: Collection) -> Iterator[TestClient]:
    """A service over the home of the module's `shop`."""
    with SearchEngine(shop.store.path.parent, encoder=HashingEncoder, readonly=True) as engine:
        app = create_app(engine, query_timeout_s=60)
        with TestClient(app, base_url="http://127.0.0.1") as connected:
            yield connected


@pytest.fixture
def doors(
    shop: Collection,
    client: TestClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Doors:
    """Python, command line and HTTP over the module's `shop`."""
    return in_three_ways(shop, client, capsys, monkeypatch)
