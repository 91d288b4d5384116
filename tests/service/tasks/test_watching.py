"""Watched and listed tasks: the end of a stream, how many may watch, pages; what a task tells and leaves.

No process is started: tasks are put into the store as they would stand there.
"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.tasks import JUDGED, ask, ended, events

from dsearch.engine import Collection
from dsearch.errors import Conflict
from dsearch.service.routes.tasks import MAX_FULL_EPOCHS, WATCHERS
from dsearch.service.state import Service
from dsearch.service.tasks import manager
from dsearch.service.tasks.store import StoredTask, TaskStore
from dsearch.types import Progress


@pytest.fixture
def service(client: TestClient, papers: Collection) -> Service:
    return client.app.state.service  # type: ignore[attr-defined]


def begun(store: TaskStore) -> StoredTask:
    store.add("evaluate", "papers", JUDGED)
    task = store.next()
    assert task is not None
    return task


def test_every_event_of_an_ended_task_is_told(client: TestClient, service: Service) -> None:
    task = begun(service.tasks.store)
    for number in range(250):
        service.tasks.store.append_event(task, "metric", {"i": number})
    service.tasks.store.end(task, "done", result={})
    told = events(client, task.id)
    assert [data["i"] for _, kind, data in told if kind == "metric"] == list(range(250))
    assert [kind for _, kind, _ in told].index("end") == 250
    assert [data["i"] for _, kind, data in events(client, task.id, after="240") if kind == "metric"] == [
        *range(240, 250)
    ]


def test_so_many_may_watch_and_those_who_went_away_do_not_count(client: TestClient, service: Service) -> None:
    task = begun(service.tasks.store)
    service.tasks.store.end(task, "done", result={})
    service.watchers = WATCHERS - 1
    for _ in range(3):
        assert events(client, task.id)[-1][1] == "end"
        assert service.watchers == WATCHERS - 1
    service.watchers = WATCHERS
    refused = client.get(f"/v1/tasks/{task.id}/events")
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert f"{WATCHERS} clients watch tasks already" in refused.json()["detail"]


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_a_page_names_the_next_if_there_is_one(client: TestClient, service: Service, count: int) -> None:
    added = [begun(service.tasks.store).id for _ in range(count)]
    pages: list[list[str]] = []
    cursor: dict[str, Any] = {}
    while cursor is not None:
        page = client.get("/v1/tasks", params={"limit": 3, **cursor}).json()
        pages.append([task["id"] for task in page["tasks"]])
        cursor = {"cursor": page["next"]} if page["next"] else None
    assert [id for page in pages for id in page] == added[::-1]
    assert all(pages)


def test_of_progress_the_beginning_and_the_end_of_each_stage_are_told(service: Service) -> None:
    task = begun(service.tasks.store)
    tell = service.tasks._reporter(task)  # pyright: ignore[reportPrivateUsage]
    for stage in ("read", "train"):
        for done in range(1, 6):
            tell(Progress(stage, done, 5, 1.0))
    told = [(event.data["stage"], event.data["done"]) for event in service.tasks.store.events(task, 0)]
    for stage in ("read", "train"):
        assert {(stage, 1), (stage, 5)} <= set(told)


def test_the_most_epochs_of_a_full_training_are_taken_on(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager.TaskWork, "result", lambda *_: {})
    body = {**JUDGED, "scope": "full"}
    for epochs, status in ((MAX_FULL_EPOCHS, 202), (MAX_FULL_EPOCHS + 1, 422)):
        answer = client.post("/v1/collections/papers/train", json={**body, "epochs": epochs})
        assert answer.status_code == status, answer.text


def test_a_server_without_a_next_encoder_moves_to_none_that_is_named(
    client: TestClient, papers: Collection
) -> None:
    answer = client.post("/v1/collections/papers/migrate", json={"encoder": "other"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert client.get("/v1/tasks").json()["tasks"] == []


@pytest.mark.parametrize("raised", [None, Conflict("no"), ValueError("what nobody expects")])
def test_an_ended_task_leaves_no_folder(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, raised: Exception | None
) -> None:
    folders = []

    def work(_: manager.TaskWork, job: manager.Job) -> dict[str, Any]:
        (job.folder / "left").write_text("something")
        folders.append(job.folder)
        if raised is not None:
            raise raised
        return {}

    monkeypatch.setattr(manager.TaskWork, "result", work)
    first, second = ask(client, "evaluate", JUDGED), ask(client, "evaluate", JUDGED)
    assert ended(client, first)["state"] == ("done" if raised is None else "failed")
    ended(client, second)  # begun when the first was over, with its folder
    assert not folders[0].exists()
