"""The texts of a request count against what may wait for its worker, by every route that has some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import DIMENSION, ORIGIN, WordEncoder

from dsearch.engine import SearchEngine
from dsearch.service.errors import Overloaded
from dsearch.service.worker import Worker

HERE = "/v1/collections/papers"
RIVER, STONE = "river", "stone and lamp"
VECTOR = [1.0] * DIMENSION
BOTH = len(RIVER) + len(STONE)
DOCUMENTS = [{"id": "a", "text": RIVER, "title": STONE}, {"id": "b", "text": STONE}]
STAMP = {"generation": 1, "model": "v0", "sequence": 1}
ATTENTION: list[tuple[str, dict[str, Any]]] = [
    ("attend", {}),
    ("predict", {"field": "year"}),
    ("vjp", {"stamp": STAMP, "grad_weights": [[1.0]] * 2}),
]
REMEMBERED = {"queries": {"q1": RIVER, "q2": STONE}, "judgements": {"q1": {"a": 1.0}, "q2": {"a": 1.0}}}
SIZES: list[tuple[str, str, Any, str, int]] = [
    ("POST", f"{HERE}/search", {"query": RIVER}, "search", len(RIVER)),
    ("POST", f"{HERE}/search", {"query": RIVER, "vector": VECTOR}, "search", len(RIVER)),
    ("POST", f"{HERE}/search", {"vector": VECTOR}, "search", 0),
    ("GET", f"{HERE}/search?query={RIVER}", None, "search", len(RIVER)),
    ("POST", f"{HERE}/search/batch", {"queries": [RIVER, STONE]}, "search", BOTH),
    ("POST", f"{HERE}/search/batch", {"queries": [RIVER, STONE], "vectors": [VECTOR] * 2}, "search", BOTH),
    ("POST", f"{HERE}/similar", {"like": ["a"], "query": RIVER}, "search", len(RIVER)),
    ("POST", f"{HERE}/similar", {"like": ["a"]}, "search", 0),
    *(
        ("POST", f"{HERE}/{name}", {"queries": [RIVER, STONE], **more}, "search", BOTH)
        for name, more in ATTENTION
    ),
    ("POST", f"{HERE}/attend", {"vectors": [VECTOR]}, "search", 0),
    ("POST", f"{HERE}/models/remember", REMEMBERED, "write", BOTH),
    ("POST", "/retrieve", {"queries": [RIVER, STONE]}, "search", BOTH),
    ("POST", "/v1/embeddings", {"model": "papers", "input": [RIVER, STONE]}, "encode", BOTH),
    (
        "POST",
        "/v1/rerank",
        {"model": "papers", "query": RIVER, "documents": [STONE, RIVER]},
        "encode",
        BOTH + 5,
    ),
    ("PUT", f"{HERE}/documents", DOCUMENTS, "write", BOTH + len(STONE)),
    (
        "POST",
        f"{HERE}/feedback",
        [{"action_name": "click", "object_id": "d12", "user_query": RIVER}],
        "feedback",
        3,
    ),
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, list[tuple[str, int]]]]:
    """A client whose requests are refused, and the worker and size of each."""
    sizes: list[tuple[str, int]] = []

    async def submit(worker: Worker, *_: Any, characters: int = 0) -> Any:
        sizes.append((worker.name, characters))
        raise Overloaded("full")

    home = tmp_path_factory.mktemp("sizes") / "home"
    with pytest.MonkeyPatch.context() as patch, SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers")
        patch.setattr(Worker, "submit", submit)
        with TestClient(patient_app(engine), base_url=ORIGIN) as client:
            yield client, sizes


@pytest.mark.parametrize(("method", "path", "body", "worker", "size"), SIZES)
def test_texts_count(
    asked: tuple[TestClient, list[tuple[str, int]]], method: str, path: str, body: Any, worker: str, size: int
) -> None:
    client, sizes = asked
    sizes.clear()
    assert client.request(method, path, json=body).status_code == 503
    assert sizes == [(worker, size)]
