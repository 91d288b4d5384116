"""Answers to unexpected failures refer to the server's log; there the operator finds what they leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.loading import until_loaded
from support.service.service_fakes import ORIGIN
from support.service.tasks import ask, events

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import CorruptData
from dsearch.service.tasks import manager
from dsearch.service.uploads import attaching

SECRET = "password of the database"


def fails(*given: Any, **named: Any) -> Any:
    raise RuntimeError(SECRET)


def test_a_failure_of_a_task_is_found_under_its_reference(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manager.TaskWork, "result", fails)
    id = ask(client, "refresh")
    assert events(client, id)[-1][1] == "end"
    task = client.get(f"/v1/tasks/{id}").json()
    assert (task["state"], task["problem"]["code"]) == ("failed", "internal_error")
    assert SECRET not in json.dumps(task)
    [record] = [one for one in caplog.records if one.name == manager.__name__]
    assert task["problem"]["detail"].endswith(record.getMessage().partition("(")[2].rstrip(")"))
    assert id in record.getMessage()
    assert SECRET in caplog.text


def test_a_server_that_did_not_start_says_why_to_its_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        SearchEngine(tmp_path / "home", encoder=fails) as engine,
        TestClient(patient_app(engine), base_url=ORIGIN) as client,
    ):
        ready = until_loaded(client).get("/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
    assert "the server's log says why" in ready.json()["detail"]
    assert SECRET not in ready.text
    assert SECRET in caplog.text


def test_a_file_is_deleted_though_a_collection_that_has_it_is_damaged(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others lose it, and the log names the one that does not."""
    assert client.put("/v1/collections/attic").status_code == 201
    uploaded = {"files": {"file": ("a.txt", b"river")}, "data": {"purpose": "assistants"}}
    id = client.post("/v1/files", **uploaded).json()["id"]
    for name in ("attic", "papers"):
        assert client.post(f"/v1/vector_stores/{name}/files", json={"file_id": id}).status_code == 200
    detach = attaching.detach

    def damaged(catalogue: Any, name: str, file: str) -> bool:
        if name == "attic":
            raise CorruptData("its disk is failing")
        return detach(catalogue, name, file)

    monkeypatch.setattr(attaching, "detach", damaged)
    assert client.delete(f"/v1/files/{id}").json()["deleted"] is True
    assert client.get(f"/v1/vector_stores/papers/files/{id}").status_code == 404
    assert f"file {id} could not be taken out of attic: its disk is failing" in caplog.text
