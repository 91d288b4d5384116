"""Tasks over HTTP: started, watched until they end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.patience import LATEST_S
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN, WORDS, open_words
from support.warm.processes import warm_start

from dsearch.engine import SearchEngine

URL = "/v1/collections/papers"


JUDGED = {
    "queries": {f"q{i}": f"{WORDS[i % 8]} {WORDS[8 + i % 7]}" for i in range(12)},
    "judgements": {f"q{i}": {f"d{i + 10:03d}": 1, "d001": 0} for i in range(12)},
}


def app_of(engine: SearchEngine, **more: Any) -> FastAPI:
    return patient_app(engine, open_engine=partial(open_words, engine.home.path), **more)


@pytest.fixture
def client(engine: SearchEngine) -> Iterator[TestClient]:
    with TestClient(app_of(engine), base_url=ORIGIN) as connected:
        yield connected


def ended(client: TestClient, id: str, within_s: float = LATEST_S) -> dict[str, Any]:
    until_tasks_start_warm()
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        task = client.get(f"/v1/tasks/{id}").json()
        if task["ended"]:
            return task
        time.sleep(0.1)
    raise AssertionError(f"task {id} is still {task['state']}")


def ask(client: TestClient, kind: str, body: Any = None) -> str:
    answered = client.post(f"{URL}/{kind}", json=body)
    assert answered.status_code == 202, answered.text
    assert answered.headers["location"] == f"/v1/tasks/{answered.json()['id']}"
    assert answered.json()["state"] == "queued"
    return answered.json()["id"]


def events(client: TestClient, id: str, after: str | None = None) -> list[tuple[str, str, Any]]:
    """(id, kind, data) of each event, to the end of the stream."""
    headers = {} if after is None else {"Last-Event-ID": after}
    with client.stream("GET", f"/v1/tasks/{id}/events", headers=headers) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        blocks = streamed.read().decode().split("\n\n")[:-1]
    found = []
    for block in blocks:
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


def until_tasks_start_warm() -> None:
    """What tasks are forked from imports for minutes on a busy machine: no part of a task's time."""
    assert warm_start().address


def until_running(client: TestClient, id: str) -> None:
    until_tasks_start_warm()
    until = time.monotonic() + LATEST_S
    while not client.get(f"/v1/tasks/{id}").json()["progress"]:
        assert time.monotonic() < until
        time.sleep(0.05)
