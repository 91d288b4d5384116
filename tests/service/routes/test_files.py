"""`POST …/files`: files become documents in a task; names, bounds, scopes, and what a kill leaves."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient
from support.patience import LATEST_S
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN, WordEncoder, origin_of, serving, start_server
from support.service.tasks import JUDGED, ended
from support.syncs import recorded

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.files import ATTEMPTS
from dsearch.errors import Cancelled, CorruptData
from dsearch.service.keys import ApiKeys
from dsearch.service.tasks import manager, uploads
from dsearch.service.tasks.manager import TaskWork
from dsearch.service.tasks.store import TaskStore
from dsearch.service.wire import form

URL = "/v1/collections/papers/files"
HEADERS = {"content-type": "multipart/form-data; boundary=B"}


def send(client: TestClient, *files: tuple[str, bytes], url: str = URL) -> Any:
    return client.post(url, files=[("file", file) for file in files])


def taken(client: TestClient, *files: tuple[str, bytes]) -> dict[str, Any]:
    """The task, ended."""
    answer = send(client, *files)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/tasks/{answer.json()['id']}"
    return ended(client, answer.json()["id"])


def sent_forms(engine: SearchEngine) -> list[Path]:
    return sorted((engine.home.path / manager.FOLDER_NAME / uploads.FOLDER).glob("*"))


def test_files_become_documents_each_named_with_its_own(
    client: TestClient, papers: Collection, engine: SearchEngine
) -> None:
    task = taken(
        client,
        ("notes/grüße.md", b"# Greetings\n\nriver of zebras"),
        ("t.csv", b"id,text\na1,lamp\na2,stone\n"),
        ("x.bin", b"\0\1"),
        ("bad.pdf", b"%PDF no"),
    )
    assert (task["kind"], task["state"], task["problem"]) == ("files", "done", None)
    result = task["result"]
    assert [(one["name"], one["documents"], one["ids"]) for one in result["files"]] == [
        ("notes/grüße.md", 1, ["notes/grüße.md"]),
        ("t.csv", 2, ["a1", "a2"]),
        ("x.bin", 0, []),
        ("bad.pdf", 0, []),
    ]
    assert [one["reason"] is None for one in result["files"]] == [True, True, False, False]
    assert (result["inserted"], result["left_out"]) == (3, 2)
    (hit, *_) = client.get("/v1/collections/papers/search?query=zebras").json()["hits"]
    assert (hit["id"], hit["title"]) == ("notes/grüße.md", "Greetings")
    assert hit["metadata"]["folder"] == "notes"
    again = taken(client, ("t.csv", b"id,text\na2,pebble\n"))["result"]
    assert (again["updated"], again["deleted"]) == (1, 1)
    assert client.get("/v1/collections/papers/documents/a1").status_code == 404
    assert sent_forms(engine) == []


def test_nothing_that_can_be_read_is_a_failure_with_reasons(client: TestClient, papers: Collection) -> None:
    task = taken(client, ("x.bin", b"\0"))
    assert (task["state"], task["problem"]["code"]) == ("failed", "invalid_source")
    assert "x.bin" in task["problem"]["detail"]
    assert task["result"]["files"][0]["reason"]


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ('filename="grüße.txt"', "grüße.txt"),
        ("filename*=utf-8''gr%C3%BC%C3%9Fe.txt", "grüße.txt"),
        ('filename="=?utf-8?B?Z3LDvMOfZS50eHQ=?="', "grüße.txt"),
    ],
)
def test_names_arrive_however_they_are_written(
    client: TestClient, papers: Collection, name: str, stored: str
) -> None:
    head = f'--B\r\nContent-Disposition: form-data; name="any"; {name}\r\n\r\n'.encode()
    answer = client.post(URL, content=head + b"words\r\n--B--\r\n", headers=HEADERS)
    (file,) = ended(client, answer.json()["id"])["result"]["files"]
    assert (file["name"], file["ids"]) == (stored, [stored])


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"x", HEADERS, 422, "invalid_request"),
        (b"", HEADERS, 422, "invalid_request"),
        (b"x", {"content-type": "multipart/form-data"}, 422, "invalid_request"),
        (b"x", {"content-type": "application/pdf"}, 415, "unsupported_media_type"),
        (b"x", {**HEADERS, "content-encoding": "gzip"}, 415, "unsupported_media_type"),
        (
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n--B--\r\n',
            HEADERS,
            422,
            "invalid_request",
        ),
    ],
)
def test_what_is_no_form_leaves_nothing(
    client: TestClient,
    papers: Collection,
    engine: SearchEngine,
    content: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    answer = client.post(URL, content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert sent_forms(engine) == []
    assert client.get("/v1/tasks").json()["tasks"] == []


def test_a_request_has_bounds(
    client: TestClient, papers: Collection, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(client, ("a.txt", b"x"), url="/v1/collections/none/files").status_code == 404
    monkeypatch.setattr(form, "MAX_FILES", 1)
    assert send(client, ("a.txt", b"x"), ("b.txt", b"y")).status_code == 422
    monkeypatch.setattr(client.app.state.service.tasks.forms, "_max_bytes", 300)  # type: ignore[attr-defined]
    answer = send(client, ("a.txt", b"x" * 300))
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert taken(client, ("a.txt", b"x"))["state"] == "done"
    monkeypatch.setattr(manager, "QUEUED", 0)
    assert send(client, ("a.txt", b"x")).status_code == 503
    assert sent_forms(engine) == []


def test_a_readonly_server_takes_no_files(engine: SearchEngine, papers: Collection) -> None:
    with (
        SearchEngine(engine.home.path, readonly=True, encoder=WordEncoder) as reader,
        TestClient(patient_app(reader), base_url=ORIGIN) as client,
    ):
        assert send(client, ("a.txt", b"river")).status_code == 409
    assert sent_forms(engine) == []


@pytest.mark.parametrize(("scope", "status"), [("read", 403), ("write", 202), ("admin", 202)])
def test_files_need_a_key_that_writes(
    client: TestClient, engine: SearchEngine, papers: Collection, scope: str, status: int
) -> None:
    client.headers["authorization"] = f"Bearer {ApiKeys(engine.home.path).create('one', scope)[0]}"
    answer = send(client, ("a.txt", b"river"))
    assert answer.status_code == status, answer.text
    if status == 202:
        assert ended(client, answer.json()["id"])["state"] == "done"


def test_files_do_not_wait_for_a_training(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def endless(_: TaskWork, job: Any) -> Any:
        begun.set()
        while not job.cancelled():
            time.sleep(0.01)
        raise Cancelled("stopped")

    monkeypatch.setattr(TaskWork, "_evaluate", endless)
    busy = client.post("/v1/collections/papers/evaluate", json=JUDGED).json()["id"]
    assert begun.wait(LATEST_S)
    assert taken(client, ("a.txt", b"river"))["state"] == "done"
    assert client.get(f"/v1/tasks/{busy}").json()["state"] == "running"
    client.delete(f"/v1/tasks/{busy}")


def test_confidence_is_estimated_after_files(client: TestClient, papers: Collection) -> None:
    called = threading.Event()
    client.app.state.service.calibrate_soon = lambda name: called.set() if name == "papers" else None  # type: ignore[attr-defined]
    taken(client, ("a.txt", b"river"))
    assert called.wait(LATEST_S)


def test_no_reason_says_where_the_home_lies(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise CorruptData(f"{papers.store.path}/documents.db is damaged")

    monkeypatch.setattr(Collection, "upsert", fail)
    task = taken(client, ("a.txt", b"river"))
    assert (task["state"], task["problem"]["code"]) == ("failed", "corrupt_data")
    assert "papers/documents.db is damaged" in task["result"]["files"][0]["reason"]
    assert str(papers.store.path.parent) not in json.dumps(task)


# ---- durable


def test_files_are_on_the_medium_when_they_are_acknowledged(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = recorded(monkeypatch)
    answer = send(client, ("a.txt", b"river"))
    form_synced = next(n for n, event in enumerate(happened) if event.endswith(".form"))
    assert happened[form_synced + 1] == f"sync {uploads.FOLDER}"
    assert {f"sync {manager.FOLDER_NAME}", f"sync {papers.store.path.parent.name}"} <= {
        *happened[:form_synced]
    }
    ended(client, answer.json()["id"])


def test_files_that_were_changed_on_disk_are_refused(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager.Tasks, "_run_loop", lambda *_: None)
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        id = send(client, ("a.txt", b"river")).json()["id"]
        (kept,) = sent_forms(engine)
        kept.write_bytes(kept.read_bytes().replace(b"river", b"liver"))
    monkeypatch.undo()
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        task = ended(client, id)
    assert (task["state"], task["problem"]["code"]) == ("failed", "corrupt_data")
    assert sent_forms(engine) == []


def test_a_cancelled_task_leaves_no_file(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager.Tasks, "_run_loop", lambda *_: None)
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        id = send(client, ("a.txt", b"river")).json()["id"]
        assert len(sent_forms(engine)) == 1
        assert client.delete(f"/v1/tasks/{id}").json()["state"] == "cancelled"
    assert sent_forms(engine) == []


def test_a_server_that_died_many_times_still_goes_on(engine: SearchEngine, papers: Collection) -> None:
    """However often: the task itself leaves out a file that it cannot get past."""
    left = TaskStore(engine.home.path)
    tasks = manager.Tasks(engine, None, None)  # pyright: ignore[reportArgumentType]
    body = b'--B\r\nContent-Disposition: form-data; filename="a.txt"\r\n\r\nriver\r\n--B--\r\n'
    tasks.forms.folder.mkdir(parents=True)
    request = {"file": "0" * 32, "digest": hashlib.sha256(body).hexdigest()}
    tasks.forms.place(request).write_bytes(body)
    files = [{"name": "a.txt", "offset": body.index(b"river"), "size": 5}]
    task = left.add("files", "papers", {**request, "files": files})
    for _ in range(ATTEMPTS + 3):
        assert left.next() is not None
        left.requeue(task, begun=True)
    assert left.next() is not None
    left.close()
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        assert ended(client, task.id)["state"] == "done"
        assert client.get("/v1/collections/papers/documents/a.txt").json()["text"] == "river"


@pytest.mark.crash
def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    """A server that is killed while it reads goes on with the files until all of them are stored."""
    home = tmp_path / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers")
    files = {f"f{n}.txt": f"river {n} " * 200 for n in range(150)}
    parts = [
        f'--B\r\nContent-Disposition: form-data; filename="{name}"\r\n\r\n{text}\r\n'
        for name, text in files.items()
    ]
    body = ("".join(parts) + "--B--\r\n").encode()
    id = ""
    for seconds in (0.0, 0.4, 0.8, 1.2):
        process = start_server(home)
        origin = origin_of(process)
        id = id or httpx2.post(f"{origin}{URL}", content=body, headers=HEADERS).json()["id"]
        time.sleep(seconds)
        process.kill()
        process.wait(LATEST_S)
    with serving(home) as (origin, _):
        until = time.monotonic() + LATEST_S
        while not (task := httpx2.get(f"{origin}/v1/tasks/{id}").json())["ended"]:
            assert time.monotonic() < until
            time.sleep(0.1)
    assert (task["state"], task["result"]["left_out"]) == ("done", 0)
    with SearchEngine(home, readonly=True, encoder=WordEncoder) as engine:
        stored = {document.id: document.text for document in engine.collection("papers").store.export()}
    assert stored == {name: text.strip() for name, text in files.items()}
