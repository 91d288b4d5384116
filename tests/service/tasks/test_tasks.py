"""Long work over HTTP: taken on durably, done elsewhere, watched, cancelled, gone on with after an end."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.guarded import guarded
from support.patience import LATEST_S
from support.service.service_fakes import ORIGIN, WordEncoder
from support.service.tasks import JUDGED, URL, app_of, ask, ended, events, until_running

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Cancelled, CorruptData, InsufficientStorage, UnsupportedFormat
from dsearch.processes import Report
from dsearch.service.tasks import manager
from dsearch.service.tasks.store import KEPT_EVENTS, TaskStore
from dsearch.types import Progress

# The thread of the tasks alone removes one, and asks while it runs.
checked = guarded(manager.Tasks, "_cancelled", lock="_changed", free=("_run", "_is_cancelled"))

# ---- what tasks do


def test_train_evaluate_and_refresh(client: TestClient, papers: Collection) -> None:
    train = ask(client, "train", {**JUDGED, "epochs": 3, "accept": True, "query_side": "mlp"})
    evaluate = ask(client, "evaluate", JUDGED)
    refresh = ask(client, "refresh")
    assert client.get("/v1/collections/papers/search?query=cat").status_code == 200  # served meanwhile
    told = events(client, train)
    trained = ended(client, train)
    assert trained["state"] == "done", trained
    result = trained["result"]
    assert (result["model"], result["live"], result["parent"]) == ("v1", True, "v0")
    assert result["gate"]["verdict"] != "passed"  # it answers because it was accepted by hand
    assert client.get(f"{URL}/search?query=cat").json()["model"] == "v1"
    record = client.get(f"{URL}/models").json()["models"][1]["record"]
    assert (record["task"], record["accepted"], record["examples"]) == (train, True, 12)
    assert record["head"]["query_side"] == "mlp"
    # the events: progress with a pace, a line of figures for each epoch, the end; and on from any of them
    kinds = [kind for _, kind, _ in told]
    assert kinds[-1] == "end"
    assert told[-1][2] == trained
    figures = [data for _, kind, data in told if kind == "metric"]
    assert [one["epoch"] for one in figures if one["stage"] == "train"] == [1, 2, 3]
    assert all(one["loss"] > 0 for one in figures)
    held_out = [one for one in figures if one["stage"] == "validate"]
    assert [one["epoch"] for one in held_out[:3]] == [1, 2, 3]
    for one in held_out:  # each epoch says how those queries are answered that it did not learn from
        assert {*one["ndcg_at_10"]} == {*one["ndcg_at_10_before"]} == {"all", "seen", "unseen"}
        assert 0 <= one["ndcg_at_10"]["all"] <= 1
    assert all(one["ndcg_at_10"] is None for one in figures if one["stage"] == "train")
    steps = [data for _, kind, data in told if kind == "progress"]
    assert steps[-1]["done"] == steps[-1]["total"]
    assert steps[-1]["eta_s"] == 0
    assert events(client, train, after=told[2][0]) == told[3:]
    # evaluation, of the model that the training before it had let answer
    report = ended(client, evaluate)["result"]
    assert {"dense", "keyword", "hybrid", "trained v1"} <= set(report["systems"])
    refreshed = ended(client, refresh)
    assert refreshed["result"]["model"] == "v1"
    assert client.get(f"{URL}").json()["generation"] == refreshed["result"]["generation"] > 2
    # nothing that was asked is kept, and no folder is left
    home = papers.store.path.parent
    with sqlite3.connect(home / "tasks.db") as database:
        assert database.execute("SELECT count(*) FROM tasks WHERE request IS NOT NULL").fetchone() == (0,)
    assert list((home / ".tasks").iterdir()) == []
    listed = client.get("/v1/tasks?limit=2").json()
    assert [one["id"] for one in listed["tasks"]] == [refresh, evaluate]
    rest = client.get("/v1/tasks", params={"limit": 2, "cursor": listed["next"]}).json()
    assert ([one["id"] for one in rest["tasks"]], rest["next"]) == ([train], None)
    assert client.get("/v1/tasks?state=failed").json()["tasks"] == []
    assert len(client.get("/v1/tasks?collection=papers").json()["tasks"]) == 3


def test_what_cannot_be_trained_says_why(client: TestClient, papers: Collection) -> None:
    unknown = {"queries": {"q": "cat"}, "judgements": {"q": {"nothing": 1}}}
    task = ended(client, ask(client, "train", unknown))
    assert (task["state"], task["problem"]["code"]) == ("failed", "invalid_request")
    assert "unknown documents: 1" in task["problem"]["detail"]
    assert client.get(f"{URL}/models").json()["live"] == "v0"


def test_a_field_is_learned_from_the_documents_that_have_it(client: TestClient, papers: Collection) -> None:
    asked = {"objective": "context", "field": "i", "epochs": 2, "promote": False}
    trained = ended(client, ask(client, "train", asked))
    assert trained["state"] == "done", trained
    assert trained["result"]["gate"]["measure"] == "R²"
    record = client.get(f"{URL}/models").json()["models"][1]["record"]
    assert (record["objective"], record["field"], record["kind"]) == ("context", "i", "number")
    unknown = ended(client, ask(client, "train", {"objective": "context", "field": "prise"}))
    assert (unknown["state"], unknown["problem"]["code"]) == ("failed", "invalid_request")
    for wrong in ({"objective": "context"}, {"field": "i"}, {**asked, "self_supervised": True}):
        refused = client.post(f"{URL}/train", json=wrong)
        assert refused.status_code in (400, 422), refused.text


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("train", {}, "give one of"),
        ("train", {**JUDGED, "self_supervised": True}, "give one of"),
        ("train", {"queries": {"q": "cat"}}, "belong together"),
        ("train", {"judgements": {"q": {"d": 1}}}, "belong together"),
        ("train", {"self_supervised": True, "epochs": 0}, "use an integer from 1 to 1000"),
        ("train", {"self_supervised": True, "encoder": "/etc/passwd"}, "unknown field"),
        ("train", {"self_supervised": 1}, "use true or false"),
        ("train", {"from": "elsewhere"}, "use feedback"),
        ("train", {"self_supervised": True, "scope": "full"}, "learns from judgements alone"),
        ("train", {**JUDGED, "scope": "full", "objective": "listwise"}, "no objective, one head"),
        ("train", {**JUDGED, "scope": "full", "epochs": 21}, "at most 20 epochs"),
        ("train", {**JUDGED, "encoder_training": "all"}, "of scope query or full"),
        ("train", {**JUDGED, "negatives": 2}, "negatives=2: of scope='full' alone"),
        ("train", {**JUDGED, "heads": 2, "query_side": "linear"}, "query_side='linear' has one head"),
        ("train", {**JUDGED, "scope": "full", "query_side": "mlp"}, "no query_side"),
        ("train", {**JUDGED, "scope": "full", "negatives": 65}, "an integer from 0 to 64"),
        ("train", {**JUDGED, "scope": "full", "encoder_learning_rate": 0.5}, "between 0 and 0.1"),
        ("train", {"queries": {"q": "x" * 9000}, "judgements": {"q": {"d": 1}}}, "8192 characters"),
        ("evaluate", {}, "queries is missing"),
        ("evaluate", {**JUDGED, "model": "latest"}, "use a registered version"),
        ("evaluate", {**JUDGED, "systems": [{"mode": "sparse"}]}, "use hybrid, dense or keyword"),
        ("evaluate", {**JUDGED, "model": "v1", "systems": [{}]}, "give the model within systems"),
    ],
)
def test_what_is_no_task_is_refused(
    client: TestClient, papers: Collection, kind: str, body: Any, said: str
) -> None:
    answered = client.post(f"{URL}/{kind}", json=body)
    assert (answered.status_code, answered.json()["code"]) == (422, "invalid_request")
    assert said in answered.json()["detail"]
    assert client.get("/v1/tasks").json()["tasks"] == []


def test_tasks_that_are_not_there(client: TestClient) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        answered = client.request(method, f"/v1/tasks/nothing{path}")
        assert (answered.status_code, answered.json()["code"]) == (404, "task_not_found")
    assert client.post("/v1/collections/nothing/refresh").status_code == 404
    assert client.get("/v1/tasks/x/events", headers={"Last-Event-ID": "-1"}).status_code == 422


# ---- work in another process: cancelled, killed, out of memory, stopped


def wait_for_ever(report: Report, *_: Any) -> dict[str, Any]:
    """Stands in for a training: reports that it runs, and does not end."""
    report(Progress("train", 1, 10, 1.0))
    time.sleep(600)
    return {}


def take_all_memory(report: Report, *_: Any) -> dict[str, Any]:
    """Takes far more than it may, but not all of a machine that does not bound it."""
    held = [bytearray(64 * 1024 * 1024) for _ in range(24)]
    return {"held": len(held)}


def answer_at_once(report: Report, *_: Any) -> dict[str, Any]:
    return {"answered": True}


def test_tasks_are_cancelled(client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "evaluate_job", wait_for_ever)
    running, waiting = ask(client, "evaluate", JUDGED), ask(client, "evaluate", JUDGED)
    until_running(client, running)
    assert client.delete(f"/v1/tasks/{waiting}").json()["state"] == "cancelled"
    assert client.delete(f"/v1/tasks/{running}").json()["state"] in ("running", "cancelled")
    assert ended(client, running)["state"] == "cancelled"
    assert client.delete(f"/v1/tasks/{running}").json()["state"] == "cancelled"
    assert events(client, running)[-1][1] == "end"


def test_running_out_of_memory_leaves_serving_untouched(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "evaluate_job", take_all_memory)
    app = app_of(engine, task_memory_bytes=512 * 1024 * 1024)
    with TestClient(app, base_url=ORIGIN) as client:
        id = ask(client, "evaluate", JUDGED)
        answers = 0
        while not client.get(f"/v1/tasks/{id}").json()["ended"]:
            assert client.get(f"{URL}/search?query=cat").status_code == 200
            answers += 1
        assert answers > 0
        task = ended(client, id)
        assert task["state"] == "failed"
        assert "out of memory" in task["problem"]["detail"]
        assert client.get("/readyz").status_code == 200


def test_a_stopped_server_goes_on_with_its_tasks(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "evaluate_job", wait_for_ever)
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        first = ask(client, "evaluate", JUDGED)
        until_running(client, first)
        watched: list[Any] = []
        watcher = threading.Thread(target=lambda: watched.extend(events(client, first)))
        service = client.app.state.service  # type: ignore[attr-defined]
        look, asked_after = service.tasks.events, []

        def noted(id: str, after: int) -> Any:
            asked_after.append(after)
            return look(id, after)

        monkeypatch.setattr(service.tasks, "events", noted)
        watcher.start()
        until = time.monotonic() + LATEST_S
        while not any(asked_after):  # who asks for what comes after an event has told it
            assert time.monotonic() < until
            time.sleep(0.01)
        service.leave()
        watcher.join(LATEST_S)  # streams end with the server
        assert [kind for _, kind, _ in watched] == ["progress"]
    monkeypatch.setattr(manager, "evaluate_job", answer_at_once)
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        task = ended(client, first)
        assert (task["state"], task["attempts"]) == ("done", 1)


def test_a_task_that_was_cancelled_before_the_server_stopped_stays_cancelled(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notices only after the server began to stop, which alone would have it begun again."""
    running, stopping = threading.Event(), threading.Event()

    def end_late(_: manager.TaskWork, job: manager.Job) -> dict[str, Any]:
        running.set()
        assert stopping.wait(LATEST_S)
        assert job.cancelled()
        raise Cancelled("evaluation was cancelled")

    monkeypatch.setattr(manager.TaskWork, "result", end_late)
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        task = ask(client, "evaluate", JUDGED)
        assert running.wait(LATEST_S)
        assert client.delete(f"/v1/tasks/{task}").json()["state"] == "running"
        client.app.state.service.tasks.request_stop()  # type: ignore[attr-defined]
        stopping.set()
    left = TaskStore(engine.home.path)
    assert left.get(task).state == "cancelled"
    assert left.next() is None
    left.close()


