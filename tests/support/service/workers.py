"""Workers whose encoder is held back, for tests of batching and deadlines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.patience import LATEST_S
from support.service.service_fakes import WordEncoder

from dsearch.errors import InvalidRequest
from dsearch.service.worker import Worker


@dataclass(frozen=True)
class Double:
    """2x; remembers its batches; a negative item is an error."""

    name: str = ""
    largest_batch: int = 4
    batches: list[list[int]] = field(default_factory=list, compare=False)

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        if any(item < 0 for item in items):
            raise InvalidRequest(f"{min(items)} is negative")
        return [2 * item for item in items]


def with_worker(scenario: Any, waiting: int = 100, most_together: Callable[[], int] | None = None) -> Any:
    worker = Worker("test", waiting=waiting, most_together=most_together)
    worker.start()
    try:
        return asyncio.run(asyncio.wait_for(scenario(worker), LATEST_S))
    finally:
        worker.stop()


async def held(worker: Worker) -> tuple[asyncio.Task[None], threading.Event]:
    """A job that keeps the worker busy until the event is set."""
    started, release = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        release.wait(LATEST_S)

    task = asyncio.create_task(worker.run(hold))
    while not started.is_set():
        await asyncio.sleep(0.001)
    return task, release


async def soon(coroutines: Sequence[Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(one) for one in coroutines]
    await asyncio.sleep(0)
    return tasks


def hold_encoder(
    encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """Lets the first query wait inside the encoder: (it is there, let it go)."""
    entered, release = threading.Event(), threading.Event()
    encode = encoder.encode_queries

    def slowly(texts: Sequence[str]) -> np.ndarray:
        entered.set()
        assert release.wait(LATEST_S)
        return encode(texts)

    monkeypatch.setattr(encoder, "encode_queries", slowly)
    return entered, release
