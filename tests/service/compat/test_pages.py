"""Lists that go page by page have each entry once, in order, and say when more follow."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient


@pytest.fixture
def files(client: TestClient) -> list[str]:
    """Five uploads, of which the last says nothing and cannot be stored."""
    assert client.put("/v1/collections/papers").status_code == 201
    uploads = [
        client.post(
            "/v1/files",
            files={"file": (f"{number}.txt", f"river {number}" if number < 4 else " ")},
            data={"purpose": "assistants" if number % 2 else "user_data"},
        ).json()["id"]
        for number in range(5)
    ]
    assert uploads == sorted(set(uploads))
    return uploads


def pages(client: TestClient, path: str, limit: int, **parameters: Any) -> list[list[str]]:
    """Ids of every page; what a page says of itself is checked."""
    found: list[list[str]] = []
    after: dict[str, str] = {}
    while len(found) < 9:
        page = client.get(path, params={"limit": limit, **parameters, **after}).json()
        ids = [entry["id"] for entry in page["data"]]
        found.append(ids)
        assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        if not page["has_more"]:
            return found
        after = {"after": ids[-1]}
    raise AssertionError(f"more pages than entries: {found}")


def test_each_list_has_each_entry_once(client: TestClient, files: list[str]) -> None:
    batch = client.post("/v1/vector_stores/papers/file_batches", json={"file_ids": files[::-1]}).json()
    assert batch["file_counts"] == {
        "in_progress": 0,
        "completed": 4,
        "failed": 1,
        "cancelled": 0,
        "total": 5,
    }
    of_batch = f"/v1/vector_stores/papers/file_batches/{batch['id']}/files"
    of_store = "/v1/vector_stores/papers/files"
    for path in ("/v1/files", of_batch, of_store):
        assert pages(client, path, 2) == [files[:2], files[2:4], files[4:]], path
        assert pages(client, path, 5) == [files], path
        assert pages(client, path, 4) == [files[:4], files[4:]], path
        assert pages(client, path, 2, after=files[2])[0][:2] == files[3:], path
        assert pages(client, path, 2, after=files[4]) == [[]], path  # the last, which failed, is not repeated
    for path in (of_batch, of_store):
        assert pages(client, path, 3, filter="completed") == [files[:3], files[3:4]], path
        assert pages(client, path, 3, filter="failed") == [files[4:]], path
        assert pages(client, path, 3, filter="in_progress") == [[]], path
    assert pages(client, "/v1/files", 2, purpose="user_data") == [files[0:3:2], files[4:]]
    assert pages(client, "/v1/files", 2, purpose="assistants") == [files[1:4:2]]


@pytest.mark.parametrize("limit", ["0", "101", "x"])
def test_a_limit_beyond_its_bounds_is_refused(client: TestClient, files: list[str], limit: str) -> None:
    answer = client.get("/v1/vector_stores/papers/files", params={"limit": limit})
    assert answer.status_code == 422
    assert "use an integer from 1 to 100" in answer.text
    assert client.get("/v1/vector_stores/papers/files", params={"limit": "100"}).status_code == 200
