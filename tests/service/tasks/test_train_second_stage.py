"""A second stage that a task of the service fits goes live as by the command line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from starlette.responses import Response
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.service.apps import patient_app
from support.training.second_stages import judged_collection

from dsearch.engine import SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.service.routes import tasks
from dsearch.service.tasks.results import register_learned, write_learned
from dsearch.training import JobResult, Registration, run_training
from dsearch.training.finetune import second_stage, stage_fit


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """Result of a training in an equal collection; how a stage is fitted is not chosen by trials here."""
    home = tmp_path_factory.mktemp("learned") / "home"
    with pytest.MonkeyPatch.context() as patch, SearchEngine(home, encoder=HashingEncoder) as engine:
        patch.setattr(second_stage, "chosen_method", lambda *_: stage_fit.METHODS[1])
        collection, queries, judgements = judged_collection(engine)
        job = TrainingJob(queries=queries, judgements=judgements, epochs=2, memory=False, tune=False)
        return run_training(collection, job)


def test_a_stage_that_failed_is_named_with_its_figures(
    engine: SearchEngine, learned: JobResult, tmp_path: Path
) -> None:
    """In the result of the task, as in that of the library; it does not go live."""
    collection, _, _ = judged_collection(engine)
    stage = learned.second_stage
    assert stage is not None
    gate = dataclasses.replace(stage.gate, verdict="refused", reason="nDCG@10 fell")
    record = {**stage.record, "gate": gate.to_dict()}
    learned = dataclasses.replace(learned, second_stage=dataclasses.replace(stage, gate=gate, record=record))
    outcome = json.loads(json.dumps(write_learned(tmp_path, learned)))
    result = register_learned(tmp_path, outcome, collection, promote=True, accept=False, task="t1")
    assert collection.head(collection.live_model).second_stage is None
    told = result["second_stage"]
    assert (told["verdict"], told["reason"]) == ("refused", "nDCG@10 fell")
    assert told["text"].startswith("second stage (")
    assert told["gate"]["slices"]
    assert told == learned.summary(Registration("v1", None, "v0", "kept"))["second_stage"]


def test_a_search_without_tokens_names_the_way_to_them(engine: SearchEngine, client: TestClient) -> None:
    engine.create("plain").ingest([])
    answer = client.post("/v1/collections/plain/search", json={"query": "a", "stages": 2})
    assert answer.status_code == 422
    assert "--second-stage" in answer.json()["detail"]


def test_a_request_names_no_reranker_that_the_operator_did_not(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default there is none: a request does not make the server load a model."""

    async def taken_on(*_: object) -> Response:
        return Response(status_code=202)

    monkeypatch.setattr(tasks, "_take_on", taken_on)
    judged_collection(engine)
    body = {"queries": {"q": "a1"}, "judgements": {"q": {"d1": 1}}, "reranker": "some/model"}
    for allowed, status in (((), 422), (("other/model",), 422), (("some/model",), 202)):
        with TestClient(patient_app(engine, rerankers=allowed), base_url="http://127.0.0.1") as client:
            answer = client.post("/v1/collections/judged/train", json=body)
            assert answer.status_code == status, answer.text
            if status == 422:
                expected = f"not among those of this server ({', '.join(allowed) or 'none'})"
                assert expected in answer.json()["detail"]
