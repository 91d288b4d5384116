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
from dsearch.service.state import LEFT_FOLDER
from dsearch.service.tasks import manager

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


def test_files_that_an_earlier_release_kept_are_named(
    engine: SearchEngine, papers: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    folder = engine.home.path / LEFT_FOLDER
    folder.mkdir()
    (folder / "file-1.bin").write_bytes(b"river")
    (folder / "file-1.json").write_text("{}")
    with TestClient(patient_app(engine), base_url=ORIGIN):
        pass
    assert f"{folder} has 1 file (5 bytes)" in caplog.text
    assert (folder / "file-1.bin").read_bytes() == b"river"
