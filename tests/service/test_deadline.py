"""Deadlines, clients that go away, and queues that are full: nothing is computed for nobody."""

from __future__ import annotations

import asyncio
import gc
import inspect
import selectors
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from support.patience import LATEST_S
from support.service.overload import nothing
from support.service.service_fakes import ORIGIN, WordEncoder
from support.service.workers import Double, held, hold_encoder, soon, with_worker

from dsearch.config import Settings
from dsearch.engine import Collection, SearchEngine
from dsearch.service import create_app, deadline
from dsearch.service.admission import EventLoopLag
from dsearch.service.errors import DeadlinePassed, Overloaded
from dsearch.service.worker import Worker

URL = "/v1/collections/papers"


def in_a_request(coroutine: Any, timeout_s: float) -> asyncio.Task[Any]:
    """A task with a deadline, as the middleware gives one."""

    async def run() -> Any:
        deadline._present.set(asyncio.get_running_loop().time() + timeout_s)
        return await coroutine

    return asyncio.create_task(run())


# ---- the worker


def test_a_job_whose_time_is_over_is_never_begun() -> None:
    async def scenario(worker: Worker) -> None:
        work = Double()
        busy, release = await held(worker)
        late = in_a_request(worker.submit(work, 1), 0.01)
        patient = in_a_request(worker.submit(work, 2), LATEST_S)
        with pytest.raises(DeadlinePassed, match="ask for more with X-Timeout-Ms"):
            await late
        release.set()
        assert await patient == 4
        assert work.batches == [[2]]
        await busy

    with_worker(scenario)


def test_a_read_is_answered_in_time_even_when_it_was_begun() -> None:
    async def scenario(worker: Worker) -> None:
        started, release = threading.Event(), threading.Event()

        def slow() -> None:
            started.set()
            release.wait(LATEST_S)

        running = in_a_request(worker.run(slow), 0.2)
        with pytest.raises(DeadlinePassed):
            await running
        release.set()

    with_worker(scenario)


def test_a_write_that_was_begun_is_answered_with_what_became_of_it() -> None:
    async def scenario() -> None:
        loop, later_s = asyncio.get_running_loop(), 0.0
        clock = loop.time
        loop.time = lambda: clock() + later_s  # type: ignore[method-assign]
        worker = Worker("write", waiting=10, finishes=True)
        worker.start()
        started, release = threading.Event(), threading.Event()

        def write() -> str:
            started.set()
            assert release.wait(LATEST_S)
            return "written"

        begun = in_a_request(worker.run(write), LATEST_S)
        while not started.is_set():
            await asyncio.sleep(0.001)
        waiting = in_a_request(worker.run(lambda: "never"), LATEST_S)
        await asyncio.sleep(0)
        assert worker.depth == 1
        later_s = 2 * LATEST_S  # the time of both is over
        with pytest.raises(DeadlinePassed):
            await waiting
        await asyncio.sleep(0)
        assert not begun.done()
        release.set()
        assert await begun == "written"
        await asyncio.to_thread(worker.stop)

    asyncio.run(scenario())


def test_a_queue_is_bounded_in_characters_too() -> None:
    async def scenario() -> None:
        worker = Worker("test", waiting=10, waiting_characters=100)
        worker.start()
        _, release = await held(worker)
        first = await soon([worker.submit(Double(), 1, characters=1000)])  # alone, whatever its size
        with pytest.raises(Overloaded, match="1 test requests wait already, of 1000 characters"):
            await worker.submit(Double(), 2, characters=1)
        first[0].cancel()
        await asyncio.sleep(0)
        tasks = await soon([worker.submit(Double(), i, characters=50) for i in range(2)])
        with pytest.raises(Overloaded):
            await worker.submit(Double(), 3, characters=1)
        release.set()
        assert await asyncio.gather(*tasks) == [0, 2]
        assert await worker.submit(Double(), 3, characters=100) == 6
        assert (worker.depth, worker._characters) == (0, 0)
        await asyncio.to_thread(worker.stop)

    asyncio.run(asyncio.wait_for(scenario(), LATEST_S))


