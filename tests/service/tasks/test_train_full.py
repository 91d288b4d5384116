"""Scope full over HTTP: both encoders learn in another process, and the documents come back by row."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.patience import LATEST_S
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN
from support.service.tasks import ended, until_running
from support.tiny_encoder import open_tiny, write_tiny_encoder
from support.training.numbers import long_text

from dsearch.encoder import Encoder
from dsearch.engine import Collection, EncodedDocuments, SearchEngine
from dsearch.engine.snapshot import same_codec
from dsearch.index.tokens import DocumentTokens, TokenCodec, TokenTable
from dsearch.processes import Report
from dsearch.service.tasks import manager
from dsearch.service.tasks.jobs import train_job
from dsearch.service.tasks.results import read_encoded, write_encoded
from dsearch.store import Passages
from dsearch.types import Document

URL = "/v1/collections/numbers"
COUNT = 20
BODY = {
    "queries": {f"q{i:02d}": f"question {i}" for i in range(COUNT)},
    "judgements": {f"q{i:02d}": {f"d{i}": 1} for i in range(COUNT)},
    "scope": "full",
    "epochs": 2,
    "encoder_learning_rate": 0.01,
    "negatives": 1,
    "accept": True,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(tmp_path: Path, tiny: Path) -> Iterator[SearchEngine]:
    loaded = Encoder.load(str(tiny))
    with SearchEngine(tmp_path / "home", encoder=lambda: loaded) as opened:
        yield opened


@pytest.fixture
def numbers(engine: SearchEngine) -> Collection:
    made = engine.create("numbers")
    made.ingest([Document(id=f"d{i}", text=long_text(i)) for i in range(COUNT)])
    assert made.snapshot.passages is not None
    return made


@pytest.fixture
def client(engine: SearchEngine, tiny: Path) -> Iterator[TestClient]:
    app = patient_app(engine, open_engine=partial(open_tiny, engine.home.path, tiny))
    with TestClient(app, base_url=ORIGIN) as connected:
        yield connected


def test_both_encoders_learn_and_answer(client: TestClient, numbers: Collection) -> None:
    before = client.get(f"{URL}/search?query=question 7&mode=dense").json()
    id = client.post(f"{URL}/train", json=BODY).json()["id"]
    # Meanwhile something is written and something deleted, of which the training knows nothing.
    numbers.upsert([Document("late", "answer blue 61")])
    numbers.delete(["d4"])
    task = ended(client, id)
    assert task["state"] == "done", task
    assert task["result"]["live"]
    record = client.get(f"{URL}/models").json()["models"][1]["record"]
    assert (record["scope"], record["options"]["epochs"]) == ("full", 2)
    assert (record["options"]["encoder_learning_rate"], record["options"]["negatives"]) == (0.01, 1)
    after = client.post(
        f"{URL}/search", json={"query": "question 7", "mode": "dense", "limit": 100, "explain": True}
    )
    assert after.status_code == 200, after.text
    hits = {hit["id"]: hit for hit in after.json()["hits"]}
    assert set(hits) == {f"d{i}" for i in range(COUNT) if i != 4} | {"late"}
    assert after.json()["model"] == "v1" != before["model"]
    assert [hit["score"] for hit in before["hits"]] != [hits[hit["id"]]["score"] for hit in before["hits"]]
    # Each score is that of the best passage by the encoder that was trained.
    encoder = numbers.encoder_of("v1")
    query = encoder.encode_queries(["question 7"])[0]
    for name, hit in hits.items():
        stored = numbers.store.get(name).text
        pieces = [hit["passage"]["text"]] if "passage" in hit else [stored]
        best = max(float(query @ encoder.encode_documents([piece])[0]) for piece in pieces)
        assert hit["score"] == pytest.approx(best, abs=1e-4)


def hold(report: Report, *arguments: Any) -> dict[str, Any]:
    """The training, kept from ending."""
    made = train_job(report, *arguments)
    threading.Event().wait(600)
    return made


def test_it_is_cancelled(client: TestClient, numbers: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "train_job", hold)
    id = client.post(f"{URL}/train", json=BODY).json()["id"]
    until_running(client, id)
    client.delete(f"/v1/tasks/{id}")
    assert ended(client, id)["state"] == "cancelled"
    until = time.monotonic() + LATEST_S
    assert [model["version"] for model in client.get(f"{URL}/models").json()["models"]] == ["v0"]
    while list((numbers.store.path.parent / ".tasks").iterdir()):  # its folder goes after its end is told
        assert time.monotonic() < until
        time.sleep(0.05)


def test_encoded_documents_travel_by_row(numbers: Collection, tmp_path: Path) -> None:
    """What was written or deleted in between neither moves nor mixes anything."""
    numbers.delete(["d2"])
    state = numbers.snapshot
    dimension = numbers.store.dimension
    generator = np.random.default_rng(0)
    embeddings = generator.standard_normal((state.positions, dimension)).astype(np.float32)
    further = {
        at: Passages(
            np.array([[0, 5], [5, 9], [9, 12]], np.int64),
            generator.standard_normal((2, dimension)).astype(np.float32),
        )
        for at in (0, 3, 6, 9)
    }
    further[1] = Passages(np.array([[0, 4]], np.int64), np.zeros((0, dimension), np.float32))
    codec = TokenCodec.fit(generator.standard_normal((200, dimension)).astype(np.float32), dims=8, bits=4)
    tokens = [
        None if at == 5 else DocumentTokens(np.full((at, 4), at, np.uint8), np.full((at, 2), at, np.int32))
        for at in range(state.positions)
    ]
    write_encoded(tmp_path, EncodedDocuments(state, embeddings, further, TokenTable.of(codec, tokens)))
    gone, changed = (int(numbers.store.rows_of([id])[id]) for id in ("d6", "d8"))
    numbers.delete(["d6"])
    numbers.upsert([Document("new", "answer 50"), Document("d8", "answer 8, otherwise")])
    numbers.refresh()  # other positions
    read = read_encoded(tmp_path, numbers.snapshot)
    visible = read.state.visible()
    rows = read.state.rows(visible)
    before = state.rows(state.visible())
    assert set(rows) == set(before) - {gone, changed}
    assert np.array_equal(read.embeddings[visible], embeddings[state.positions_of(rows)])
    by_row = {int(read.state.rows(np.array([at]))[0]): one for at, one in read.further.items()}
    assert set(by_row) == {int(state.rows(np.array([at]))[0]) for at in (0, 1, 3, 9)}
    for row, one in by_row.items():
        was = further[int(state.positions_of(np.array([row]))[0])]
        assert np.array_equal(one.spans, was.spans)
        assert np.array_equal(one.embeddings, was.embeddings)
    assert read.tokens is not None
    assert same_codec(read.tokens.codec, codec)
    for at, row in zip(visible.tolist(), rows.tolist(), strict=True):
        made, was = read.tokens.document(at), tokens[int(state.positions_of(np.array([row]))[0])]
        assert (made is None) == (was is None)
        if made is not None and was is not None:
            assert np.array_equal(made.codes, was.codes)
            assert np.array_equal(made.spans, was.spans)


def test_encoded_documents_without_tokens_travel_without(numbers: Collection, tmp_path: Path) -> None:
    state = numbers.snapshot
    embeddings = np.zeros((state.positions, numbers.store.dimension), np.float32)
    write_encoded(tmp_path, EncodedDocuments(state, embeddings))
    assert read_encoded(tmp_path, state).tokens is None
