"""No answer says where the home lies, whatever is damaged in it (SECURITY, promise 7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.loading import until_loaded
from support.service.tasks import ended

from dsearch.engine import Collection, statistics
from dsearch.errors import CorruptData
from dsearch.service.errors import hide_folder, without_home
from dsearch.service.routes import collections as routes_collections
from dsearch.service.tasks.manager import TaskWork

URL = "/v1/collections/papers"


def test_errors_name_files_by_their_place_in_the_home(
    client: TestClient, papers: Collection, tmp_path: Path
) -> None:
    papers.close()
    for path in papers.store.path.glob("generations/*/manifest.json"):
        path.write_bytes(b"nonsense" * 1000)
    answers = [
        client.post(f"{URL}/search", json={"query": "cat"}),
        client.put(f"{URL}/documents", json=[{"id": "a", "text": "cat"}]),
        client.get("/v1/collections"),
        client.get(URL),
        until_loaded(client).get("/readyz"),
        client.post(
            "/mcp",
            json={
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "search", "arguments": {"collection": "papers", "query": "cat"}},
            },
            headers={"Accept": "application/json, text/event-stream"},
        ),
    ]
    assert [answer.status_code for answer in answers[:2]] == [503, 503]
    assert answers[0].json()["detail"].startswith("papers was closed")
    for answer in answers:
        assert str(tmp_path) not in answer.text, answer.text


def test_a_training_that_cannot_begin_names_no_place_of_the_machine(
    client: TestClient, papers: Collection, tmp_path: Path
) -> None:
    (papers.store.path / "feedback.db").write_bytes(b"nonsense" * 1000)
    answer = client.post(f"{URL}/train", json={"feedback": True})
    assert answer.status_code >= 400
    assert str(tmp_path) not in answer.text, answer.text


def test_a_task_that_failed_names_no_place_of_the_machine(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise CorruptData(f"{papers.store.path}/documents.db is damaged")

    monkeypatch.setattr(TaskWork, "_refresh", fail)
    task = ended(client, client.post(f"{URL}/refresh", json={}).json()["id"])
    assert (task["state"], task["problem"]["detail"]) == ("failed", "papers/documents.db is damaged")


def test_the_folder_itself_is_the_home(tmp_path: Path) -> None:
    hide_folder(tmp_path)
    assert without_home(f"{tmp_path}/a/b.db: damaged; see {tmp_path}") == "a/b.db: damaged; see the home"
    assert without_home("limit=0; use 1") == "limit=0; use 1"


def test_a_home_in_another_one_or_behind_a_link_is_hidden_too(tmp_path: Path) -> None:
    inner, link = tmp_path / "home" / "inner", tmp_path / "link"
    inner.mkdir(parents=True)
    link.symlink_to(inner, target_is_directory=True)
    hide_folder(tmp_path / "home")
    hide_folder(link)
    assert without_home(f"{inner}/a.db; {link}/b.db; {inner.parent}/c.db") == "a.db; b.db; c.db"


def test_statistics_name_no_place_of_the_machine(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(collection: Collection) -> dict[str, Any]:
        told = statistics(collection)
        problem = f"{papers.store.path}/documents.db is damaged"
        return {**told, "rebuild": {**told["rebuild"], "problem": problem}}

    monkeypatch.setattr(routes_collections, "statistics", damaged)
    answer = client.get(f"{URL}/stats").json()
    assert answer["rebuild"]["problem"] == "papers/documents.db is damaged"