def test_a_queue_is_bounded_in_time_too() -> None:
    @dataclass(frozen=True)
    class Slow:
        largest_batch: int = 1

        def __call__(self, items: Sequence[int]) -> Sequence[int]:
            time.sleep(0.05)
            return items

    async def scenario() -> None:
        worker = Worker("test", waiting=100, waiting_s=0.3)
        worker.start()
        for i in range(7):
            await worker.submit(Slow(), i)
            assert worker.pace_s == 0  # the first may have been slow for once
        alone, release = await held(worker)
        release.set()
        await alone
        assert worker.pace_s == 0  # nor does one that is never computed with others say what is usual
        _, release = await held(worker)  # all are submitted before any has told the pace
        tasks = await soon([worker.submit(Slow(), i) for i in range(20)])
        release.set()
        assert await asyncio.gather(*tasks) == list(range(20))
        _, release = await held(worker)
        tasks = await soon([worker.submit(Slow(), i) for i in range(8)])
        with pytest.raises(Overloaded, match="8 test requests wait already, and the last of them"):
            await worker.submit(Slow(), 9)
        release.set()
        assert await asyncio.gather(*tasks) == list(range(8))
        await asyncio.to_thread(worker.stop)

    asyncio.run(asyncio.wait_for(scenario(), LATEST_S))


def test_those_who_went_away_make_room() -> None:
    async def scenario(worker: Worker) -> None:
        _, release = await held(worker)
        tasks = await soon([worker.submit(Double(), i) for i in range(3)])
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
        again = await soon([worker.submit(Double(), i) for i in range(3)])
        release.set()
        assert await asyncio.gather(*again) == [0, 2, 4]

    with_worker(scenario, waiting=3)


# ---- the header


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "x", "", "30001", "9" * 40, "١"])
def test_what_is_no_time_is_refused(client: TestClient, papers: Collection, given: str) -> None:
    answered = client.get(f"{URL}/search?query=cat", headers={"X-Timeout-Ms": given.encode()})  # type: ignore[dict-item]
    assert (answered.status_code, answered.json()["code"]) == (422, "invalid_request")
    assert "use whole milliseconds from 1 to 30000" in answered.json()["detail"]


def test_a_write_may_wait_longer(client: TestClient, papers: Collection) -> None:
    body = [{"id": "x", "text": "cat"}]
    assert client.put(f"{URL}/documents", json=body, headers={"X-Timeout-Ms": "600000"}).status_code == 200
    assert client.put(f"{URL}/documents", json=body, headers={"X-Timeout-Ms": "600001"}).status_code == 422


