"""Layers beside other processes: workers of a DataLoader, gloo, a server that has stopped."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paths import SUPPORT
from support.patience import LATEST_S
from support.service.apps import patient_app
from support.service.in_thread import served_in_thread
from support.service.service_fakes import WordEncoder, documents
from support.training.opened_in_worker import OpenedInWorker
from support.warm.processes import warm_start
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import dsearch
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.engine import SearchEngine
from dsearch.errors import CollectionNotFound, Unavailable
from dsearch.service import create_app

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("unchecked")]

QUERIES = ["river stone", "attention music head", "lamp"]


def states_of(queries: list[str]) -> Tensor:
    return torch.as_tensor(WordEncoder().encode_queries(queries))


class States(Dataset[Tensor]):
    """Encoded in the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> Tensor:
        return states_of([QUERIES[at % 3]])[0]


class Contexts(States):
    """Searched in the worker."""

    def __init__(self, layer: nn.Module):
        self.layer = layer

    def __getitem__(self, at: int) -> Tensor:
        with torch.no_grad():
            return self.layer(states_of([QUERIES[at % 3]])).context[0]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path_factory.mktemp("layers") / "home", encoder=WordEncoder) as opened:
        opened.create("papers").ingest(documents(20))
        yield opened


@pytest.fixture(params=["here", "in process"])
def layer(request: pytest.FixtureRequest, engine: SearchEngine) -> nn.Module:
    if request.param == "here":
        return dsearch.open_layer(engine, "papers", mode="dense")
    return RemoteSearch(LocalEngine(engine), "papers", mode="dense", train_head=True)


def loader_of(data: Dataset[Tensor], method: str) -> DataLoader[Tensor]:
    return DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context=method, timeout=300)


def test_workers_encode_and_search_beside_a_layer(layer: nn.Module) -> None:
    """The collection was opened before the workers were forked."""
    wanted = layer(states_of([QUERIES[at % 3] for at in range(4)])).context
    states = torch.cat(list(loader_of(States(), "fork")))
    torch.testing.assert_close(layer(states).context, wanted)
    torch.testing.assert_close(torch.cat(list(loader_of(Contexts(layer), "fork"))), wanted.detach())


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_layer_is_not_sent_to_a_worker_that_is_no_fork(layer: nn.Module, method: str) -> None:
    with pytest.raises(
        TypeError, match=r"not pickled.*open.*in a spawned process \(a worker of a DataLoader\)"
    ):
        next(iter(loader_of(Contexts(layer), method)))


def test_a_spawned_worker_opens_layers_of_its_own(engine: SearchEngine, tmp_path: Path) -> None:
    """As the message says: a folder and an address are sent, and opened when the worker first needs them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with served_in_thread(create_app(engine, query_timeout_s=60), listening):
            states = states_of(QUERIES)
            data = OpenedInWorker(str(engine.home.path), address, "papers", states)
            loader = DataLoader(
                data, batch_size=2, num_workers=1, multiprocessing_context="spawn", timeout=300
            )
            found = torch.cat(list(loader))
    wanted = dsearch.open_layer(engine, "papers", mode="dense")(states).context
    torch.testing.assert_close(found, torch.stack([wanted, wanted], 1))


def test_a_collection_that_was_dropped(tmp_path: Path) -> None:
    """A layer keeps the documents that it has; what needs the collection says that there is none."""
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as opened:
        papers = opened.create("papers")
        papers.ingest(documents(20))
        here = dsearch.open_layer(opened, "papers", mode="dense")
        there = RemoteSearch(LocalEngine(opened), "papers", mode="dense")
        before = here(states_of(QUERIES)).context
        opened.drop("papers")
        assert here(states_of(QUERIES)).context.equal(before)
        calls: list[Callable[[], Any]] = [
            here.refresh,
            lambda: here(states_of(QUERIES), values="i"),
            lambda: there(states_of(QUERIES)),
            lambda: LocalEngine(opened).save_model("papers", here),
        ]
        for call in calls:
            with pytest.raises(CollectionNotFound, match="no collection 'papers'"):
                call()
        with pytest.raises(Unavailable, match="was closed; open it again"):
            dsearch.save_model(papers, here)


def test_a_server_that_has_stopped_is_named(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as opened:
        opened.create("papers").ingest(documents(20))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with served_in_thread(patient_app(opened), listening):
                client = Client(address, retries=0)
                client.ready()
                layer = RemoteSearch(client, "papers", mode="dense", train_head=True)
                states = states_of(QUERIES).requires_grad_()
                loss = layer(states).context.square().sum()
    calls: list[Callable[[], Any]] = [loss.backward, lambda: layer(states), layer.sync, layer.publish]
    for call in calls:
        with pytest.raises(Unavailable, match="is the server running"):
            call()
    assert states.grad is None


def test_two_processes_average_their_gradients(engine: SearchEngine, tmp_path: Path) -> None:
    """Each has half of the queries and reads the home; both end with the whole batch's gradient."""
    batch = [*QUERIES, "stone key"]
    layer = dsearch.open_layer(engine, "papers", mode="dense")
    layer(states_of(batch)).context.square().sum(1).mean().backward()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    files = [tmp_path / f"{rank}.pt" for rank in range(2)]
    script = SUPPORT / "training" / "half_batch.py"
    started = [
        warm_start()(
            [*map(str, [sys.executable, script, engine.home.path, tmp_path / "meet", rank, file]), *queries],
            env=environment,
        )
        for rank, (file, queries) in enumerate(zip(files, (batch[:2], batch[2:]), strict=True))
    ]
    assert [process.wait(LATEST_S) for process in started] == [0, 0]
    for file in files:
        gradient = torch.load(file, weights_only=True)
        torch.testing.assert_close(gradient, layer.head.key_delta.grad, rtol=1e-4, atol=1e-6)