def test_a_server_that_died_tries_once_more_and_then_says_so(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "evaluate_job", answer_at_once)
    left = TaskStore(engine.home.path)
    once, twice = (left.add("evaluate", "papers", JUDGED) for _ in range(2))
    assert left.next() is not None
    assert left.next() is not None
    left.requeue(twice, begun=True)
    assert left.next() is not None
    left.close()  # both running, as a killed server leaves them
    folders = [engine.home.path / manager.FOLDER_NAME / task.id for task in (once, twice)]
    for folder in folders:
        folder.mkdir(parents=True)
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        task = ended(client, once.id)
        assert (task["state"], task["attempts"]) == ("done", 2)
        task = ended(client, twice.id)
        assert (task["state"], task["problem"]["code"]) == ("interrupted", "interrupted")
        assert "send the same request to POST /v1/collections/papers/evaluate" in task["problem"]["detail"]
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize(
    ("asked", "route"), [({"file": "0"}, "models/save"), ({"version": "v7"}, "models/v7/judge")]
)
def test_an_interrupted_verdict_names_the_route_that_took_it(
    engine: SearchEngine, papers: Collection, asked: dict[str, Any], route: str
) -> None:
    left = TaskStore(engine.home.path)
    task = left.add("save", "papers", asked)
    assert left.next() is not None
    left.requeue(task, begun=True)
    assert left.next() is not None
    left.close()
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        detail = ended(client, task.id)["problem"]["detail"]
    assert detail.endswith(f"send the same request to POST /v1/collections/papers/{route}")


