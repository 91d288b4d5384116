"""Micro-batches, admission, and many threads at once."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.guarded import guarded
from support.locks import WatchedLock, waiting
from support.patience import LATEST_S
from support.service.apps import patient_app
from support.service.loading import until_loaded
from support.service.service_fakes import ORIGIN, WORDS, WordEncoder, documents
from support.service.workers import Double, held, hold_encoder, soon, with_worker

from dsearch.encoder import TextEncoder
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.home import HomeEncoders
from dsearch.errors import EncoderUnavailable, InvalidRequest
from dsearch.service import deadline
from dsearch.service import worker as worker_module
from dsearch.service.errors import NotReady, Overloaded
from dsearch.service.worker import Worker, _Job

checked = guarded(Worker, "_queue", "_characters", "_waits", free=("depth",))


URL = "/v1/collections/papers"


def test_what_arrives_together_is_one_batch_though_nobody_waits() -> None:
    async def scenario(worker: Worker) -> None:
        work = Double(largest_batch=16)

        async def arriving(item: int) -> int:
            time.sleep(
                0.002
            )  # lets other threads run, as reading a file does; the loop goes on with the next
            return await worker.submit(work, item)

        assert await asyncio.gather(*map(arriving, range(8))) == [2 * item for item in range(8)]
        assert work.batches == [list(range(8))]
        assert await worker.submit(work, 8) == 16

    with_worker(scenario)


def test_what_waits_is_computed_together_and_nothing_else() -> None:
    async def scenario(worker: Worker) -> None:
        work, other = Double(), Double("other")
        _, release = await held(worker)
        tasks = await soon([worker.submit(work, i) for i in range(6)])
        tasks += await soon([worker.submit(other, 10)])
        tasks += await soon([worker.submit(work, 6)])
        release.set()
        assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8, 10, 20, 12]
        assert work.batches == [[0, 1, 2, 3], [4, 5, 6]]
        assert other.batches == [[10]]

    with_worker(scenario)


def test_a_crowded_service_computes_fewer_together() -> None:
    """The bound is asked for at each batch; a work's own bound stays."""
    work = Double(largest_batch=4)

    async def scenario(worker: Worker) -> None:
        _, release = await held(worker)
        tasks = await soon([worker.submit(work, i) for i in range(9)])
        release.set()
        assert await asyncio.gather(*tasks) == [2 * item for item in range(9)]
        assert work.batches == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]

    with_worker(scenario, most_together=lambda: {0: 3, 1: 2}.get(len(work.batches), 100))


def test_the_queue_is_changed_under_its_lock_alone() -> None:
    """A queue that tells whether the lock is held, while the worker's thread is busy elsewhere."""

    async def scenario(worker: Worker) -> None:
        lock = worker._lock  # pyright: ignore[reportPrivateUsage]
        under_lock: list[bool] = []

        class Watched(deque[Any]):
            def append(self, job: Any) -> None:
                under_lock.append(lock.locked())
                super().append(job)

        holding, release = await held(worker)
        worker._queue = Watched()  # pyright: ignore[reportPrivateUsage]
        tasks = await soon([worker.submit(Double(), item) for item in range(3)])
        release.set()
        assert await asyncio.gather(*tasks) == [0, 2, 4]
        await holding
        assert under_lock == [True, True, True]

    with_worker(scenario)


def test_an_idle_worker_starts_at_once() -> None:
    async def scenario(worker: Worker) -> None:
        work = Double()
        assert [await worker.submit(work, i) for i in range(3)] == [0, 2, 4]
        assert work.batches == [[0], [1], [2]]

    with_worker(scenario)


def test_an_error_is_of_the_one_who_caused_it() -> None:
    async def scenario(worker: Worker) -> None:
        _, release = await held(worker)
        tasks = await soon([worker.submit(Double(), i) for i in (1, -1, 3)])
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert (results[0], results[2]) == (2, 6)
        assert isinstance(results[1], InvalidRequest)

    with_worker(scenario)


def test_a_full_queue_refuses_and_recovers() -> None:
    async def scenario(worker: Worker) -> None:
        _, release = await held(worker)
        tasks = await soon([worker.submit(Double(), i) for i in range(3)])
        with pytest.raises(Overloaded, match="3 test requests wait already"):
            await worker.submit(Double(), 9)
        release.set()
        assert await asyncio.gather(*tasks) == [0, 2, 4]
        assert await worker.submit(Double(), 9) == 18

    with_worker(scenario, waiting=3)


