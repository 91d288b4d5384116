"""Files and their vector stores without the client of OpenAI: bounds, repetitions, what stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN, WordEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.service.compat import files
from dsearch.service.compat.store_batches import BatchCreate
from dsearch.service.errors import BodyTooLarge
from dsearch.service.uploads.files import FOLDER

STORE = "/v1/vector_stores/papers"


def uploaded(client: TestClient, text: str = "river", **form: str) -> Any:
    return client.post("/v1/files", files={"file": ("a.txt", text)}, data=form or {"purpose": "assistants"})


@pytest.fixture
def store(client: TestClient) -> TestClient:
    assert client.post("/v1/vector_stores", json={"name": "papers"}).status_code == 200
    return client


def counts(client: TestClient) -> dict[str, int]:
    return client.get(STORE).json()["file_counts"]


@pytest.mark.parametrize(("length", "refused"), [(1000, False), (4000, True)])
def test_a_file_is_bounded_however_its_parts_are_cut(
    monkeypatch: pytest.MonkeyPatch, length: int, refused: bool
) -> None:
    monkeypatch.setattr(files, "MAX_STREAM_BYTES", 1000)
    monkeypatch.setattr(files, "_FRAME_BYTES", 500)
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    left = [head, *[b"y" * 100] * (length // 100), b"\r\n--x--\r\n"]

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def read() -> int:
        headers = [(b"content-type", b"multipart/form-data; boundary=x")]
        request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        async with files._form_of(request) as form:  # pyright: ignore[reportPrivateUsage]
            return len(await form["file"].read())

    if refused:
        with pytest.raises(BodyTooLarge, match="a file of more than 1000 bytes; split it"):
            asyncio.run(read())
        assert len(left) > 20  # and what follows is not read
    else:
        assert asyncio.run(read()) == length


def test_a_file_needs_a_purpose(client: TestClient) -> None:
    for form in ({"purpose": ""}, {"purpose": "vision"}, {"purpose": "user_data", "x": "y"}):
        assert uploaded(client, **form).status_code == 422, form
    refused = client.post("/v1/files", files={"file": ("a.txt", "river")})
    assert (refused.status_code, "use assistants or user_data" in refused.text) == (422, True)
    assert client.get("/v1/files").json()["data"] == []


def test_attributes_of_each_kind_are_told(store: TestClient) -> None:
    file = uploaded(store).json()["id"]
    given = {"share": 0.5, "year": 7, "kind": "x", "done": True}
    attached = store.post(f"{STORE}/files", json={"file_id": file, "attributes": given}).json()
    (found,) = store.post(f"{STORE}/search", json={"query": "river"}).json()["data"]
    for answer in (attached, found):
        assert given.items() <= answer["attributes"].items(), answer


def test_a_file_that_is_stored_and_then_fails_is_listed_once(store: TestClient, engine: SearchEngine) -> None:
    file = uploaded(store, "river of music").json()["id"]
    assert store.post(f"{STORE}/files", json={"file_id": file}).json()["status"] == "completed"
    for path in engine.home.path.rglob("*"):
        if path.is_file() and path.read_bytes() == b"river of music":
            path.write_bytes(b"river of musik")
    assert store.post(f"{STORE}/files", json={"file_id": file}).json()["status"] == "failed"
    listed = store.get(f"{STORE}/files").json()["data"]
    assert [(entry["id"], entry["status"]) for entry in listed] == [(file, "failed")]


def test_a_store_that_is_made_anew_knows_nothing_of_the_old_one(store: TestClient) -> None:
    file = uploaded(store, " ").json()["id"]
    assert store.post(f"{STORE}/files", json={"file_id": file}).json()["status"] == "failed"
    assert counts(store)["failed"] == 1
    assert store.delete(STORE).json()["deleted"]
    store.post("/v1/vector_stores", json={"name": "papers"})
    assert counts(store) == dict.fromkeys(("in_progress", "completed", "failed", "cancelled", "total"), 0)


def test_one_failed_file_is_taken_out_and_another_stays(store: TestClient) -> None:
    failed = [uploaded(store, " " * number).json()["id"] for number in (1, 2)]
    for file in failed:
        store.post(f"{STORE}/files", json={"file_id": file})
    assert counts(store)["failed"] == 2
    assert store.delete(f"{STORE}/files/{failed[0]}").json()["deleted"]
    assert [entry["id"] for entry in store.get(f"{STORE}/files").json()["data"]] == failed[1:]


def test_what_the_service_knows_of_a_file_is_not_changed_by_its_attributes(store: TestClient) -> None:
    file = uploaded(store).json()["id"]
    store.post(f"{STORE}/files", json={"file_id": file})
    refused = store.post(f"{STORE}/files/{file}", json={"attributes": {"_upload": "x", "year": 7}})
    assert (refused.status_code, "the service's own name" in refused.text) == (422, True)
    (listed,) = store.get(f"{STORE}/files").json()["data"]
    assert "year" not in listed["attributes"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "neither file_ids nor files; give one of the two"),
        ({"file_ids": ["a"], "files": [{"file_id": "b"}]}, "file_ids and files; give one of the two"),
        (
            {"files": [{"file_id": "b"}], "attributes": {"x": 1}},
            "attributes beside files; give them with each",
        ),
    ],
    ids=["neither", "both", "attributes"],
)
def test_a_batch_is_given_in_one_way(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BatchCreate.model_validate(given)


def test_a_readonly_service_takes_no_file(engine: SearchEngine, papers: Collection) -> None:
    with (
        SearchEngine(engine.home.path, readonly=True, encoder=WordEncoder) as reader,
        TestClient(patient_app(reader), base_url=ORIGIN) as client,
    ):
        assert uploaded(client).status_code == 409
    assert not (engine.home.path / FOLDER).exists()