def test_a_late_search_is_a_problem_and_costs_nothing(
    client: TestClient, papers: Collection, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = hold_encoder(encoder, monkeypatch)
    answers: list[Any] = []

    def ask(query: str, timeout_ms: int) -> None:
        headers = {"X-Timeout-Ms": str(timeout_ms)}
        answers.append(client.post(f"{URL}/search", json={"query": query}, headers=headers))

    first = threading.Thread(target=ask, args=("cat", 30_000))
    first.start()
    assert entered.wait(LATEST_S)
    ask("dog", 30)
    assert (answers[0].status_code, answers[0].json()["code"]) == (504, "deadline_passed")
    encoder.batches.clear()
    release.set()
    first.join()
    assert answers[1].status_code == 200
    assert client.post(f"{URL}/search", json={"query": "river"}).status_code == 200
    assert encoder.batches == [1, 1]  # cat, river


@pytest.fixture
def hasty(engine: SearchEngine) -> Iterator[TestClient]:
    with TestClient(create_app(engine, query_timeout_s=0.05), base_url=ORIGIN) as connected:
        yield connected


def test_a_search_has_a_default_and_other_reads_have_longer(
    hasty: TestClient, papers: Collection, encoder: WordEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, release = hold_encoder(encoder, monkeypatch)
    assert hasty.post(f"{URL}/search", json={"query": "cat"}).status_code == 504
    release.set()
    assert hasty.post(f"{URL}/search/batch", json={"queries": ["cat"] * 3}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed_s"),
    [
        ("POST", f"{URL}/search", 2.0),
        ("GET", f"{URL}/similar", 2.0),
        ("POST", f"{URL}/search/batch", 30.0),
        ("GET", "/v1/collections", 30.0),
        ("PUT", f"{URL}/documents", 60.0),
        ("POST", f"{URL}/models/save", 600.0),
    ],
)
def test_the_defaults_are_the_documented_ones(method: str, path: str, allowed_s: float) -> None:
    """The deadline of a request without a header, by a clock that stands still."""
    ends: list[float | None] = []

    async def application(*_: Any) -> None:
        ends.append(deadline.present())

    async def request() -> None:
        asyncio.get_running_loop().time = lambda: 1000.0  # type: ignore[method-assign]
        scope = {"type": "http", "method": method, "path": path, "headers": [(b"content-length", b"2")]}
        await deadline.Deadline(application)(scope, never, never)

    async def never(*_: Any) -> Any:
        raise AssertionError("nothing is read or sent")

    asyncio.run(request())
    assert ends == [1000.0 + allowed_s]
    assert Settings().query_timeout_ms == 2000
    assert inspect.signature(create_app).parameters["query_timeout_s"].default == 2.0


# ---- clients that go away


@pytest.mark.parametrize(("header", "ahead"), [(None, 1), (b"0", 1), (b"2", 0)])
def test_a_body_is_read_ahead_only_where_there_is_none(header: bytes | None, ahead: int) -> None:
    """No route reads what is empty, and a client that leaves is heard only behind it."""
    read: list[None] = []

    async def receive() -> Message:
        read.append(None)
        return {"type": "http.request", "more_body": False}

    headers = [] if header is None else [(b"content-length", header)]
    scope = {"type": "http", "method": "POST", "path": URL, "headers": headers}
    asyncio.run(deadline.Deadline(nothing)(scope, receive, nothing))  # type: ignore[arg-type]
    assert len(read) == ahead


def test_the_work_of_a_client_that_leaves_is_dropped(
    app: FastAPI,
    client: TestClient,
    papers: Collection,
    encoder: WordEncoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, release = hold_encoder(encoder, monkeypatch)
    busy = threading.Thread(target=client.post, args=(f"{URL}/search",), kwargs={"json": {"query": "cat"}})
    busy.start()
    assert entered.wait(LATEST_S)
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"{URL}/search",
        "raw_path": f"{URL}/search".encode(),
        "query_string": b"query=dog",
        "headers": [(b"host", b"localhost")],
        "http_version": "1.1",
        "scheme": "http",
    }
    sent: list[Any] = []
    left: list[bool] = []
    searching = app.state.service.searching

    async def leave() -> None:
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            while not searching.depth:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        answering = asyncio.ensure_future(app(scope, receive, send))
        done, _ = await asyncio.wait({answering}, timeout=LATEST_S)
        left.append(bool(done))

    encoder.batches.clear()
    client.portal.call(leave)  # type: ignore[union-attr]
    release.set()
    busy.join()
    deadline_s = time.monotonic() + LATEST_S
    while searching.depth and time.monotonic() < deadline_s:
        time.sleep(0.002)
    assert left == [True]
    assert sent == []
    assert client.post(f"{URL}/search", json={"query": "river"}).status_code == 200
    assert encoder.batches == [1, 1]  # cat, river


# ---- a server that is late before any queue


def test_a_watched_request_leaves_nothing_for_the_garbage_collector() -> None:
    """A watch is cancelled with its frames, which must not hold what holds the watch."""
    watched: list[weakref.ref[Any]] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.sleep(2 * deadline._WATCHED_AFTER_S)
        watched.append(weakref.ref(receive.__self__))  # pyright: ignore[reportFunctionMemberAccess]

    async def request(answering: deadline.Deadline) -> None:
        messages = [{"type": "http.request", "body": b"{}", "more_body": False}]
        silent = asyncio.Event()

        async def receive() -> Message:
            if not messages:
                await silent.wait()
            return messages.pop()

        scope = {
            "type": "http",
            "method": "POST",
            "path": f"{URL}/search",
            "headers": [(b"content-length", b"2")],
        }
        await answering(scope, receive, nothing)

    async def requests() -> None:
        await asyncio.gather(*(request(deadline.Deadline(answer)) for _ in range(3)))
        await asyncio.sleep(0.01)  # for the cancelled ones to end

    gc.disable()
    try:
        asyncio.run(requests())
        assert [reference() for reference in watched] == [None] * 3
    finally:
        gc.enable()


def test_of_late_requests_a_share_is_refused_and_never_all() -> None:
    lag = EventLoopLag()
    for seconds, least, most in ((0.0, 0, 0), (59.0, 0, 0), (90, 45, 55), (120, 85, 95), (999.0, 85, 95)):
        lag.observe(seconds)
        lag.observe(seconds)  # one late timer is a pause
        assert least <= sum(lag.refuses() for _ in range(100)) <= most


class OwnClock(selectors.DefaultSelector):
    """Moves an event loop's clock where that loop would wait, and nowhere else."""

    now = 100.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += max(timeout or 0.0, 0.0)
        return super().select(0)


class OwnTime(asyncio.SelectorEventLoop):
    """An event loop that is late only when told."""

    def __init__(self) -> None:
        self.clock = OwnClock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def test_a_late_event_loop_is_noticed_and_forgotten() -> None:
    loop, lag = OwnTime(), EventLoopLag()

    async def scenario() -> None:
        lag.start()
        await asyncio.sleep(0.05)
        assert lag.seconds == pytest.approx(0, abs=0.001)
        loop.clock.now += 0.5  # something held the thread
        await asyncio.sleep(0.03)
        late = lag.seconds
        assert 0.3 < late <= 0.5
        for _ in range(10):
            await asyncio.sleep(0.021)
        assert lag.seconds == pytest.approx(late * 0.7**10, rel=0.5)
        await lag.stop()
        assert lag.seconds == 0

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scenario())


def test_a_late_server_refuses_searches_but_says_how_it_is(
    app: FastAPI, client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = time.monotonic() + LATEST_S
    while client.get("/readyz").status_code != 200 and time.monotonic() < until:
        time.sleep(0.002)  # it loads its encoder first
    monkeypatch.setattr(app.state.service.lag, "refuses", lambda: True)
    answered = client.post(f"{URL}/search", json={"query": "cat"})
    assert (answered.status_code, answered.json()["code"]) == (503, "overloaded")
    assert answered.headers["retry-after"] == "1"
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    assert 'dsearch_rejections_total{reason="overloaded",worker="server"} 1.0' in client.get("/metrics").text


# ---- a client of one request


class Messages:
    """What a client sends, one after the other; then nothing."""

    def __init__(self, *types: str):
        self.left = [*types]

    async def receive(self) -> Message:
        if not self.left:
            await asyncio.Event().wait()
        return {"type": self.left.pop(0), "more_body": False}


def cancelled(*, answered: bool) -> tuple[bool, bool]:
    """A handler whose client goes away before or after its answer: it is cancelled, the client gone."""

    async def send(_: Message) -> None: ...

    async def handler() -> tuple[bool, bool]:
        messages = Messages("http.request", "http.disconnect")
        client = deadline._Client(messages.receive, send, asyncio.get_running_loop())
        await client.receive()
        for more_body in (True, not answered):
            await client.send({"type": "http.response.body", "more_body": more_body})
        try:
            await asyncio.shield(client._watching())
            await asyncio.sleep(0)
            return False, client.gone
        except asyncio.CancelledError:
            return True, client.gone
        finally:
            client.forget()

    return asyncio.run(handler())


def test_only_a_client_that_goes_away_before_its_answer_is_gone() -> None:
    assert cancelled(answered=False) == (True, True)
    assert cancelled(answered=True) == (False, False)
