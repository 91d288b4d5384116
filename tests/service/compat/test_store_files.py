"""`/v1/files` and the files of vector stores, asked by the official client of a real server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.late import late
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine
from dsearch.service.auth.keys import ApiKeys

openai = late("openai")

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("files") / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(3))
        engine.create("empty")
    return home


@pytest.fixture(scope="module")
def origin(home: Path) -> Iterator[str]:
    with serving(home) as (address, _):
        yield address


@pytest.fixture(scope="module")
def client(origin: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{origin}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def uploaded(client: openai.OpenAI, name: str, content: bytes | str) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return client.files.create(file=(name, raw), purpose="assistants").id


def test_files_are_uploaded_listed_and_deleted(client: openai.OpenAI) -> None:
    first = client.files.create(file=("../a/notes.md", b"river"), purpose="assistants")
    second = client.files.create(file=("lamp.txt", b"lamp"), purpose="user_data")
    assert (first.filename, first.bytes, first.status) == ("notes.md", 5, "processed")
    assert client.files.retrieve(first.id) == first
    assert [one.id for one in client.files.list(limit=1)] == [first.id, second.id]  # page after page
    assert [one.id for one in client.files.list(purpose="user_data")] == [second.id]
    for id in (first.id, second.id):
        assert client.files.delete(id).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.retrieve(first.id)


def test_a_file_is_attached_found_and_taken_out(client: openai.OpenAI) -> None:
    store = client.vector_stores.create(name="made")
    file = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("river.md", b"# River\n\nmusic by the river"), attributes={"year": 7}
    )
    assert (file.status, file.last_error, file.vector_store_id) == ("completed", None, "made")
    assert file.attributes == {"name": "river.md", "type": "markdown", "year": 7}
    assert client.vector_stores.files.retrieve(file.id, vector_store_id="made") == file
    assert list(client.vector_stores.files.list("made")) == [file]
    assert client.vector_stores.retrieve("made").file_counts.completed == 1
    filter: Any = {"type": "eq", "key": "year", "value": 7}
    (hit,) = client.vector_stores.search("made", query="river", filters=filter).data
    assert (hit.file_id, hit.filename) == (file.id, "river.md")
    (content,) = client.vector_stores.files.content(file.id, vector_store_id="made")
    assert content.text == hit.content[0].text
    changed = client.vector_stores.files.update(file.id, vector_store_id="made", attributes={"year": 8})
    assert changed.attributes == {"name": "river.md", "type": "markdown", "year": 8}
    assert client.vector_stores.search("made", query="river", filters=filter).data == []
    assert client.vector_stores.files.delete(file.id, vector_store_id="made").deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.files.retrieve(file.id, vector_store_id="made")
    assert client.files.retrieve(file.id).filename == "river.md"  # the upload stays
    client.vector_stores.files.create("made", file_id=file.id)
    client.files.delete(file.id)  # and takes its documents along
    assert client.vector_stores.search("made", query="river").data == []
    client.vector_stores.delete("made")


def test_a_file_of_records_is_one_file(client: openai.OpenAI) -> None:
    lines = [json.dumps({"id": f"r{n}", "text": f"river {word}"}) for n, word in enumerate(("cat", "dog"))]
    id = uploaded(client, "records.jsonl.gz", gzip.compress("\n".join(lines).encode()))
    assert client.vector_stores.files.create("empty", file_id=id).status == "completed"
    assert [one.id for one in client.vector_stores.files.list("empty")] == [id]
    texts = [one.text for one in client.vector_stores.files.content(id, vector_store_id="empty")]
    assert texts == ["river cat", "river dog"]
    assert {one.file_id for one in client.vector_stores.search("empty", query="river").data} == {id}
    client.vector_stores.files.delete(id, vector_store_id="empty")
    assert client.vector_stores.retrieve("empty").file_counts.total == 0


def test_files_of_a_batch_have_its_attributes_or_their_own(client: openai.OpenAI) -> None:
    ids = [uploaded(client, name, "river") for name in ("one.txt", "two.txt", "three.txt")]
    batches = client.vector_stores.file_batches
    batches.create("empty", file_ids=ids[:2], attributes={"year": 7})
    batches.create("empty", files=[{"file_id": ids[2], "attributes": {"year": 8}}])
    for year, those in ((7, ids[:2]), (8, ids[2:])):
        filter: Any = {"type": "eq", "key": "year", "value": year}
        found = client.vector_stores.search("empty", query="river", filters=filter).data
        assert {hit.file_id for hit in found} == {*those}
    for id in ids:
        client.files.delete(id)


def test_documents_are_files_by_their_ids(client: openai.OpenAI, origin: str) -> None:
    body = [{"id": "a/b c", "text": "stone"}]
    assert httpx2.put(f"{origin}/v1/collections/papers/documents", json=body).status_code == 200
    ids = [one.id for one in client.vector_stores.files.list("papers", limit=2)]
    assert ids == ["a/b c", "d000", "d001", "d002"]
    assert client.vector_stores.files.retrieve("a/b c", vector_store_id="papers").usage_bytes == 5
    assert client.vector_stores.files.delete("a/b c", vector_store_id="papers").deleted


def test_a_batch_is_attached_together(client: openai.OpenAI) -> None:
    files: Any = [("one.txt", b"river"), ("two.txt", b"lamp")]
    batch = client.vector_stores.file_batches.upload_and_poll("empty", files=files)
    assert (batch.status, batch.file_counts.completed) == ("completed", 2)
    bad = uploaded(client, "odd.exe", b"x")
    good = uploaded(client, "good.txt", "stone")
    of_each: Any = [{"file_id": bad}, {"file_id": good, "attributes": {"k": True}}]
    batch = client.vector_stores.file_batches.create("empty", files=of_each)
    assert (batch.status, batch.file_counts.failed, batch.file_counts.total) == ("completed", 1, 2)
    assert client.vector_stores.file_batches.retrieve(batch.id, vector_store_id="empty") == batch
    assert client.vector_stores.file_batches.cancel(batch.id, vector_store_id="empty") == batch
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id="empty", filter="failed")
    assert [one.id for one in listed] == [bad]
    assert bad in [one.id for one in client.vector_stores.files.list("empty")]
    store = client.vector_stores.retrieve("empty")
    assert (store.file_counts.completed, store.file_counts.failed, store.status) == (3, 1, "completed")
    with pytest.raises(openai.NotFoundError, match="no batch"):
        client.vector_stores.file_batches.retrieve(batch.id, vector_store_id="papers")
    client.vector_stores.files.delete(bad, vector_store_id="empty")
    assert client.vector_stores.retrieve("empty").file_counts.failed == 0


def test_a_batch_is_found_by_each_name_of_its_store(client: openai.OpenAI, origin: str) -> None:
    assert httpx2.put(f"{origin}/v1/aliases/hollow", json={"collection": "empty"}).is_success
    id = uploaded(client, "alias.txt", "stone")
    batches = client.vector_stores.file_batches
    batch = batches.create("hollow", file_ids=[id])
    for name in ("hollow", "empty"):
        assert batches.retrieve(batch.id, vector_store_id=name) == batch
        assert batches.cancel(batch.id, vector_store_id=name) == batch
        assert [one.id for one in batches.list_files(batch.id, vector_store_id=name)] == [id]
    client.files.delete(id)


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("odd.exe", b"x", "unsupported_file", "files .exe are not read; supported are files .jsonl"),
        ("empty.txt", b"", "invalid_file", "empty.txt"),
        ("cut.pdf", b"%PDF-1.4", "invalid_file", "not a PDF that can be read"),
        ("lines.jsonl", b'{"id": "a", "text": "b"}\n{"id": ', "invalid_file", "lines.jsonl:2"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(
    client: openai.OpenAI, name: str, content: bytes, code: str, said: str
) -> None:
    id = uploaded(client, name, content)
    file = client.vector_stores.files.create_and_poll(id, vector_store_id="papers")
    assert file.status == "failed"
    assert file.last_error is not None
    assert (file.last_error.code, said in file.last_error.message) == (code, True), file.last_error
    client.files.delete(id)


def test_passages_are_those_of_the_store(client: openai.OpenAI) -> None:
    id = uploaded(client, "a.txt", "river")
    chunks: Any = {"type": "static", "static": {"max_chunk_size_tokens": 80, "chunk_overlap_tokens": 8}}
    with pytest.raises(openai.UnprocessableEntityError, match="'empty' are tokens=256, overlap=32; leave"):
        client.vector_stores.files.create("empty", file_id=id, chunking_strategy=chunks)
    auto: Any = {"type": "auto"}
    assert (
        client.vector_stores.files.create("empty", file_id=id, chunking_strategy=auto).status == "completed"
    )
    client.files.delete(id)


def test_a_store_is_created_with_passages_of_its_own(client: openai.OpenAI) -> None:
    chunks: Any = {"type": "static", "static": {"max_chunk_size_tokens": 80, "chunk_overlap_tokens": 3}}
    client.vector_stores.create(name="cut", chunking_strategy=chunks)
    id = uploaded(client, "a.txt", "river")
    file = client.vector_stores.files.create("cut", file_id=id, chunking_strategy=chunks)
    assert (file.status, file.to_dict()["chunking_strategy"]) == ("completed", chunks)
    client.files.delete(id)
    client.vector_stores.delete("cut")


def test_a_store_is_created_of_files(client: openai.OpenAI) -> None:
    id = uploaded(client, "a.txt", "river")
    client.vector_stores.create(name="filled", file_ids=[id])
    assert (
        client.vector_stores.files.poll(id, vector_store_id="filled", poll_interval_ms=5).status
        == "completed"
    )
    with pytest.raises(openai.NotFoundError, match="no file 'none'"):
        client.vector_stores.create(name="other", file_ids=["none"])
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve("other")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda it: it.files.create(file=("", b"x"), purpose="assistants"), "file"),
        (lambda it: it.files.create(file=("a.txt", b"x"), purpose="vision"), "use assistants or user_data"),
        (
            lambda it: it.files.create(
                file=("a.txt", b"x"),
                purpose="assistants",
                expires_after={"anchor": "created_at", "seconds": 9},
            ),
            "use file, purpose",
        ),
        (lambda it: it.files.list(limit=0), "use an integer from 1 to 10000"),
        (lambda it: it.files.list(order="desc"), "use asc"),
        (lambda it: it.vector_stores.files.create("papers", file_id=""), "use the id of a file"),
        (lambda it: it.vector_stores.file_batches.create("papers"), "neither file_ids nor files"),
        (
            lambda it: it.vector_stores.files.create("papers", file_id="x", attributes={"_upload": "y"}),
            "attributes._upload: the service's own name",
        ),
    ],
)
def test_errors_are_what_the_client_parses(client: openai.OpenAI, call: Any, said: str) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        call(client)
    assert said in raised.value.message
    assert raised.value.code == "invalid_request"


def test_a_body_that_is_no_form_is_refused(origin: str) -> None:
    answer = httpx2.post(f"{origin}/v1/files", json={"purpose": "assistants"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = httpx2.post(f"{origin}/v1/files", content=b"--y\r\n\r\n", headers=headers)
    assert answer.status_code == 422
    answer = httpx2.post(f"{origin}/v1/files", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert answer.status_code == 422


def test_a_key_that_reads_writes_no_file(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path / "home")
    made = {scope: keys.create(scope, scope)[0] for scope in ("read", "write")}
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as engine:
        engine.create("papers")
    with serving(tmp_path / "home") as (address, _):
        reads, writes = (
            openai.OpenAI(base_url=f"{address}/v1", api_key=made[scope], max_retries=0) for scope in made
        )
        id = uploaded(writes, "a.txt", "river")
        with pytest.raises(openai.PermissionDeniedError, match="needs write"):
            uploaded(reads, "b.txt", "river")
        with pytest.raises(openai.PermissionDeniedError):
            reads.vector_stores.files.create("papers", file_id=id)
        assert writes.vector_stores.files.create("papers", file_id=id).status == "completed"
        assert [one.id for one in reads.vector_stores.files.list("papers")] == [id]
        with pytest.raises(openai.PermissionDeniedError):
            reads.files.delete(id)
    with serving(tmp_path / "home") as (address, _):  # uploads and their documents outlive the service
        again = openai.OpenAI(base_url=f"{address}/v1", api_key=made["read"], max_retries=0)
        assert [one.id for one in again.files.list()] == [id]
        assert [one.id for one in again.vector_stores.files.list("papers")] == [id]
