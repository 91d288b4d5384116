"""Where an encoder is a folder, no answer says where on the machine it lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN, documents

from dsearch.engine import SearchEngine
from dsearch.errors import Command, EncoderMismatch
from dsearch.service.errors import problem_members, public_encoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "secret" / "my-encoder"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def client(tmp_path: Path, folder: Path) -> Iterator[TestClient]:
    home = tmp_path / "home"
    with SearchEngine(home, encoder=lambda: HashingEncoder(32, str(folder))) as engine:
        papers = engine.create("papers")
        papers.ingest(documents(12))
        papers.add_model(papers.head("v0"), {"reranker": [str(folder.with_name("r")), "cross-encoder", ""]})
    # Another encoder of the same length: queries are refused, and the error names both.
    other = folder.with_name("other-encoder")
    other.mkdir()
    encoder = HashingEncoder(32, str(other))
    encoder._identity = replace(encoder.identity, weights_sha256="1" * 64)
    with (
        SearchEngine(home, encoder=lambda: encoder) as engine,
        TestClient(patient_app(engine, migrates_to=str(other)), base_url=ORIGIN) as connected,
    ):
        yield connected


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/collections", None),
        ("GET", "/v1/collections/papers", None),
        ("PUT", "/v1/collections/papers", {}),
        ("PUT", "/v1/collections/new", {}),
        ("GET", "/v1/collections/papers/stats", None),
        ("GET", "/v1/collections/papers/models", None),
        ("GET", "/v1/models", None),
        ("POST", "/v1/collections/papers/search", {"query": "river"}),
        ("POST", "/v1/collections/papers/migrate", {"encoder": "another"}),
        ("POST", "/v1/embeddings", {"model": "papers", "input": "river"}),
        ("GET", "/metrics", None),
    ],
)
def test_no_answer_says_where_the_encoder_lies(
    client: TestClient, folder: Path, method: str, path: str, body: dict[str, str] | None
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code < 500
    assert str(folder.parent) not in answer.text


def test_commands_that_answers_name_have_no_path(client: TestClient, folder: Path) -> None:
    refused = client.post("/v1/collections/papers/search", json={"query": "river"})
    assert refused.json()["code"] == "encoder_mismatch"
    assert refused.json()["hint"]["arguments"][-2:] == ["--encoder", "other-encoder"]
    assert str(folder.parent) not in refused.text


def test_problems_of_tasks_have_no_path(folder: Path) -> None:
    public_encoder(str(folder))
    hint = Command("migrate", ("-c", "papers", "--encoder", str(folder)))
    problem = problem_members(EncoderMismatch(f"not by {folder}", hint=hint))
    assert problem["hint"]["arguments"] == ["-c", "papers", "--encoder", "my-encoder"]
    assert str(folder.parent) not in str(problem)


def test_records_of_versions_name_encoders_and_rerankers_by_their_own_names(client: TestClient) -> None:
    listed = client.get("/v1/collections/papers/models").json()["models"]
    (record,) = [model["record"] for model in listed if model["version"] == "v1"]
    assert record["encoder"]["name"] == "my-encoder"
    assert record["reranker"][0] == "r"


def test_the_encoder_has_the_name_of_its_folder(client: TestClient) -> None:
    assert client.get("/v1/collections/papers").json()["encoder"]["name"] == "my-encoder"


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_names_of_packages_and_hubs_stay(name: str) -> None:
    assert public_encoder(name) == name
