"""Files of models that were sent to be judged: bounded, verified, and gone when their tasks have ended."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save
from starlette.requests import ClientDisconnect, Request
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN, WordEncoder, documents
from support.service.tasks import ended
from support.syncs import recorded

from dsearch.engine import SearchEngine, head_tensors
from dsearch.engine.models import tensors as tensors_module
from dsearch.engine.models.tensors import request_of_file
from dsearch.errors import Cancelled, CorruptData, InvalidRequest
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, Overloaded
from dsearch.service.keys import ApiKeys
from dsearch.service.tasks import manager
from dsearch.service.tasks import uploads as module
from dsearch.service.tasks.manager import Tasks, TaskWork
from dsearch.service.tasks.store import TaskStore
from dsearch.service.tasks.uploads import TaskUploads

URL = "/v1/collections/papers/models/save"
JUDGED = {"queries": {"a": "b"}, "judgements": {"a": {"d001": 1}}}
TENSORS = {"content-type": "application/x-safetensors"}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as opened:
        opened.create("papers").ingest(documents(6))
        yield opened


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tasks wait, as behind a long training; their requests."""
    waiting = list[Any]()

    def stall(work: TaskWork, job: Any) -> Any:
        waiting.append(job)
        while not job.cancelled():
            time.sleep(0.01)
        raise Cancelled("stopped")

    monkeypatch.setattr(TaskWork, "_evaluate", stall)
    return waiting


@pytest.fixture
def client(engine: SearchEngine) -> Iterator[TestClient]:
    with TestClient(patient_app(engine), base_url=ORIGIN) as connected:
        yield connected


def body_of(engine: SearchEngine) -> bytes:
    head = head_tensors(engine.collection("papers").head("v0"))
    return save({name: tensor.numpy() for name, tensor in head.items()}, {"request": json.dumps({})})


def files_of(engine: SearchEngine) -> list[Path]:
    folder = engine.home.path / ".tasks" / module.FOLDER
    return sorted(folder.iterdir()) if folder.exists() else []


def sent(*parts: bytes | BaseException, length: int | None = None) -> Request:
    """A request whose body comes in parts; an error is raised where it stands."""
    left = list(parts)

    async def receive() -> Any:
        part = left.pop(0)
        if isinstance(part, BaseException):
            raise part
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return Request({"type": "http", "headers": headers}, receive)


def received(uploads: TaskUploads, request: Request) -> dict[str, str]:
    return asyncio.run(uploads.receive(request))


def test_a_body_is_on_disk_as_it_was_sent(tmp_path: Path) -> None:
    uploads = TaskUploads.of_models(tmp_path)
    parts = [bytes([n]) * 700_000 for n in range(4)]
    upload = received(uploads, sent(*parts))
    place = uploads.verified(upload)
    assert place.read_bytes() == b"".join(parts)
    assert place.parent == tmp_path / module.FOLDER
    place.write_bytes(b"".join(parts)[:-1] + b"\x09")
    with pytest.raises(CorruptData, match="gone from the disk"):
        uploads.verified(upload)
    uploads.delete(upload)
    uploads.delete({})
    with pytest.raises(CorruptData, match="gone from the disk"):
        uploads.verified(upload)


def test_a_body_is_on_the_medium_when_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = recorded(monkeypatch)
    name = received(TaskUploads.of_models(tmp_path), sent(b"x"))["file"]
    assert happened[-2:] == [f"sync {name}.safetensors", f"sync {module.FOLDER}"]
    assert len(happened) == 4  # the folders above, which it made


