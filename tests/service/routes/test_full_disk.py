"""A full disk is 507 in every route that writes: what was there stays, and what was begun goes."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.service.problems import problem_in
from support.service.tasks import ask, ended

from dsearch.engine import Collection, head_bytes
from dsearch.service.tasks import manager

URL = "/v1/collections/papers"
TENSORS = {"Content-Type": "application/x-safetensors"}
JUDGED = {"queries": {"q": "zebra quantum"}, "judgements": {"q": {"d120": 1}}}


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, code: int) -> Iterator[None]:
    """Files can be opened for writing, which leaves empty ones, and nothing can be written to them."""
    opened = io.open

    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            raise OSError(code, os.strerror(code))

    def open_full(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if set(mode).isdisjoint("wxa+") or isinstance(file, int):
            return opened(file, mode, *given, **named)
        opened(file, mode, *given, **named).close()
        full = io.BufferedWriter(Full(), buffer_size=1)
        return full if "b" in mode else io.TextIOWrapper(full, write_through=True)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", open_full)
        yield


def _files(papers: Collection) -> set[Path]:
    """Files and folders that are of no database, which has its own way to be full."""
    home = papers.store.path.parent
    return {path for path in home.rglob("*") if path.suffix in ("", ".json", ".safetensors", ".writing")}


@pytest.mark.parametrize(
    ("method", "path", "success", "code"),
    [
        ("PUT", "/v1/aliases/new", 200, errno.ENOSPC),
        ("PUT", "/v1/aliases/there", 200, errno.EDQUOT),
        ("DELETE", "/v1/aliases/there", 204, errno.ENOSPC),
        ("POST", f"{URL}/models", 201, errno.ENOSPC),
        ("POST", f"{URL}/models/remember", 200, errno.EDQUOT),
    ],
)
def test_a_write_to_a_full_disk_is_507_and_changes_nothing(
    client: TestClient,
    papers: Collection,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    success: int,
    code: int,
) -> None:
    assert client.put("/v1/aliases/there", json={"collection": "papers"}).status_code == 200
    sent: dict[str, Any] = {}
    if path.endswith("/models"):
        sent = {"content": head_bytes(papers.head("v0")), "headers": TENSORS}
    elif path.endswith("/remember"):
        sent = {"json": {**JUDGED, "accept": True}}
    elif method == "PUT":
        sent = {"json": {"collection": "papers"}}

    def state() -> list[Any]:
        return [client.get(url).json() for url in ("/v1/aliases", f"{URL}/models")]

    before, files = state(), _files(papers)
    with full_disk(monkeypatch, code):
        answer = client.request(method, path, **sent)
    assert (answer.status_code, problem_in(answer)["code"]) == (507, "insufficient_storage"), answer.text
    assert os.strerror(code) in problem_in(answer)["detail"]
    assert state() == before
    assert {path for path in _files(papers) - files if path.name != "models"} == set()
    assert client.request(method, path, **sent).status_code == success


def test_an_error_of_the_disk_that_is_no_full_one_is_503(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch, errno.EROFS):
        answer = client.put("/v1/aliases/new", json={"collection": "papers"})
    assert (answer.status_code, problem_in(answer)["code"]) == (503, "unavailable")


def test_a_full_disk_that_nothing_else_answers_for_is_507_in_any_route(
    app: FastAPI, client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes to write files later."""
    raised: list[OSError] = []

    def fail(*_: Any) -> None:
        raise raised[0]

    monkeypatch.setattr(app.state.service.catalogue, "drop", fail)
    for code, status in ((errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EIO, 500)):
        raised[:] = [OSError(code, os.strerror(code))]
        assert client.delete(URL).status_code == status


def test_a_task_on_a_full_disk_fails_by_its_name(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(*_: Any) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(manager.TaskWork, "_evaluate", evaluate)
    task = ended(client, ask(client, "evaluate", JUDGED))
    assert (task["state"], task["problem"]["code"]) == ("failed", "insufficient_storage")
