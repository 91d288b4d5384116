"""What a server answers whose encoder cannot be loaded: everything that encodes no text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.engine.copies import copied_collection
from support.service.apps import patient_app
from support.service.loading import until_loaded
from support.service.service_fakes import DIMENSION, ORIGIN

from dsearch.engine import SearchEngine
from dsearch.errors import EncoderUnavailable

VECTOR = [1.0] + [0.0] * (DIMENSION - 1)


def _missing() -> Any:
    raise EncoderUnavailable("no weights here")


@pytest.fixture
def broken(tmp_path: Path, built_papers: Path) -> Iterator[TestClient]:
    with SearchEngine(tmp_path / "home", encoder=_missing) as engine:
        copied_collection(engine, built_papers)
        with TestClient(patient_app(engine), base_url=ORIGIN) as client:
            yield client


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("search", {"query": "river stone", "mode": "keyword"}),
        ("search", {"vector": VECTOR}),
        ("search/batch", {"vectors": [VECTOR]}),
        ("similar", {"like": ["d007"]}),
        ("similar", {"like": ["d007"], "query": "river", "vector": VECTOR}),
        ("facets", {"fields": ["i"]}),
        ("attend", {"vectors": [VECTOR]}),
        ("attend", {"vectors": [VECTOR], "queries": ["river"]}),
        ("attend", {"ids": ["d007"]}),
        ("attend", {"queries": ["river"], "mode": "keyword"}),
        ("attend", {"queries": ["3"], "match_field": "i", "score": "exact_match"}),
        ("predict", {"vectors": [VECTOR], "field": "i"}),
        ("predict", {"ids": ["d007"], "field": "i"}),
        ("predict", {"queries": ["river"], "field": "i", "mode": "keyword"}),
        ("predict", {"queries": ["3"], "field": "i", "match_field": "i", "score": "exact_match"}),
    ],
)
def test_what_encodes_no_text_is_answered(broken: TestClient, route: str, body: dict[str, Any]) -> None:
    answer = broken.post(f"/v1/collections/papers/{route}", json=body)
    assert answer.status_code == 200, answer.text


def test_gradients_by_vectors_are_answered(broken: TestClient) -> None:
    attended = broken.post("/v1/collections/papers/attend", json={"vectors": [VECTOR]}).json()
    stamp = {name: attended[name] for name in ("generation", "model", "sequence")}
    gradient = {"vectors": [VECTOR], "grad_context": [VECTOR], "stamp": stamp}
    answer = broken.post("/v1/collections/papers/vjp", json=gradient)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("search", {"query": "river stone"}),
        ("attend", {"queries": ["river"]}),
        ("predict", {"queries": ["river"], "field": "i"}),
    ],
)
def test_what_encodes_text_says_why_it_cannot(broken: TestClient, route: str, body: dict[str, Any]) -> None:
    answer = broken.post(f"/v1/collections/papers/{route}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "encoder_unavailable")
    assert "no weights here" in answer.json()["detail"]


def test_it_lives_and_is_not_ready(broken: TestClient) -> None:
    assert broken.get("/healthz").status_code == 200
    ready = until_loaded(broken).get("/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "encoder_unavailable")
