"""Use every toy of extensions.py: `python extended_use.py FOLDER_OF_THE_COPY HOME`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.service.apps import patient_app

import dsearch
from dsearch.cli.grouped_help import app
from dsearch.client import LocalEngine
from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training import Observer, run_training
from dsearch.types import Document

assert Path(dsearch.__file__).parent.parent == Path(sys.argv[1]), dsearch.__file__
words = ["apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey"]
documents = [
    Document(f"d{n}", text=f"{words[n % 8]} {words[n // 8]} n{n}", metadata={"name": f"x{n}"})
    for n in range(64)
]


remarks = []


class Remarks(Observer):
    def remark(self, text):
        remarks.append(text)


with SearchEngine(Path(sys.argv[2]), encoder=HashingEncoder) as engine:
    with pytest.raises(InvalidRequest, match="Toy"):
        engine.collection_or_new("other", kind="nothing")
    opened = engine.collection_or_new("food", kind="Toy")
    opened.ingest(documents)
    queries = {f"q{n}": f"{words[n % 8]} {words[n // 8]}" for n in range(24)}
    judged = {f"q{n}": {f"d{n}": 1.0} for n in range(24)}
    job = TrainingJob(
        queries=queries,
        judgements=judged,
        objective="toy-objective",
        epochs=1,
        tune=False,
        toy_remark="hello",
    )
    learned = run_training(opened, job, Remarks())
    assert learned.result.record["options"]["objective"] == "toy-objective", learned.result.record
    assert "hello" in remarks
    filter = {"name": {"starts": "x1"}}
    starting = {f"d{n}" for n in (1, *range(10, 20))}
    hits = opened.search("apple", limit=64, filter=filter).hits
    assert {hit.id for hit in hits} == starting
    assert opened.store.count(filter).documents == len(starting)  # by SQL
    with pytest.raises(InvalidRequest, match="starts: 1; use a string"):
        opened.search("apple", filter={"name": {"starts": 1}})
    with pytest.raises(InvalidRequest, match="did you mean name"):
        opened.search("apple", filter={"nane": {"starts": "x"}})
    assert engine.collection("food").describe().documents == 64
    assert LocalEngine(engine).toys("food").documents == 64
    client = TestClient(patient_app(engine), base_url="http://127.0.0.1")
    with client:
        found = client.post("/v1/collections/food/search", json={"query": "apple", "toy_cap": 2}).json()
        assert len(found["hits"]) == 2, found
        refused = client.post("/v1/collections/food/search", json={"query": "apple", "toy_cap": 0})
        assert refused.status_code == 422 or refused.status_code == 400, refused.text
        body = {"queries": ["apple"], "score": "toy_score", "candidates": 10}
        answer = client.post("/v1/collections/food/attend", json=body)
        assert answer.status_code == 200, answer.text
        body = {"query": "apple", "limit": 64, "filter": filter}
        hits = client.post("/v1/collections/food/search", json=body).json()["hits"]
        assert {hit["id"] for hit in hits} == starting
        assert client.get("/v1/collections/food/toy").json() == {"documents": 64}
        described = json.dumps(client.get("/openapi.json").json())
        for name in ("toy-objective", "toy_score", "toy_cap", "toy_remark", "Toy"):
            assert name in described, name
commands = typer.main.get_command(app).commands
helped = {
    command: " ".join(f"{option.opts} {option.help}" for option in commands[command].params)
    for command in ("search", "train", "attend")
}
assert "--toy-cap" in helped["search"]
assert "--toy-remark" in helped["train"]
assert "toy-objective" in helped["train"]
assert "toy_score" in helped["attend"]
