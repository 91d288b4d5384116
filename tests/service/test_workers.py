"""What becomes of work that has begun when its request's time is over: writes are finished and answered."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.patience import LATEST_S

from dsearch.service import deadline
from dsearch.service.errors import DeadlinePassed


async def _outlived(worker: Any) -> str:
    """The answer to a job that is begun in time, and ends after its time."""
    begun, release = threading.Event(), threading.Event()

    def job() -> str:
        begun.set()
        assert release.wait(LATEST_S)
        return "finished"

    loop = asyncio.get_running_loop()
    clock = loop.time
    deadline._present.set(clock() + LATEST_S)  # pyright: ignore[reportPrivateUsage]
    answer = asyncio.ensure_future(worker.run(job))
    assert await asyncio.to_thread(begun.wait, LATEST_S)
    loop.time = lambda: clock() + 2 * LATEST_S  # type: ignore[method-assign]
    for _ in range(2):  # the loop finds the timer of the deadline due, then runs it
        await asyncio.sleep(0)
    loop.time = clock  # type: ignore[method-assign]
    release.set()
    try:
        return await answer
    except DeadlinePassed:
        return "given up"


@pytest.mark.parametrize(
    ("name", "answer"),
    [("searching", "given up"), ("encoding", "given up"), ("writing", "finished"), ("feedback", "finished")],
)
def test_what_is_written_is_answered_however_late(
    app: FastAPI, client: TestClient, name: str, answer: str
) -> None:
    assert client.portal is not None
    assert client.portal.call(_outlived, getattr(app.state.service, name)) == answer