@pytest.mark.parametrize(
    ("request_sent", "error"),
    [
        (sent(b"x", length=101), BodyTooLarge),
        (sent(b"x" * 60, b"x" * 60), BodyTooLarge),
        (sent(b"x", ClientDisconnect()), ClientDisconnect),
        (sent(b"x", asyncio.CancelledError()), asyncio.CancelledError),  # as when the server stops
    ],
)
def test_nothing_is_left_of_what_was_refused(
    tmp_path: Path, request_sent: Request, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        received(TaskUploads.of_models(tmp_path, 100), request_sent)
    assert list((tmp_path / module.FOLDER).iterdir()) == []


def test_too_many_bytes_that_wait_are_an_overload(tmp_path: Path) -> None:
    uploads = TaskUploads.of_models(tmp_path, 100)
    first = [received(uploads, sent(b"x" * 100)) for _ in range(module.WAITING)]
    with pytest.raises(Overloaded, match="800 bytes"):
        received(uploads, sent(b"x"))
    uploads.delete(first[0])
    received(uploads, sent(b"x"))


def test_a_model_that_waits_is_kept_however_many_tasks_ended_since(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tasks, "_run_loop", lambda *_: None)
    monkeypatch.setattr(manager, "QUEUED", 2)
    upload = received(TaskUploads.of_models(engine.home.path / ".tasks"), sent(b"x"))
    store = TaskStore(engine.home.path)
    store.add("save", "papers", dict(upload))
    for _ in range(manager.QUEUED + 1):
        store.cancel_queued(store.add("compact", "papers", {}).id)
    store.close()
    tasks = Tasks(engine, Catalogue(engine), lambda: engine)
    tasks.start()
    assert tasks.uploads.verified(upload).read_bytes() == b"x"
    tasks.stop()


def test_what_no_task_names_is_deleted(tmp_path: Path) -> None:
    uploads = TaskUploads.of_models(tmp_path)
    uploads.keep_only([])
    one, other = (received(uploads, sent(b"x")) for _ in range(2))
    uploads.keep_only([{"queries": {}}, {**one}])
    assert uploads.verified(one).exists()
    with pytest.raises(CorruptData):
        uploads.verified(other)


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EIO, 503)])
def test_a_disk_that_fails_is_told(
    client: TestClient, engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    def failing(*_: object) -> None:
        raise OSError(number, "of the disk")

    monkeypatch.setattr(module, "_write", failing)
    answer = client.post(URL, content=body_of(engine), headers=TENSORS)
    assert answer.status_code == status, answer.text
    assert "(of the disk)" in answer.json()["detail"]
    assert files_of(engine) == []


def test_a_file_goes_with_its_task(engine: SearchEngine, stalled: list[Any]) -> None:
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        busy = client.post("/v1/collections/papers/evaluate", json=JUDGED)
        waiting = [client.post(URL, content=body_of(engine), headers=TENSORS).json()["id"] for _ in range(2)]
        assert len(files_of(engine)) == 2
        client.delete(f"/v1/tasks/{waiting[0]}")
        assert len(files_of(engine)) == 1
        (kept,) = files_of(engine)
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")
        client.delete(f"/v1/tasks/{busy.json()['id']}")
        task = ended(client, waiting[1])
        assert (task["state"], task["problem"]["code"]) == ("failed", "corrupt_data")
    assert files_of(engine) == []  # the thread of tasks has ended: it deletes after it has told the end


def test_what_cannot_be_taken_on_is_refused_before_it_is_received(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = body_of(engine)
    with TestClient(patient_app(engine, model_upload_bytes=len(body) - 1), base_url=ORIGIN) as client:
        large = client.post(URL, content=body, headers=TENSORS)
        assert (large.status_code, large.json()["code"]) == (413, "body_too_large")
        monkeypatch.setattr(manager, "QUEUED", 0)
        full = client.post(URL, content=body, headers=TENSORS)
        assert (full.status_code, full.json()["code"]) == (503, "overloaded")


def test_a_refused_model_leaves_no_file(client: TestClient, engine: SearchEngine) -> None:
    bad = save({}, {"request": json.dumps({"parent": "v9"})})
    assert client.post(URL, content=bad, headers=TENSORS).status_code in (404, 422)
    assert client.post(URL.replace("papers", "other"), content=bad, headers=TENSORS).status_code == 404
    assert files_of(engine) == []


def test_a_restart_keeps_what_waits(engine: SearchEngine, stalled: list[Any]) -> None:
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        client.post("/v1/collections/papers/evaluate", json=JUDGED)
        id = client.post(URL, content=body_of(engine), headers=TENSORS).json()["id"]
        (kept,) = files_of(engine)
    left = kept.with_name(f"{'0' * 32}.safetensors")  # of a server that ended while it came
    left.write_bytes(b"half")
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        assert files_of(engine) == [kept]
        assert client.get(f"/v1/tasks/{id}").json()["state"] == "queued"


def test_a_restart_keeps_the_model_of_what_ran_before_a_full_queue(
    engine: SearchEngine, stalled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "QUEUED", 1)
    monkeypatch.setattr(TaskWork, "_save", TaskWork._evaluate)
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        assert client.post(URL, content=body_of(engine), headers=TENSORS).status_code == 202
        while not stalled:
            time.sleep(0.01)
        assert client.post(URL, content=body_of(engine), headers=TENSORS).status_code == 202
        kept = files_of(engine)
        assert len(kept) == 2
    with TestClient(patient_app(engine), base_url=ORIGIN):
        assert files_of(engine) == kept


@pytest.mark.parametrize("scope", ["read", "write"])
def test_only_keys_of_scope_admin_send_models(engine: SearchEngine, scope: Any) -> None:
    secret = ApiKeys(engine.home.path).create("one", scope)[0]
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        headers = {**TENSORS, "authorization": f"Bearer {secret}"}
        answer = client.post(URL, content=body_of(engine), headers=headers)
    assert answer.status_code == 403
    assert "needs admin" in answer.json()["detail"]
    assert files_of(engine) == []


def test_a_header_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "sent"
    place.write_bytes(save({}, {"request": json.dumps({"record": {"x": "y" * 200}})}))
    assert request_of_file(place)["record"] == {"x": "y" * 200}
    monkeypatch.setattr(tensors_module, "MAX_HEADER_BYTES", 100)
    with pytest.raises(InvalidRequest, match=r"a header of \d+ bytes with its request; use at most 100"):
        request_of_file(place)
