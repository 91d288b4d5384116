"""Files that wait: they are in progress, can be left out, are bounded, and one failure hinders no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.patience import LATEST_S

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Cancelled
from dsearch.service.compat import files as file_routes
from dsearch.service.compat import store_parts
from dsearch.service.middleware import deadline
from dsearch.service.uploads import attaching
from dsearch.service.uploads.reading import MAX_DOCUMENTS
from dsearch.types import Document

FILES = "/v1/vector_stores/papers/files"
BATCHES = "/v1/vector_stores/papers/file_batches"


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """No file is read before this is called, and answers do not wait for it."""
    gate = threading.Event()
    original = attaching.documents_of

    def waits(*args: Any, **options: Any) -> Any:
        gate.wait(LATEST_S)
        return original(*args, **options)

    monkeypatch.setattr(attaching, "documents_of", waits)
    monkeypatch.setattr(store_parts, "PATIENCE_S", 0.0)
    monkeypatch.setattr(store_parts.attach, "__defaults__", (0.0,))
    yield gate.set
    gate.set()


def upload(client: TestClient, content: bytes = b"river", name: str = "a.txt") -> str:
    answer = client.post("/v1/files", data={"purpose": "assistants"}, files={"file": (name, content)})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def settled(client: TestClient, id: str) -> dict[str, Any]:
    """The file when it waits no more."""
    while True:
        answer = client.get(f"{FILES}/{id}")
        if answer.status_code != 200 or answer.json()["status"] != "in_progress":
            return answer.json()


def test_a_file_that_waits_is_in_progress(
    client: TestClient, papers: Collection, blocked: Callable[[], None]
) -> None:
    id = upload(client)
    for _ in range(2):  # attached twice, it is stored once
        answer = client.post(FILES, json={"file_id": id, "attributes": {"year": 7}}).json()
        assert (answer["status"], answer["attributes"], answer["usage_bytes"]) == (
            "in_progress",
            {"year": 7},
            0,
        )
    assert client.get(f"{FILES}/{id}").json()["status"] == "in_progress"
    listed = client.get(f"{FILES}?filter=in_progress").json()
    assert [one["id"] for one in listed["data"]] == [id]
    store = client.get("/v1/vector_stores/papers").json()
    assert (store["status"], store["file_counts"]["in_progress"]) == ("in_progress", 1)
    blocked()
    assert settled(client, id)["status"] == "completed"
    assert client.get(f"{FILES}?filter=in_progress").json()["data"] == []
    assert client.get("/v1/vector_stores/papers").json()["status"] == "completed"


def test_a_cancelled_batch_stores_nothing_more(
    client: TestClient, papers: Collection, blocked: Callable[[], None]
) -> None:
    ids = [upload(client) for _ in range(3)]
    batch = client.post(BATCHES, json={"file_ids": ids}).json()
    assert (batch["status"], batch["file_counts"]["in_progress"]) == ("in_progress", 3)
    answer = client.post(f"{BATCHES}/{batch['id']}/cancel").json()
    assert (answer["status"], answer["file_counts"]["cancelled"]) == ("cancelled", 3)
    blocked()
    last = upload(client)  # its turn comes when those before are over
    client.post(FILES, json={"file_id": last})
    assert settled(client, last)["status"] == "completed"
    assert settled(client, ids[0])["status"] == "cancelled"
    assert client.get(f"/v1/collections/papers/documents/{ids[0]}").status_code == 404


def test_only_so_many_may_wait(
    client: TestClient, papers: Collection, blocked: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "MAX_WAITING", 2)
    ids = [upload(client) for _ in range(3)]
    assert client.post(BATCHES, json={"file_ids": ids[:2]}).status_code == 200
    answer = client.post(FILES, json={"file_id": ids[2]})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"]["code"] == "overloaded"
    blocked()


def test_a_file_that_is_deleted_while_it_waits_is_not_stored(
    client: TestClient, papers: Collection, blocked: Callable[[], None]
) -> None:
    id, other = upload(client), upload(client)
    client.post(FILES, json={"file_id": id})
    client.post(FILES, json={"file_id": other})
    assert client.delete(f"{FILES}/{id}").json()["deleted"]
    assert client.delete(f"/v1/files/{other}").json()["deleted"]
    blocked()
    assert settled(client, other)["status"] == "failed"
    assert client.get(f"{FILES}/{id}").status_code == 404


def test_a_file_that_is_deleted_when_it_is_read_is_not_stored(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = upload(client)
    original = attaching.documents_of

    def deletes(*args: Any, **options: Any) -> Any:
        documents = original(*args, **options)
        client.app.state.service.uploads.delete(id)  # type: ignore[attr-defined]
        return documents

    monkeypatch.setattr(attaching, "documents_of", deletes)
    assert client.post(FILES, json={"file_id": id}).json()["status"] == "failed"
    assert client.get(f"/v1/collections/papers/documents/{id}").status_code == 404


def test_a_stopped_service_stores_what_is_begun_or_nothing(
    client: TestClient, engine: SearchEngine, papers: Collection, blocked: Callable[[], None]
) -> None:
    ids = [upload(client) for _ in range(2)]
    id = client.post(BATCHES, json={"file_ids": ids}).json()["id"]
    attachments = client.app.state.service.attachments  # type: ignore[attr-defined]
    blocked()
    client.portal.call(attachments.stop)  # type: ignore[union-attr]
    batch = attachments.batch("papers", id)
    assert batch.work.done()  # the engine may be closed now
    assert batch.status != "in_progress"
    answer = client.post(FILES, json={"file_id": ids[0]})
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")


def test_a_failure_of_the_service_is_named_and_hinders_no_other(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = upload(client), upload(client, b"lamp")
    original = attaching.documents_of

    def fails(file: Any, *args: Any, **options: Any) -> Any:
        if file.id == bad:
            raise RuntimeError("broken")
        return original(file, *args, **options)

    monkeypatch.setattr(attaching, "documents_of", fails)
    batch = client.post(BATCHES, json={"file_ids": [bad, good]}).json()
    assert (batch["status"], batch["file_counts"]["failed"]) == ("completed", 1)
    error = client.get(f"{FILES}/{bad}").json()["last_error"]
    assert error["code"] == "server_error"
    assert "broken" not in error["message"]
    assert f"file {bad} could not be attached to papers" in caplog.text  # where the message says it is
    assert "broken" in caplog.text


def test_what_is_forgotten_is_the_oldest(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "MAX_WAITING", 2)
    monkeypatch.setattr(attaching, "MAX_FAILED", 0)
    monkeypatch.setattr(attaching, "MAX_BATCHES", 2)
    batches = []
    for _ in range(4):
        bad = upload(client, b"x", "odd.exe")
        batches.append(client.post(BATCHES, json={"file_ids": [bad]}).json()["id"])
    failed = client.get(f"{FILES}?filter=failed").json()["data"]
    assert len(failed) == 2
    assert failed[-1]["id"] == bad
    assert [client.get(f"{BATCHES}/{id}").status_code for id in batches] == [404, 404, 200, 200]


def test_files_that_failed_wait_no_more(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "MAX_WAITING", 1)
    for _ in range(3):
        answer = client.post(FILES, json={"file_id": upload(client, b" ")})
        assert (answer.status_code, answer.json()["status"]) == (200, "failed")
    assert client.put("/v1/collections/other", json={}).is_success
    of_each = [
        client.get(f"/v1/vector_stores/{name}/files?filter=failed").json() for name in ("papers", "other")
    ]
    assert [len(listed["data"]) for listed in of_each] == [3, 0]


@pytest.mark.parametrize(
    ("own", "count"),
    [
        ({"file": "a", "parts": 3}, 3),
        ({"file": "a", "parts": MAX_DOCUMENTS + 7}, MAX_DOCUMENTS),
        ({"file": "a", "parts": "3"}, 1),
        ({}, 1),
        ("text", 1),
        (None, 1),
    ],
)
def test_metadata_that_anybody_may_write_are_not_believed(papers: Collection, own: Any, count: int) -> None:
    papers.upsert([Document("a", "river", metadata={} if own is None else {"_upload": own})])
    ids = attaching.ids_of(papers, "a")
    assert (len(ids), ids[0]) == (count, "a")
    assert attaching.ids_of(papers, "nobody") == []


def test_a_batch_in_progress_is_kept_however_many_follow(
    client: TestClient, papers: Collection, blocked: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "MAX_BATCHES", 1)
    ids = [client.post(BATCHES, json={"file_ids": [upload(client)]}).json()["id"] for _ in range(2)]
    assert [client.get(f"{BATCHES}/{id}").json()["status"] for id in ids] == ["in_progress"] * 2
    blocked()


def test_a_file_that_is_attached_twice_hinders_no_other(
    client: TestClient, papers: Collection, blocked: Callable[[], None]
) -> None:
    twice, other = upload(client), upload(client)
    client.post(FILES, json={"file_id": twice})
    id = client.post(BATCHES, json={"file_ids": [twice, other]}).json()["id"]
    attachments = client.app.state.service.attachments  # type: ignore[attr-defined]
    blocked()
    client.portal.call(attachments.settle, attachments.batch("papers", id), LATEST_S)  # type: ignore[union-attr]
    assert client.get(f"{BATCHES}/{id}").json()["status"] == "completed"
    assert client.get(f"{FILES}?filter=in_progress").json()["data"] == []


def test_files_are_read_one_at_a_time_and_not_by_the_time_of_a_request(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that attaches them may have been answered long before; who waits for the end is told."""
    attachments = client.app.state.service.attachments  # type: ignore[attr-defined]
    original, seen, written = attaching.documents_of, list[Any](), list[str]()
    monkeypatch.setattr(attachments, "_after", written.append)

    def noting(*args: Any, **options: Any) -> Any:
        seen.append((attachments._turn.locked(), deadline.present()))
        return original(*args, **options)

    monkeypatch.setattr(attaching, "documents_of", noting)
    answer = client.post(FILES, json={"file_id": upload(client)}, headers={deadline.HEADER: "9000"})
    assert answer.json()["status"] == "completed"
    assert (seen, written) == ([(True, None)], ["papers"])
    assert client.post(FILES, json={"file_id": upload(client, b" ")}).json()["status"] == "failed"
    assert written == ["papers"]


