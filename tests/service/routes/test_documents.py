"""Collections, documents and models over HTTP: what is acknowledged is there, what is refused is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.service_fakes import documents
from support.service.shapes import checked

from dsearch.engine import calls
from dsearch.results import CollectionInfo, WriteResult
from dsearch.service.routes import documents as routes_documents
from dsearch.service.schemas.answers import CollectionList
from dsearch.service.wire import requests
from dsearch.store import validate
from dsearch.types import Document

URL = "/v1/collections/notes"
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def notes(client: TestClient) -> TestClient:
    assert client.put(URL).status_code == 201
    return client


def put(client: TestClient, *given: dict[str, Any]) -> Any:
    return client.put(f"{URL}/documents", json=list(given))


def stream(client: TestClient, *lines: str | bytes) -> Any:
    content = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
    return client.put(f"{URL}/documents", content=content, headers=NDJSON)


# ---- collections


def test_a_collection_is_made_once_listed_and_deleted(client: TestClient) -> None:
    assert client.get("/v1/collections").json() == {"collections": []}
    made = client.put(URL)
    assert made.status_code == 201
    described = checked(CollectionInfo, made.json())
    assert (described.name, described.documents, described.model) == ("notes", 0, "v0")
    assert client.put(URL).status_code == 200
    listed = checked(CollectionList, client.get("/v1/collections").json())
    assert [one.name for one in listed.collections] == ["notes"]
    assert client.delete(URL).status_code == 204
    assert client.get(URL).status_code == 404
    assert client.delete(URL).json()["code"] == "collection_not_found"
    assert client.put(URL).status_code == 201


@pytest.mark.parametrize("name", ["A", "a.b", "-a", "a" * 65, "%2e%2e", "a%20b", "é"])
def test_a_name_is_never_a_path(client: TestClient, name: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answered = client.request(method, f"/v1/collections/{name}")
        assert answered.status_code == 422, method
        assert "use 1 to 64 of the characters" in answered.json()["detail"]


# ---- documents


def test_what_is_written_is_found_and_read_back(notes: TestClient) -> None:
    given = {
        "id": "a/b c?",
        "title": "Über",
        "text": "cat 🐈",
        "metadata": {"n": [1, None, 2.5]},
        "value": [1.0],
    }
    written = put(notes, given, {"id": "b", "text": "dog"})
    assert written.status_code == 200
    receipt = checked(WriteResult, written.json())
    assert (receipt.inserted, receipt.updated, receipt.unchanged) == (2, 0, 0)
    read = notes.get(f"{URL}/documents/a%2Fb%20c%3F")
    assert checked(Document, read.json())
    assert read.json() == given
    found = notes.post(f"{URL}/search", json={"query": "cat"}).json()
    assert found["hits"][0]["id"] == "a/b c?"
    assert found["sequence"] == receipt.sequence

    again = put(notes, given, {"id": "b", "text": "dog and cat"}).json()
    assert (again["inserted"], again["updated"], again["unchanged"]) == (0, 1, 1)
    assert again["sequence"] > receipt.sequence


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"text": "x"}], "0.id is missing"),
        ([{"id": "a", "text": "x"}, {"id": 7.5, "text": "x"}], "1.id=7.5; use a string of 1 to 512 bytes"),
        ([{"id": "", "text": "x"}], "0.id=''; use a string of 1 to 512 bytes"),
        ([{"id": "a"}], "document 0 (id 'a') has neither title nor text"),
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], "is also document 0 of this batch"),
        ([{"id": "a", "text": None}], "document 0 (id 'a') has neither title nor text"),
        ([{"id": "a", "text": 1}], "0.text=1; use a string"),
        ([{"id": "a", "text": "x", "metadata": []}], "0.metadata=[]; use an object"),
        ([{"id": "a", "text": "x", "value": "7"}], "0.value='7'; use a finite number or a list"),
        ([{"id": "a", "text": "x", "value": True}], "0.value=True; use a finite number or a list"),
        (
            [{"id": "a", "text": "x", "colour": 1, "metadata": {"colour": 2}}],
            "'colour' stands in the metadata",
        ),
        ([{"id": "x" * 513, "text": "x"}], "has 513 bytes of id; at most 512"),
        ([{"id": "a", "text": "x" * (2**20 + 1)}], "bytes of text; at most 1048576"),
        ({"id": "a", "text": "x"}, "a body of type object; use an array"),
        ([1], "0=1; use a JSON object"),
    ],
)
def test_an_array_is_stored_whole_or_not_at_all(notes: TestClient, given: Any, says: str) -> None:
    before = notes.get(URL).json()
    answered = notes.put(f"{URL}/documents", json=given)
    assert answered.status_code == 422
    assert says in answered.json()["detail"]
    assert notes.get(URL).json() == before


def test_of_a_stream_every_good_line_is_stored(notes: TestClient) -> None:
    answered = stream(
        notes,
        '{"id": "a", "text": "cat"}',
        "not json",
        "",
        '{"id": "b"}',
        '{"id": "c", "text": "x", "colour": 1, "metadata": {"colour": 2}}',
        '{"id": "a", "text": "again"}',
        '{"id": "d", "text": "' + "\\ud800" + '"}',
        b'{"id": "e", "text": "\xff"}',
        '{"id": "f", "text": "dog"}\r',
        '{"id": "g", "id": "h", "text": "x"}',
        '{"id": "z", "text": "last, without a line feed"}',
    )
    assert answered.status_code == 200
    written = checked(WriteResult, answered.json())
    assert (written.inserted, written.refused) == (3, 7)
    refused = {problem.line: problem for problem in written.problems}
    assert list(refused) == [2, 4, 5, 6, 7, 8, 10]
    assert refused[2].code == "invalid_json"
    assert "the document (id 'b') has neither title nor text" in refused[4].detail
    assert "'colour' stands in the metadata" in refused[5].detail
    assert "id 'a' stands on line 1 too" in refused[6].detail
    assert "'id' stands twice in one object" in refused[10].detail
    assert [one["id"] for one in notes.get(f"{URL}/documents").json()["documents"]] == ["a", "f", "z"]


def test_each_line_is_checked_once(notes: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    check = validate._prepare
    monkeypatch.setattr(validate, "_prepare", lambda one: checked.append(one.id) or check(one))
    answered = stream(notes, '{"id": "a", "text": "cat"}', '{"id": "b"}', '{"id": "c", "text": "dog"}')
    assert (answered.json()["inserted"], checked) == (2, ["a", "b", "c"])


def test_a_long_stream_is_stored_block_by_block(notes: TestClient) -> None:
    lines = [json.dumps({"id": one.id, "text": one.text, "title": one.title}) for one in documents(700)]
    answered = stream(notes, *lines)
    assert answered.json()["inserted"] == 700
    assert answered.json()["sequence"] == notes.get(URL).json()["sequence"]
    assert notes.get(URL).json()["documents"] == 700


def test_a_stream_that_breaks_off_says_what_was_stored(notes: TestClient) -> None:
    lines = [json.dumps({"id": str(i), "text": "cat"}) for i in range(300)]
    answered = stream(notes, *lines, '{"id": "long", "text": "' + "x" * (4 * 2**20))
    assert (answered.status_code, answered.json()["code"]) == (413, "body_too_large")
    assert "line 301 has more than" in answered.json()["detail"]
    assert answered.json()["written"]["inserted"] == 256
    assert notes.get(URL).json()["documents"] == 256


def test_what_was_stored_is_calibrated_soon(
    notes: TestClient, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon: list[str] = []
    monkeypatch.setattr(app.state.service, "calibrate_soon", soon.append)
    assert (stream(notes, "{").status_code, put(notes, {"id": ""}).status_code) == (422, 422)
    assert soon == []
    assert put(notes, {"id": "a", "text": "cat"}).status_code == 200
    assert soon == ["notes"]
    assert stream(notes, '{"id": "b", "text": "dog"}', "{").status_code == 200
    assert soon == ["notes", "notes"]


def test_a_stream_without_a_good_line_is_refused(notes: TestClient) -> None:
    answered = stream(notes, "no", "[]")
    assert (answered.status_code, answered.json()["code"]) == (422, "invalid_document")
    assert [problem["line"] for problem in answered.json()["written"]["problems"]] == [1, 2]
    assert stream(notes).json()["inserted"] == 0


def test_writes_to_a_collection_that_is_not_there(client: TestClient) -> None:
    for answered in (
        put(client, {"id": "a", "text": "x"}),
        stream(client, '{"id": "a", "text": "x"}'),
        stream(client),
    ):
        assert (answered.status_code, answered.json()["code"]) == (404, "collection_not_found")


def test_a_page_of_long_texts_is_cut(notes: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    put(notes, *({"id": f"{i:03d}", "text": "cat"} for i in range(120)))
    monkeypatch.setattr(calls, "PAGE_CHARACTERS", 100)
    page = notes.get(f"{URL}/documents", params={"limit": 1000}).json()
    assert len(page["documents"]) == 50
    rest = notes.get(f"{URL}/documents", params={"limit": 1000, "cursor": page["next"]}).json()
    assert rest["documents"][0]["id"] == "050"


@pytest.mark.parametrize("cursor", ["!", "_w", "a", "é"])
def test_a_cursor_that_was_made_up_is_refused(notes: TestClient, cursor: str) -> None:
    answered = notes.get(f"{URL}/documents", params={"cursor": cursor})
    assert (answered.status_code, answered.json()["code"]) == (422, "invalid_cursor")


# ---- bodies


def test_a_body_above_the_limit_is_refused(notes: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(routes_documents, "MAX_STREAM_BYTES", 2000)

    def parts(size: int) -> Any:
        yield from (b" " * 100 for _ in range(size // 100))

    for content in (b" " * 1001, parts(1100)):  # declared, and found out while it is read
        answered = notes.put(
            f"{URL}/documents", content=content, headers={"Content-Type": "application/json"}
        )
        assert (answered.status_code, answered.json()["code"]) == (413, "body_too_large")
        assert "1000" in answered.json()["detail"]
    for content in (b" " * 2001, parts(2100)):
        answered = notes.put(f"{URL}/documents", content=content, headers=NDJSON)
        assert (answered.status_code, answered.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("given", ["text/plain", "", "application/xml", "multipart/form-data; boundary=x"])
def test_other_media_types_are_refused(notes: TestClient, given: str) -> None:
    for method, path in (("PUT", "documents"), ("POST", "search"), ("POST", "attend")):
        answered = notes.request(method, f"{URL}/{path}", content=b"{}", headers={"Content-Type": given})
        assert (answered.status_code, answered.json()["code"]) == (415, "unsupported_media_type")


# ---- models
