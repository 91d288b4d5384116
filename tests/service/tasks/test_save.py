"""POST …/models/save: a head, and a query encoder, that were trained elsewhere are judged in a task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN
from support.service.tasks import ended
from support.tiny_encoder import open_tiny, write_tiny_encoder
from support.training.numbers import PAIRS, number_documents

import dsearch
from dsearch.client.uploads import model_file, upload_of
from dsearch.encoder import Encoder
from dsearch.engine import CollectionLayer, SearchEngine, head_tensors
from dsearch.jobs import JudgedQueries

URL = "/v1/collections/numbers"
TENSORS = {"content-type": "application/x-safetensors"}
QUERIES = {f"q{i:02d}": f"question {i + PAIRS}" for i in range(PAIRS)}
EVIDENCE = JudgedQueries(QUERIES, {f"q{i:02d}": {f"d{i}": 1.0} for i in range(PAIRS)})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(tmp_path: Path, tiny: Path) -> Iterator[SearchEngine]:
    loaded = Encoder.load(str(tiny))
    with SearchEngine(tmp_path / "home", encoder=lambda: loaded) as opened:
        opened.create("numbers").ingest(number_documents())
        yield opened


@pytest.fixture
def client(engine: SearchEngine, tiny: Path) -> Iterator[TestClient]:
    app = patient_app(engine, open_engine=partial(open_tiny, engine.home.path, tiny))
    with TestClient(app, base_url=ORIGIN) as connected:
        yield connected


def learned(engine: SearchEngine) -> CollectionLayer:
    layer = dsearch.open_layer(engine, "numbers", mode="dense", encoder_training="lora")
    assert layer.encoder is not None
    texts = list(QUERIES.values())
    places = layer.ids(np.arange(layer.snapshot.positions)[None])[0]
    right = torch.tensor([places.index(f"d{i}") for i in range(PAIRS)])
    optimizer = torch.optim.AdamW(layer.encoder.learning(), lr=1e-2)
    for _ in range(15):
        optimizer.zero_grad()
        out = layer(layer.query_states(texts))
        hit = torch.as_tensor(out.positions) == right[:, None]
        (-(out.weights * hit).sum(1).clamp_min(1e-9).log().mean()).backward()
        optimizer.step()
    return layer


def test_documents_are_encoded_again_by_the_encoder_that_was_handed_in(
    client: TestClient, engine: SearchEngine
) -> None:
    layer = learned(engine)
    options = {"encode_documents": True, "accept": True}
    body = model_file(upload_of(layer, None, None), EVIDENCE, None, options).read()
    task = ended(client, client.post(f"{URL}/models/save", content=body, headers=TENSORS).json()["id"])
    assert task["state"] == "done", task
    assert (task["result"]["live"], task["result"]["model"]) == (True, "v1")
    collection = engine.collection("numbers")
    assert collection.has_documents_of("v1")
    assert layer.encoder is not None
    query, documents = [QUERIES["q00"]], [one.text for one in number_documents()]
    wanted = layer.encoder.encode_queries(query) @ layer.encoder.encode_documents(documents).T
    found = collection.attend(query, candidates=PAIRS, mode="dense")
    scores = [float(wanted[0, int(id[1:])]) for id in found.ids[0]]
    assert found.output.scores[0].tolist() == pytest.approx(scores, abs=1e-3)


def test_a_query_encoder_is_handed_in_judged_and_served(client: TestClient, engine: SearchEngine) -> None:
    layer = learned(engine)
    body = model_file(upload_of(layer, None, None), EVIDENCE, {"loss": "mine"}, {}).read()
    taken = client.post(f"{URL}/models/save", content=body, headers=TENSORS)
    assert taken.status_code == 202, taken.text
    task = ended(client, taken.json()["id"])
    assert task["state"] == "done", task
    assert (task["result"]["live"], task["result"]["model"]) == (True, "v1")
    record = client.get(f"{URL}/models").json()["models"][1]["record"]
    assert (record["query_encoder"]["method"], record["task"]) == ("lora", task["id"])
    assert record["uploaded"] == {"loss": "mine"}
    served = engine.collection("numbers").query_states(list(QUERIES.values()), "dense")
    torch.testing.assert_close(served, layer.query_states(list(QUERIES.values())).detach(), rtol=0, atol=1e-5)
    head = model_file(upload_of(layer.head, None, "v1"), None, None, {}).read()
    task = ended(client, client.post(f"{URL}/models/save", content=head, headers=TENSORS).json()["id"])
    assert (task["state"], task["problem"]["code"]) == ("failed", "conflict")
    assert "would lose" in task["problem"]["detail"]


def head_file(engine: SearchEngine, request: Any, **more: np.ndarray) -> bytes:
    tensors = {k: v.numpy() for k, v in head_tensors(engine.collection("numbers").head("v0")).items()}
    return save(
        {**tensors, **more}, {"request": request if isinstance(request, str) else json.dumps(request)}
    )


@pytest.mark.parametrize(
    ("request_given", "message"),
    [
        ("[]", "a request that is no JSON object"),
        ({"evidence": 1}, "evidence"),
        ({"before": [1.0]}, "before and after belong together"),
        ({"before": [1.0], "after": [1.0, 2.0]}, "1 scores before and 2 after"),
        ({"before": ["x"], "after": [1.0]}, "before"),
        ({"parent": "v9"}, "v9"),
        ({"parent": "../x"}, "parent"),
        ({"encoder": {"method": "lora"}}, "give both or neither"),
        ({"encoder": {"method": "magic"}}, "method"),
    ],
)
def test_a_bad_request_is_refused_before_a_task_begins(
    client: TestClient, engine: SearchEngine, request_given: Any, message: str
) -> None:
    body = head_file(engine, request_given)
    answered = client.post(f"{URL}/models/save", content=body, headers=TENSORS)
    assert answered.status_code in (400, 404, 422), answered.text
    assert message in answered.json()["detail"]
    assert client.get("/v1/tasks").json()["tasks"] == []


def test_a_body_that_is_no_model_is_refused(client: TestClient, engine: SearchEngine) -> None:
    def refused(content: bytes, kind: str = TENSORS["content-type"]) -> tuple[int, str]:
        answered = client.post(f"{URL}/models/save", content=content, headers={"content-type": kind})
        return answered.status_code, answered.json()["detail"]

    assert "not a safetensors file" in refused(b"nothing")[1]
    assert refused(b"{}", "application/json")[0] == 415
    code, detail = refused(head_file(engine, {}, **{"query_encoder/x.A": np.zeros((2, 2), np.float32)}))
    assert "1 tensors under 'query_encoder/'" in detail
    assert code == 422
    infinite = {"query_encoder/x.A": np.full((2, 2), np.inf, np.float32)}
    assert "not finite" in refused(head_file(engine, {"encoder": {}}, **infinite))[1]
    strange = head_file(engine, {"encoder": {}}, **{"query_encoder/x.A": np.zeros((2, 2), np.float32)})
    task = client.post(f"{URL}/models/save", content=strange, headers=TENSORS).json()
    assert ended(client, task["id"])["problem"]["code"] == "invalid_request"  # no layer of that name
    assert len(client.get(f"{URL}/models").json()["models"]) == 1
