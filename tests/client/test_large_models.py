"""All weights of an encoder go to a server as a file, part by part: no body is whole in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.service.tiny_server import tiny_client
from support.tiny_encoder import write_tiny_encoder
from support.training.numbers import PAIRS, number_documents

from dsearch.client import AsyncClient, Client, RemoteSearch
from dsearch.client.uploads import model_file, upload_of
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.jobs import ExampleScores
from dsearch.service.tasks import uploads

pytestmark = pytest.mark.server

ROWS = 560_000  # of the table of embeddings: 36 MB
TEXTS = [f"question {i + PAIRS}" for i in range(PAIRS)]
BETTER = ExampleScores([0.1 * i for i in range(12)], [0.1 * i + 1 + 0.01 * i for i in range(12)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp("large"), vocabulary=ROWS)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder.load(str(folder))


@pytest.fixture
def engine(tmp_path: Path, encoder: Encoder) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as opened:
        opened.create("numbers").ingest(number_documents())
        yield opened


@pytest.fixture
def client(engine: SearchEngine, folder: Path) -> Iterator[Client]:
    with tiny_client(engine, folder) as connected:
        yield connected


def test_all_weights_are_sent_judged_and_served(
    client: Client, engine: SearchEngine, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, parts = uploads._write, list[int]()

    def watched(file: Any, some: bytearray, digest: Any) -> None:
        parts.append(len(some))
        write(file, some, digest)

    monkeypatch.setattr(uploads, "_write", watched)
    layer = RemoteSearch(client, "numbers", train_head=True, encoder=encoder, encoder_training="all")
    assert layer.encoder is not None
    with torch.no_grad():
        for parameter in layer.encoder.learning():
            parameter *= 1.01
    saved = client.save_model("numbers", layer, evidence=BETTER)
    folder = engine.home.path / ".tasks" / uploads.FOLDER
    assert sum(parts) > 4 * 16 * ROWS > 32 * 1024 * 1024
    assert max(parts) < 2 * 1024 * 1024
    task = client.wait_for_task(saved.id, every_s=0.05)
    assert task.state == "done", task.problem
    assert task.result is not None
    assert (task.result["live"], task.result["model"]) == (True, "v1")
    served = engine.collection("numbers").query_states(TEXTS, "dense")
    torch.testing.assert_close(served, layer.query_states(TEXTS).detach(), rtol=0, atol=1e-5)
    assert list(folder.iterdir()) == []  # judged: the version has it
    assert engine.verify("numbers").ok


def test_a_client_that_awaits_sends_it_too_and_from_its_start_again(
    client: Client, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says "later" to the first attempt, after it has the body."""
    keep, attempts = uploads.TaskUploads._finish, list[Path]()

    def busy_at_first(self: uploads.TaskUploads, place: Path) -> None:
        attempts.append(place)
        if len(attempts) % 2:
            raise uploads.Overloaded("later")
        keep(self, place)

    monkeypatch.setattr(uploads.TaskUploads, "_finish", busy_at_first)
    tensors = client.head("numbers", "v0")

    async def saved() -> Any:
        async with AsyncClient(client.url) as awaited:
            task = await awaited.save_model("numbers", tensors)
            return await awaited.wait_for_task(task.id, every_s=0.05)

    assert asyncio.run(saved()).state == "done"
    task = client.wait_for_task(client.save_model("numbers", tensors).id, every_s=0.05)
    assert task.state == "done", task.problem
    assert len(attempts) == 4
    assert not attempts[0].exists()
    for version in ("v1", "v2"):
        for name, tensor in client.head("numbers", version).items():
            assert (tensor == tensors[name]).all()


def test_the_body_is_a_file_of_the_tensors_themselves(encoder: Encoder, client: Client) -> None:
    layer = RemoteSearch(client, "numbers", train_head=True, encoder=encoder, encoder_training="all")
    with model_file(upload_of(layer, None, None), None, None, {}) as body:
        assert not isinstance(body, bytes)
        assert body.seek(0, 2) > 4 * 16 * ROWS
        assert not Path(body.name).exists()  # nothing is left when it is closed, or the process dies