def test_what_a_stopping_service_left_out_was_cancelled(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not fail: the same file can be attached again."""

    def stops(*_: Any, **__: Any) -> Any:
        raise Cancelled("read_apart was cancelled")

    monkeypatch.setattr(attaching, "documents_of", stops)
    answer = client.post(FILES, json={"file_id": upload(client)}).json()
    assert (answer["status"], answer["last_error"]) == ("cancelled", None)


def test_a_file_above_the_limit_is_refused(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_routes, "MAX_STREAM_BYTES", 1000)
    form = {"data": {"purpose": "assistants"}, "files": {"file": ("a.txt", bytes(70_000))}}
    answer = client.post("/v1/files", **form)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert client.get("/v1/files").json()["data"] == []


RECORDS = b"".join(b'{"text": "river %d"}\n' % number for number in range(3))


def parts_of(papers: Collection, id: str) -> dict[str, Any]:
    """The metadata of each part that is stored."""
    every = papers.store.rows_of([id, *(f"{id}#{part}" for part in range(2, 6))])
    return {found: papers.store.get(found).metadata for found in every}


def test_a_file_that_is_stored_again_leaves_no_earlier_part(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = upload(client, RECORDS, "a.jsonl")
    assert client.post(FILES, json={"file_id": id}).json()["status"] == "completed"
    assert [*parts_of(papers, id)] == [id, f"{id}#2", f"{id}#3"]
    original = attaching.documents_of
    monkeypatch.setattr(attaching, "documents_of", lambda *args, **options: original(*args, **options)[:2])
    assert client.post(FILES, json={"file_id": id}).json()["status"] == "completed"
    assert [*parts_of(papers, id)] == [id, f"{id}#2"]


def test_attributes_are_set_in_every_part(client: TestClient, papers: Collection) -> None:
    id = upload(client, RECORDS, "a.jsonl")
    client.post(FILES, json={"file_id": id, "attributes": {"year": 7, "by": "ann"}})
    answer = client.post(f"{FILES}/{id}", json={"attributes": {"year": 8}})
    assert answer.json()["attributes"]["year"] == 8
    found = parts_of(papers, id).values()
    assert [(metadata["year"], metadata["by"]) for metadata in found] == [(8, "ann")] * 3
    other = client.put("/v1/collections/papers/documents", json=[{"id": "plain", "text": "river"}])
    assert other.status_code == 200
    assert client.post(f"{FILES}/plain", json={"attributes": {"year": 9}}).json()["attributes"] == {"year": 9}


def test_files_are_listed_by_their_status_alone(
    client: TestClient, papers: Collection, blocked: Callable[[], None]
) -> None:
    waiting, cancelled, failed = upload(client), upload(client), upload(client, b" ")
    batch = client.post(BATCHES, json={"file_ids": [cancelled]}).json()
    client.post(f"{BATCHES}/{batch['id']}/cancel")
    client.post(FILES, json={"file_id": waiting})

    def listed(status: str) -> list[str]:
        return [one["id"] for one in client.get(f"{FILES}?filter={status}&after=e").json()["data"]]

    assert (listed("in_progress"), listed("cancelled"), listed("failed")) == ([waiting], [cancelled], [])
    blocked()
    client.post(FILES, json={"file_id": failed})
    assert settled(client, waiting)["status"] == "completed"
    assert settled(client, failed)["status"] == "failed"
    assert (listed("in_progress"), listed("cancelled"), listed("failed")) == ([], [cancelled], [failed])
    assert waiting in listed("completed")
    assert not {cancelled, failed} & {*listed("completed")}


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ((), "completed"),
        (("completed",), "completed"),
        (("failed", "failed"), "failed"),
        (("failed", "completed"), "completed"),
        (("cancelled", "completed"), "cancelled"),
        (("cancelled", "failed"), "cancelled"),
        (("cancelled", "in_progress", "failed"), "in_progress"),
    ],
)
def test_the_state_of_a_batch_is_that_of_its_files(states: tuple[attaching.Status, ...], status: str) -> None:
    files = [attaching.Attachment("papers", "f", {}, 0, state) for state in states]
    assert attaching.AttachedBatch("b", "papers", 0, files).status == status
