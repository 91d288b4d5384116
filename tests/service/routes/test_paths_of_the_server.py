"""No answer over HTTP or to an agent shows where the folder of documents lies on the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dsearch.corpus import Mirror, read_sources
from dsearch.engine import SearchEngine

SECRET = "secret-of-the-disk"
URL = "/v1/collections/notes"


@pytest.fixture
def folder(engine: SearchEngine, tmp_path: Path) -> str:
    """Index a folder; return its path."""
    notes = tmp_path / SECRET / "notes"
    (notes / "sub").mkdir(parents=True)
    (notes / "river.md").write_text("# Rivers\n\nriver stone")
    (notes / "sub" / "cat.md").write_text("# Cats\n\ncat music")
    engine.create("notes").ingest(read_sources([notes], mirror=Mirror()))
    return str(notes.resolve())


def test_answers_have_the_path_in_the_folder_and_not_the_folder(client: TestClient, folder: str) -> None:
    metadata: list[dict[str, Any]] = []
    search = client.post(f"{URL}/search", json={"query": "river"}).json()["hits"][0]
    metadata.append(search["metadata"])
    batch = client.post(f"{URL}/search/batch", json={"queries": ["river"], "fields": "_file,path"}).json()
    metadata.append(batch["results"][0]["hits"][0]["metadata"])
    similar = client.post(f"{URL}/similar", json={"like": ["sub/cat.md"]}).json()["hits"][0]
    metadata.append(similar["metadata"])
    metadata.append(client.get(f"{URL}/documents/river.md").json()["metadata"])
    metadata.append(client.get(f"{URL}/documents").json()["documents"][0]["metadata"])
    patched = client.patch(f"{URL}/documents/river.md", json={"metadata": {"year": 2018}})
    metadata.append(patched.json()["metadata"])
    for each in metadata:
        assert (each["path"], each["_file"]) == ("river.md", {"path": "river.md"})


def test_no_route_that_reads_shows_the_folder_or_the_home(
    client: TestClient, engine: SearchEngine, folder: str
) -> None:
    reads = [
        path
        for path, methods in client.get("/openapi.json").json()["paths"].items()
        if "get" in methods and not path.endswith("/events")
    ]
    names = {"collection": "notes", "id": "river.md", "file": "river.md", "version": "v0"}
    answers = [
        client.get(path.format_map(_Named(names)), params={"query": "river", "fields": "path"})
        for path in reads
    ]
    answers += [
        client.post("/retrieve", json={"queries": ["river"]}),
        client.post(f"{URL}/attend", json={"queries": ["river"], "texts": True}),
        client.post(f"{URL}/predict", json={"queries": ["river"], "field": "path"}),
        client.post(f"{URL}/facets", json={"fields": ["_file", "path", "_file.path"]}),
    ]
    assert sum(answer.status_code == 200 for answer in answers) > 12
    for answer in answers:
        assert SECRET not in answer.text, answer.url
        assert str(engine.home.path) not in answer.text, answer.url


class _Named(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "none"


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("search", {"query": "river", "filter": {"_file.root": {"gte": "/a"}}}),
    ("search", {"query": "river", "filter": {"not": {"or": [{"_file.root": {"exists": False}}]}}}),
    ("search", {"query": "river", "sort": "_file.root"}),
    ("search", {"query": "river", "group_by": "_file.root"}),
    ("search", {"query": "river", "fields": "title,_file.root"}),
    ("search", {"query": "river", "fields": "metadata._file.root"}),
    ("facets", {"fields": ["_file.root"]}),
    ("predict", {"queries": ["river"], "field": "_file.root"}),
    ("attend", {"queries": ["river"], "score": "prefix", "match_field": "_file.root"}),
]


def test_no_request_asks_for_the_folder(client: TestClient, folder: str) -> None:
    for path, body in REFUSED:
        refused = client.post(f"{URL}/{path}", json=body)
        assert refused.status_code == 422, (body, refused.text)
        assert "_file.root" in refused.json()["detail"]
        assert "use path or folder" in refused.json()["detail"]


def test_documents_of_a_folder_that_is_gone_are_deleted_by_its_name(client: TestClient, folder: str) -> None:
    others = {"filter": {"_file.root": {"eq": "/elsewhere"}}}
    assert client.post(f"{URL}/documents/delete", json=others).json()["deleted"] == 0
    own = {"filter": {"_file.root": {"eq": folder}}}
    assert client.post(f"{URL}/documents/delete", json=own).json()["deleted"] == 2


def test_the_owner_sees_the_folder(engine: SearchEngine, folder: str) -> None:
    assert engine.collection("notes").store.get("river.md").metadata["_file"]["root"] == folder
