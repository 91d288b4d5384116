"""A replica of the application is ready when a replica of the encoder is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.patience import LATEST_S
from support.service.apps import patient_app

from dsearch.cluster.collection import ClusterEngine, Releases
from dsearch.cluster.search.search import EncodedQueries
from dsearch.engine import SearchEngine
from dsearch.errors import EncoderUnavailable
from dsearch.types import Document

ORIGIN = "http://127.0.0.1"


def served(home: Path, await_encoder: Callable[[], None]) -> TestClient:
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        engine.create("food").ingest([Document("d", "apple bread")])

    engine = ClusterEngine(
        home,
        encoder=HashingEncoder,
        releases=Releases(dict, lambda live: None),  # type: ignore[arg-type, return-value]
        encode=lambda collection, texts, mode, model, tokens: EncodedQueries(
            torch.zeros(len(texts), 32), None
        ),
        await_encoder=await_encoder,
    )
    return TestClient(patient_app(engine), base_url=ORIGIN)


def readiness(client: TestClient, until: str) -> str:
    """What /readyz says, once it says that; or what it says in the end."""
    latest = time.monotonic() + LATEST_S
    while True:
        answer = client.get("/readyz").json()
        said = answer.get("status") if "code" not in answer else answer["code"]
        if said == until or time.monotonic() > latest:
            return said
        time.sleep(0.02)


def test_it_is_ready_when_an_encoder_is(tmp_path: Path) -> None:
    loaded = threading.Event()
    try:
        with served(tmp_path / "home", lambda: assert_set(loaded)) as client:
            for _ in range(20):
                assert client.get("/readyz").json()["code"] == "not_ready"
                assert client.get("/healthz").status_code == 200
                time.sleep(0.01)
            loaded.set()
            assert readiness(client, "ready") == "ready"
    finally:
        loaded.set()


def test_where_none_ever_is_it_says_so(tmp_path: Path) -> None:
    def never() -> None:
        raise EncoderUnavailable("no replica of the encoder was ready in 300 s")

    with served(tmp_path / "home", never) as client:
        assert readiness(client, "encoder_unavailable") == "encoder_unavailable"
        assert "no replica of the encoder" in client.get("/readyz").json()["detail"]


def assert_set(loaded: threading.Event) -> None:
    assert loaded.wait(LATEST_S)