def test_tasks_go_on_when_the_disk_has_room_again(
    engine: SearchEngine,
    papers: Collection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    full, end = iter([True]), TaskStore.end

    def ending(store: TaskStore, task: Any, state: Any, **about: Any) -> None:
        if next(full, False):
            raise InsufficientStorage("the disk is full")
        end(store, task, state, **about)

    monkeypatch.setattr(manager, "REST_S", 0.01)
    monkeypatch.setattr(manager.TaskWork, "_evaluate", lambda work, job: {"of": job.task.id})
    with TestClient(app_of(engine), base_url=ORIGIN) as client, monkeypatch.context() as now:
        now.setattr(TaskStore, "end", ending)
        first = ask(client, "evaluate", JUDGED)
        assert ended(client, ask(client, "evaluate", JUDGED))["state"] == "done"
    assert [record.getMessage() for record in caplog.records if "wait" in record.getMessage()] == [
        "tasks wait: the disk is full"
    ]
    with TestClient(app_of(engine), base_url=ORIGIN) as client:
        assert ended(client, first)["result"] == {"of": first}


def test_too_many_tasks_are_refused(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "QUEUED", 2)
    monkeypatch.setattr(manager, "evaluate_job", wait_for_ever)
    running = ask(client, "evaluate", JUDGED)
    until_running(client, running)
    for _ in range(2):
        ask(client, "evaluate", JUDGED)
    answered = client.post(f"{URL}/evaluate", json=JUDGED)
    assert (answered.status_code, answered.json()["code"]) == (503, "overloaded")
    assert answered.headers["retry-after"] == "1"


# ---- the file


def test_events_are_bounded_and_numbered_on(tmp_path: Path) -> None:
    store = TaskStore(tmp_path)
    task = store.add("refresh", "papers", {})
    for i in range(KEPT_EVENTS + 5):
        store.append_event(task, "metric", {"i": i})
    first = store.events(task, 0, limit=KEPT_EVENTS + 10)
    assert len(first) == KEPT_EVENTS
    assert (first[0].data, first[-1].number) == ({"i": 5}, KEPT_EVENTS + 5)
    store.close()


def test_only_so_many_ended_tasks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsearch.service.tasks.store.KEPT_TASKS", 3)
    store = TaskStore(tmp_path)
    oldest = store.add("refresh", "a", {})
    for _ in range(6):
        store.end(store.add("refresh", "a", {}), "done", result={})
    kept = store.list(100)
    assert oldest.id in {task.id for task in kept}  # it has not ended
    assert len(kept) == 4
    store.close()


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").write_bytes(b"no database " * 100)
    with pytest.raises(CorruptData, match=r"move tasks\.db and tasks-watermark away"):
        TaskStore(tmp_path)
    (tmp_path / "tasks.db").unlink()
    with sqlite3.connect(tmp_path / "tasks.db") as database:
        database.execute("PRAGMA user_version = 7")
    with pytest.raises(UnsupportedFormat, match="has format 7; this release reads 1 to 2"):
        TaskStore(tmp_path)


def test_a_readonly_home_has_no_tasks(engine: SearchEngine, papers: Collection) -> None:
    with SearchEngine(engine.home.path, readonly=True, encoder=WordEncoder) as reader:
        app = app_of(reader)
        with TestClient(app, base_url=ORIGIN) as client:
            answered = client.post(f"{URL}/refresh")
            assert (answered.status_code, answered.json()["code"]) == (409, "conflict")
            assert client.get(f"{URL}/search?query=cat").status_code == 200


def test_a_task_is_on_the_medium_before_it_is_acknowledged(tmp_path: Path) -> None:
    """SQLite syncs the write-ahead log at each commit with synchronous = FULL (2) alone."""
    store = TaskStore(tmp_path)
    connection = store._journal._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_a_full_disk_is_said_and_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = TaskStore(tmp_path)
    with tasks._journal._lock:
        connection = tasks._journal._connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")  # as a medium with no page left
    with pytest.raises(InsufficientStorage, match="the disk is full"):
        tasks.add("refresh", "papers", {"some": "x" * 1_000_000})
    tasks.close()
