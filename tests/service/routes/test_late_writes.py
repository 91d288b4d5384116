"""A 504 tells the truth: what was written is said, and what is answered as too late is not carried out."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.patience import LATEST_S
from support.service.tasks import JUDGED

from dsearch.engine import Collection
from dsearch.errors import DsearchError, InsufficientStorage
from dsearch.service import deadline, ingest, state

Failing = Callable[[int, Callable[[], DsearchError]], None]
URL = "/v1/collections/papers"
NDJSON = {"Content-Type": "application/x-ndjson"}
LINES = "\n".join(json.dumps({"id": f"new{n}", "text": f"river {n}"}) for n in range(7))


def _late() -> DsearchError:
    return deadline.passed("write", "nothing of it was written")


def _full() -> DsearchError:
    return InsufficientStorage("documents.db: the disk is full; nothing of this write was kept")


@pytest.fixture
def failing(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, Callable[[], DsearchError]], None]:
    """Lets the write of that number, and those after it, raise an error in place of being begun."""

    def fail(number: int, error: Callable[[], DsearchError]) -> None:
        run, calls = app.state.service.writing.run, iter(range(1000))

        async def limited(*given: Any, **named: Any) -> Any:
            if next(calls) >= number:
                raise error()
            return await run(*given, **named)

        monkeypatch.setattr(app.state.service.writing, "run", limited)

    return fail


@pytest.mark.parametrize(("error", "status"), [(_late, 504), (_full, 507)])
def test_a_stream_that_was_cut_short_says_what_is_written_and_can_be_sent_again(
    client: TestClient,
    papers: Collection,
    failing: Failing,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Callable[[], DsearchError],
    status: int,
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "dsearch"):
        patch.setattr(ingest, "BLOCK_LINES", 2)
        failing(2, error)
        answer = client.put(f"{URL}/documents", content=LINES, headers=NDJSON)
    problem = answer.json()
    assert (answer.status_code, problem["written"]["inserted"]) == (status, 4)
    assert problem["detail"].count("4 documents") == 1
    assert "safe" in problem["detail"]
    if status == 504:
        assert "nothing" not in problem["detail"]
    (line,) = [record.getMessage() for record in caplog.records if "stream" in record.getMessage()]
    assert "papers" in line
    assert "4" in line
    monkeypatch.undo()
    again = client.put(f"{URL}/documents", content=LINES, headers=NDJSON).json()
    assert (again["inserted"], again["unchanged"]) == (3, 4)


def test_a_write_that_was_not_begun_says_so(app: FastAPI, client: TestClient, papers: Collection) -> None:
    service = app.state.service
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        release.wait(LATEST_S)

    assert client.portal is not None
    holding = client.portal.start_task_soon(service.writing.run, hold)
    assert begun.wait(LATEST_S)
    headers = {"X-Timeout-Ms": "50"}
    for sent in ({"json": [{"id": "new", "text": "river"}]}, {"content": LINES}):
        more = NDJSON if "content" in sent else {}
        answer = client.put(f"{URL}/documents", headers={**headers, **more}, **sent)
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_passed")
        assert "nothing of it was written" in answer.json()["detail"]
        assert answer.json().get("written", {"inserted": 0})["inserted"] == 0
    release.set()
    holding.result(LATEST_S)
    assert client.get(f"{URL}/documents/new").status_code == 404


class Late:
    """In place of `InTime`: every read takes too long."""

    def __init__(self, work: str):
        self._work = work

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        raise deadline.passed(self._work)


def test_what_is_carried_out_is_answered_however_late(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that are taken on and cancelled, and collections that are made."""
    with monkeypatch.context() as patch:
        patch.setattr(state, "InTime", Late)
        assert client.get(URL).status_code == 504
        taken = client.post(f"{URL}/evaluate", json=JUDGED)
        assert taken.status_code == 202
        assert client.delete(f"/v1/tasks/{taken.json()['id']}").status_code == 200
        assert client.put("/v1/collections/fresh", json={}).status_code == 201
    assert client.get("/v1/tasks").json()["tasks"][0]["id"] == taken.json()["id"]


def test_a_write_that_was_begun_is_finished_without_its_client(app: FastAPI, client: TestClient) -> None:
    begun, release, done = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        release.wait(LATEST_S)
        done.set()

    async def leave() -> None:
        writing = asyncio.ensure_future(app.state.service.finish(write))
        await asyncio.to_thread(begun.wait, LATEST_S)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        release.set()
        await asyncio.to_thread(done.wait, LATEST_S)

    assert client.portal is not None
    client.portal.call(leave)
    assert done.is_set()