def test_who_went_away_costs_nothing() -> None:
    async def scenario(worker: Worker) -> None:
        work = Double()
        worker._observer = observer = Mock()  # pyright: ignore[reportPrivateUsage]
        _, release = await held(worker)
        tasks = await soon([worker.submit(work, i, characters=10) for i in range(3)])
        tasks[1].cancel()
        await asyncio.sleep(0)
        release.set()
        assert await asyncio.gather(tasks[0], tasks[2]) == [0, 4]
        observer.rejected.assert_called_once_with("test", "client gone")
        assert work.batches == [[0, 2]]
        assert worker._characters == 0  # pyright: ignore[reportPrivateUsage]

    with_worker(scenario)


def test_a_worker_that_stops_finishes_what_waits() -> None:
    async def scenario() -> None:
        worker = Worker("test", waiting=10)
        with pytest.raises(NotReady):
            await worker.submit(Double(), 1)
        worker.start()
        _, release = await held(worker)
        tasks = await soon([worker.submit(Double(), i) for i in range(3)])
        stopping = asyncio.create_task(asyncio.to_thread(worker.stop))
        release.set()
        assert await asyncio.gather(*tasks) == [0, 2, 4]
        await stopping
        with pytest.raises(NotReady):
            await worker.submit(Double(), 1)

    asyncio.run(asyncio.wait_for(scenario(), LATEST_S))


def test_a_job_that_is_begun_as_its_time_ends_is_finished_and_not_counted() -> None:
    observer = Mock()
    worker = Worker("test", waiting=1, finishes=True, observer=observer)
    worker._lock = lock = WatchedLock()  # type: ignore[assignment]
    loop = asyncio.new_event_loop()
    give_up: list[Callable[[_Job], None]] = [worker._expire, lambda job: worker._count(job, "client gone")]
    for ends in give_up:
        job = _Job(Double(), 1, loop.create_future(), loop, 0, 0.0)
        with waiting(lock, partial(ends, job)):
            job.begun = True  # the worker's thread holds the lock
        assert not job.answer.done()
    observer.rejected.assert_not_called()
    loop.close()


