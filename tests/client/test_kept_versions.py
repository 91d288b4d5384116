"""`save_model(evidence=function, encode_documents=True)` over HTTP: kept, scored as served, then judged."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.service.in_thread import served_in_thread
from support.service.tiny_server import tiny_client
from support.tiny_encoder import write_tiny_encoder
from support.training.numbers import PAIRS, number_documents

import dsearch
from dsearch.client import Client, LocalEngine, RemoteSearch
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.errors import Conflict, InvalidRequest, ModelNotFound
from dsearch.jobs import ExampleScores
from dsearch.results import Task
from dsearch.service import create_app

pytestmark = pytest.mark.server

TEXTS = [f"question {i + PAIRS}" for i in range(PAIRS)]
ANSWERS = [f"answer {i} red" for i in range(PAIRS)]
BETTER = ExampleScores([0.1 * i for i in range(12)], [0.1 * i + 1 + 0.01 * i for i in range(12)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp("tiny"))


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


def learned(api: Client | LocalEngine, encoder: Encoder, *, steps: int = 12) -> RemoteSearch:
    """Both sides of the encoder learn which question has which answer."""
    layer = RemoteSearch(
        api, "numbers", mode="dense", candidates=PAIRS, train_head=True, encoder=encoder,
        encoder_training="lora",
    )  # fmt: skip
    assert layer.encoder is not None
    optimizer = torch.optim.AdamW(layer.encoder.learning(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        scores = layer.encoder.embed(TEXTS, "query") @ layer.encoder.embed(ANSWERS, "document").T
        torch.nn.functional.cross_entropy(scores / 0.05, torch.arange(PAIRS)).backward()
        optimizer.step()
    return layer


def weights(layer: RemoteSearch) -> torch.Tensor:
    out = layer(layer.query_states(TEXTS), TEXTS)
    hit = [[id == f"d{i}" for id in ids] for i, ids in enumerate(out.ids)]
    return (out.weights * torch.tensor(hit)).sum(1)


def done(api: Client | LocalEngine, task: Task) -> dict[str, Any]:
    task = api.wait_for_task(task.id, every_s=0.05)
    assert (task.kind, task.state) == ("save", "done"), task.problem
    assert task.result is not None
    return task.result


def refuse(api: Client | LocalEngine, version: str, message: str) -> None:
    """A server refuses at once; a task of this process has ended with the call."""
    try:
        problem = api.judge_model("numbers", version, BETTER).problem
    except Conflict as error:
        problem = error.to_dict()
    assert problem is not None
    assert problem["code"] == "conflict"
    assert message in problem["detail"]


@pytest.mark.parametrize("door", ["http", "here"])
def test_a_function_scores_what_the_server_has_encoded(
    client: Client, engine: SearchEngine, encoder: Encoder, door: str
) -> None:
    api = client if door == "http" else LocalEngine(engine)
    layer = learned(api, encoder)
    live = api.models("numbers").live
    given: Any = {"measure": "weight", "encode_documents": True, "record": {"loss": "mine"}, "seed": 3}
    result = done(api, api.save_model("numbers", layer, evidence=weights, **given))
    assert (live, result["model"], result["live"]) == ("v0", "v1", True)
    assert result["gate"]["measure"] == "weight"
    collection = engine.collection("numbers")
    assert collection.has_documents_of("v1")
    record = collection.store.model("v1").record
    assert record["gate"] == result["gate"]
    assert (record["examples"], record["uploaded"], record["accepted"]) == (PAIRS, {"loss": "mine"}, False)
    assert record["verdict"] == result["reason"]
    # The function saw the version as it is served now: query encoder, and documents, that learned.
    assert layer.encoder is not None
    texts = torch.as_tensor(layer.encoder.encode_documents(ANSWERS))
    scores = torch.as_tensor(layer.encoder.encode_queries(TEXTS)) @ texts.T
    temperature = collection.head("v1").temperature.item()
    wanted = (scores / temperature).softmax(1).diagonal().mean().item()
    assert result["gate"]["slices"][0]["after"] == pytest.approx(wanted, abs=1e-3)
    assert result["gate"]["slices"][0]["before"] < wanted - 0.05
    assert [one.version for one in api.models("numbers").models] == ["v0", "v1"]
    best = f"d{scores[0].argmax().item()}"
    assert api.search("numbers", TEXTS[0], mode="dense", limit=1).hits[0].id == best
    refuse(api, "v1", "answers, or is always there")


@pytest.mark.parametrize("door", ["http", "here"])
def test_nothing_is_left_of_a_version_that_the_function_cannot_score(
    client: Client, engine: SearchEngine, encoder: Encoder, door: str
) -> None:
    api = client if door == "http" else LocalEngine(engine)
    layer, calls = learned(api, encoder, steps=1), iter(range(9))

    def fails_on_the_second(layer: RemoteSearch) -> torch.Tensor:
        if next(calls):
            raise ZeroDivisionError
        return weights(layer)

    with pytest.raises(ZeroDivisionError):
        api.save_model("numbers", layer, evidence=fails_on_the_second, encode_documents=True)
    assert [one.version for one in api.models("numbers").models] == ["v0"]


@pytest.mark.parametrize("door", ["http", "here"])
def test_a_version_is_judged_once(client: Client, engine: SearchEngine, encoder: Encoder, door: str) -> None:
    api = client if door == "http" else LocalEngine(engine)
    tensors = api.head("numbers", "v0")
    kept = done(api, api.save_model("numbers", tensors))
    assert kept["gate"]["p_value"] is None
    passed = done(api, api.judge_model("numbers", "v1", BETTER, promote=False))
    assert (passed["gate"]["verdict"], passed["live"], passed["parent"]) == ("passed", False, "v0")
    refuse(api, "v1", "v1 was judged already")
    refuse(api, "v0", "always there")
    added = api.add_model("numbers", tensors).model  # without any gate so far
    assert done(api, api.judge_model("numbers", added, BETTER))["live"] is True
    if door == "http":
        with pytest.raises(ModelNotFound):
            api.judge_model("numbers", "v77", BETTER)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (ExampleScores([1.0], [1.0, 2.0]), "1 scores before and 2 after"),
        (ExampleScores([], []), "no scores of examples; give one of each by both versions"),
        (ExampleScores([float("nan")], [1.0]), "finite"),
        (ExampleScores([1.0], [1.0], ""), "1 to 100 characters"),
    ],
)
def test_scores_that_are_none_are_refused_at_once(
    client: Client, scores: ExampleScores, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.judge_model("numbers", "v1", scores)  # before it is seen that there is no such version
    assert client.tasks().tasks == []


def test_a_layer_of_this_process_is_told_the_way_that_works(client: Client, engine: SearchEngine) -> None:
    layer = dsearch.open_layer(engine, "numbers", encoder_training="lora")
    with pytest.raises(InvalidRequest, match=r"needs a RemoteSearch.*dsearch\.save_model"):
        client.save_model("numbers", layer, evidence=lambda _: [1.0], encode_documents=True)


def test_a_verdict_survives_and_the_store_verifies(engine: SearchEngine, encoder: Encoder) -> None:
    """The record changes in one committed operation, and the ledger of tries in another."""
    here = LocalEngine(engine)
    kept = done(here, here.save_model("numbers", here.head("numbers", "v0")))
    before = engine.collection("numbers").store.sequence
    done(here, here.judge_model("numbers", kept["model"], BETTER, promote=False))
    collection = engine.collection("numbers")
    assert collection.store.sequence == before + 2
    path = engine.home.path
    engine.close()
    with SearchEngine(path, encoder=lambda: encoder) as again:
        record = again.collection("numbers").store.model("v1").record
        assert record["gate"]["verdict"] == "passed"
        assert again.collection("numbers").store.verify().damage == ()


def test_weights_that_are_too_large_are_told_the_way_that_works(
    engine: SearchEngine,
) -> None:
    app = create_app(engine, model_upload_bytes=100)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with served_in_thread(app, listening), Client(address) as client:
            given = client.head("numbers", "v0")
            wanted = r"at most 100 .*model_upload_bytes.*'lora'.*dsearch\.save_model"
            with pytest.raises(dsearch.DsearchError, match=wanted):
                client.save_model("numbers", given)