def test_the_pace_is_that_of_the_quickest_batch_by_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was slow for once says nothing; how long a batch took is shared by its jobs."""
    now_s, took_s = [0.0], [9.0, 7.0, 8.0, 5.0, 6.0, 4.0, 5.0, 7.0]
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))

    class Timed(Double):
        def __call__(self, items: Sequence[int]) -> list[int]:
            now_s[0] += took_s.pop(0)
            return super().__call__(items)

    async def scenario(worker: Worker) -> None:
        work = Timed()
        while took_s:
            await asyncio.gather(*(worker.submit(work, item) for item in range(2)))
        await worker.run(lambda: None)  # begun when the last has told its pace
        assert work.batches == [[0, 1]] * 8
        assert worker.pace_s == 2.0

    with_worker(scenario)


def test_an_answer_is_not_held_until_its_deadline() -> None:
    """A timer of each request that held its answer would fill the memory of a busy service."""

    class Answer:
        pass

    async def scenario(worker: Worker) -> None:
        deadline._present.set(asyncio.get_running_loop().time() + LATEST_S)
        kept = weakref.ref(await worker.run(Answer))
        await worker.run(lambda: None)  # the thread forgets a batch with the next one
        gc.collect()
        assert kept() is None

    with_worker(scenario)


# ---- through the service


def test_micro_batches_give_the_answers_of_single_searches(
    client: TestClient, papers: Collection, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [f"{a} {b}" for a in WORDS[:5] for b in WORDS[5:10]]
    single = {query: papers.search(query) for query in queries}
    encoder.batches.clear()
    entered, release = hold_encoder(encoder, monkeypatch)
    searching = client.app.state.service.searching  # type: ignore[attr-defined]

    def ask(query: str) -> Any:
        return client.post(f"{URL}/search", json={"query": query})

    with ThreadPoolExecutor(len(queries)) as pool:
        first = pool.submit(ask, queries[0])
        assert entered.wait(LATEST_S)
        rest = [pool.submit(ask, query) for query in queries[1:]]
        deadline = time.monotonic() + LATEST_S
        while len(searching._queue) < len(queries) - 1 and time.monotonic() < deadline:
            time.sleep(0.002)
        release.set()
        answers = [future.result() for future in [first, *rest]]
    assert encoder.batches == [1, len(queries) - 1]
    for query, answered in zip(queries, answers, strict=True):
        hits, expected = answered.json()["hits"], single[query].hits
        assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
        np.testing.assert_allclose(
            [hit["weight"] for hit in hits], [hit.weight for hit in expected], atol=1e-6
        )


def test_overload_is_answered_with_retry_after(
    client: TestClient, papers: Collection, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching = client.app.state.service.searching  # type: ignore[attr-defined]
    searching.waiting = 1
    entered, release = hold_encoder(encoder, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, f"{URL}/search", json={"query": "cat"})
        assert entered.wait(LATEST_S)
        second = pool.submit(client.post, f"{URL}/search", json={"query": "dog"})
        while not searching._queue:
            time.sleep(0.002)
        refused = client.post(f"{URL}/search", json={"query": "river"})
        alive = client.get("/healthz")  # the event loop is not held up
        read = client.get(f"{URL}/documents/d001")
        release.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert (alive.status_code, read.status_code) == (200, 200)
    assert client.post(f"{URL}/search", json={"query": "river"}).status_code == 200


def test_searches_writes_and_promotions_at_once(client: TestClient, papers: Collection) -> None:
    """Every answer is that of the state that it states: no hit of a document not written by then."""
    added = documents(200)[150:]

    def write(i: int) -> None:
        one = {"id": added[i].id, "text": f"unique{i} cat", "title": ""}
        receipt = client.put(f"{URL}/documents", json=[one])
        assert receipt.status_code == 200, receipt.text
        found = client.post(
            f"{URL}/search", json={"query": f"unique{i}", "limit": 1, "mode": "keyword"}
        ).json()
        assert found["hits"][0]["id"] == added[i].id
        assert found["sequence"] >= receipt.json()["sequence"]

    def search(i: int) -> None:
        answered = client.post(f"{URL}/search", json={"query": WORDS[i % len(WORDS)], "limit": 5})
        assert answered.status_code == 200, answered.text
        weights = [hit["weight"] for hit in answered.json()["hits"]]
        assert weights == sorted(weights, reverse=True)

    def attend(i: int) -> None:
        answered = client.post(
            f"{URL}/attend", json={"queries": [WORDS[i % len(WORDS)]], "include": ["values"]}
        )
        assert answered.status_code in (200, 503), answered.text
        if answered.status_code == 200:
            got = answered.json()["results"][0]
            context = np.float32(got["weights"]) @ np.float32(got["values"])
            np.testing.assert_allclose(context, got["context"], atol=1e-5)

    def promote(i: int) -> None:
        assert client.post(f"{URL}/models/v0/promote").status_code == 200

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(work, i) for i in range(24) for work in (write, search, attend, promote)]
        for job in jobs:
            job.result()


def test_a_collection_is_deleted_when_its_searches_are_done(
    client: TestClient, papers: Collection, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = hold_encoder(encoder, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        searching = pool.submit(client.post, f"{URL}/search", json={"query": "cat"})
        assert entered.wait(LATEST_S)
        deleting = pool.submit(client.delete, URL)
        leaving = client.app.state.service.catalogue._leaving  # type: ignore[attr-defined]
        until = time.monotonic() + LATEST_S
        while "papers" not in leaving:  # the deletion has begun, and waits
            assert time.monotonic() < until
            time.sleep(0.001)
        assert not deleting.done()
        release.set()
        assert searching.result().status_code == 200
        assert deleting.result().status_code == 204
    assert client.get(URL).status_code == 404


# ---- readiness


def test_ready_when_encoder_and_indexes_are_loaded(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def load() -> TextEncoder:
        assert release.wait(LATEST_S)
        return WordEncoder()

    monkeypatch.setattr(engine, "_encoders", HomeEncoders(load))
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        assert client.get("/healthz").status_code == 200
        starting = client.get("/readyz")
        assert (starting.status_code, starting.json()["code"]) == (503, "not_ready")
        assert starting.headers["retry-after"] == "1"
        release.set()
        assert client.put("/v1/collections/x").status_code == 201
        deadline = time.monotonic() + LATEST_S
        while client.get("/readyz").status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert client.get("/readyz").json() == {"status": "ready"}


def test_without_an_encoder_it_is_not_ready_but_finds_words(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> TextEncoder:
        raise EncoderUnavailable("no weights; install the extra")

    monkeypatch.setattr(engine, "_encoders", HomeEncoders(load))
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        found = client.post(f"{URL}/search", json={"query": "cat", "mode": "keyword"})
        assert (found.status_code, len(found.json()["hits"])) == (200, 10)
        for answered in (
            until_loaded(client).get("/readyz"),
            client.post(f"{URL}/search", json={"query": "cat"}),
        ):
            assert (answered.status_code, answered.json()["code"]) == (503, "encoder_unavailable")
            assert answered.json()["detail"] == "no weights; install the extra"
