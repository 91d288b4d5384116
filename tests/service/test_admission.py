"""Overload: refused at the door with Retry-After; a bounded number inside; nothing accepted is lost."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.patience import LATEST_S
from support.service.overload import SEARCH, fill, nothing
from support.service.service_fakes import WordEncoder

from dsearch.engine import Collection
from dsearch.service import admission as lateness
from dsearch.service.admission import (
    BURST,
    CALM_S,
    LEAST,
    LONG_S,
    MAX_IN_FLIGHT,
    MOST,
    SHORT_S,
    TIGHT_S,
    TWO_BATCHES,
    Admission,
    EventLoopLag,
)
from dsearch.service.server import _settle
from dsearch.service.wire import json as strict_json


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def admission(pace_s: float = 0.0, clock: Clock | None = None) -> Admission:
    return Admission(lambda: pace_s, EventLoopLag(), clock or Clock())


def test_a_late_loop_refuses_no_file_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    lag = EventLoopLag()
    door = Admission(lambda: 0.0, lag)
    monkeypatch.setattr(lag, "refuses", lambda: True)
    assert door.refuses("/v1/collections")
    for path in ("/", "/docs", "/ui/app.js", "/ui/icon.svg"):
        assert not door.refuses(path), path
    door.requests = MAX_IN_FLIGHT
    assert door.refuses("/ui/app.js")


def test_a_burst_may_wait_and_a_load_that_stays_may_not() -> None:
    clock = Clock()
    door = admission(clock=clock)
    assert door.limit == BURST
    places = fill(door)
    assert len(places) == BURST
    assert door.limit == TWO_BATCHES
    for _ in range(BURST - TWO_BATCHES):
        assert door.refuses(SEARCH)
        places.pop().leave()
    assert door.refuses(SEARCH)
    places.pop().leave()
    assert not door.refuses(SEARCH)
    clock.now += 0.9 * CALM_S
    assert door.limit == TWO_BATCHES
    clock.now += 0.2 * CALM_S  # nobody was refused meanwhile
    assert door.limit == BURST


def test_every_refusal_keeps_it_tight_but_not_for_ever() -> None:
    clock = Clock()
    door = admission(clock=clock)
    places = fill(door)
    tight = 0
    while door.limit == TWO_BATCHES and tight < 1000:
        assert door.refuses(SEARCH)
        clock.now += 0.5 * CALM_S
        tight += 1
    assert tight == TIGHT_S / (0.5 * CALM_S)
    for _ in range(BURST // 2):
        places.pop().leave()
    for _ in range(100):  # half a burst that stays is no overload
        assert not door.refuses(SEARCH)
        clock.now += 0.5 * CALM_S
    fill(door)
    assert door.limit == TWO_BATCHES


def test_while_others_are_refused_a_batch_is_half_of_those_let_in() -> None:
    clock = Clock()
    for pace_s, half in ((0.005, TWO_BATCHES // 2), (SHORT_S / 100, 50), (LONG_S, LEAST // 2)):
        door = admission(pace_s, clock)
        assert door.batch >= MOST
        fill(door)
        assert door.batch == half
        clock.now += 1.1 * CALM_S
        assert door.batch >= MOST


def test_the_worker_of_searches_asks_how_many_belong_together(app: FastAPI) -> None:
    service = app.state.service
    assert service.searching.most_together() >= MOST
    fill(service.admission)
    assert service.searching.most_together() == service.admission.batch == TWO_BATCHES // 2


@pytest.mark.parametrize(
    ("pace_s", "limit"),
    [
        (0.005, BURST),
        (SHORT_S / 100, 100),  # a quick service: a short wait is many searches
        (1e-6, MOST),
        (LONG_S / 40, 40),  # a slow one: a burst would wait too long
        (LONG_S, LEAST),
    ],
)
def test_how_many_follows_from_the_pace(pace_s: float, limit: int) -> None:
    assert admission(pace_s).limit == limit


def test_only_what_computes_counts_as_a_search() -> None:
    door = admission()
    fill(door)
    for path in (
        "/v1/collections/papers",
        "/v1/collections/papers/documents",
        "/v1/collections/papers/documents/search",
        "/v1/tasks",
        "/",
    ):
        assert not door.refuses(path)
        door.let_in(path, nothing).take()
        assert door.searches == BURST
    for path in ("search", "search/batch", "similar", "attend", "vjp", "predict"):
        assert door.refuses(f"/v1/collections/papers/{path}")


def test_requests_of_any_kind_are_bounded_but_for_how_it_is() -> None:
    door = admission()
    assert len(fill(door, "/v1/collections/papers/documents")) == MAX_IN_FLIGHT
    for path in ("/healthz", "/readyz", "/metrics"):
        assert not door.refuses(path)


def test_one_pause_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was asleep, or a long garbage collection: the next requests are answered."""
    monkeypatch.setattr(lateness, "TOLERATED_S", 0.3)
    monkeypatch.setattr(lateness, "FULL_S", 1.5)
    lag = EventLoopLag()
    lag.observe(2.0)
    assert not any(lag.refuses() for _ in range(20))
    assert lag.seconds == 2.0  # and the metric says so
    lag.observe(0.001)
    assert not any(lag.refuses() for _ in range(20))
    for _ in range(2):
        lag.observe(2.0)
    assert sum(lag.refuses() for _ in range(20)) >= 17  # nine of ten


# ---- through the service


def test_twice_what_it_can_answer(
    app: FastAPI,
    client: TestClient,
    papers: Collection,
    encoder: WordEncoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests come whether others were answered or not (open loop), twice as fast as answers."""
    encode = encoder.encode_queries
    waiting: list[int] = []
    free = threading.Semaphore(0)

    def slowly(texts: Sequence[str]) -> np.ndarray:
        for _ in texts:
            assert free.acquire(timeout=LATEST_S)
        waiting.append(app.state.service.admission.searches)
        return encode(texts)

    monkeypatch.setattr(encoder, "encode_queries", slowly)
    parsed: list[bytes] = []
    parse = strict_json.parse
    monkeypatch.setattr(strict_json, "parse", lambda body: parsed.append(body) or parse(body))
    answers: dict[int, tuple[int, dict[str, str], Any]] = {}
    sent = 400

    async def ask(number: int) -> None:
        body = json.dumps({"query": f"cat {number}", "limit": 1}).encode()
        messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await asyncio.sleep(3600)
            return None

        got: list[Any] = []

        async def send(message: Any) -> None:
            got.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": SEARCH,
            "raw_path": SEARCH.encode(),
            "query_string": b"",
            "headers": headers,
            "http_version": "1.1",
            "scheme": "http",
        }
        await app(scope, receive, send)
        answered = {name.decode(): value.decode() for name, value in got[0]["headers"]}
        answers[number] = got[0]["status"], answered, json.loads(got[1]["body"])

    async def flood() -> None:
        running = []
        for number in range(sent):
            running.append(asyncio.ensure_future(ask(number)))
            if number % 2:
                free.release()
            await asyncio.sleep(0.001)
        free.release(sent)
        await asyncio.gather(*running)

    client.portal.call(flood)  # type: ignore[union-attr]

    accepted = {number for number, (status, _, _) in answers.items() if status == 200}
    refused = {number for number, (status, _, _) in answers.items() if status == 503}
    assert accepted | refused == set(range(sent))  # everybody has an answer, and no other one
    assert refused
    assert all(answers[number][2]["hits"] for number in accepted)
    for number in refused:
        _, headers, problem = answers[number]
        assert (problem["code"], headers["retry-after"]) == ("overloaded", "1")
        assert headers["content-type"] == "application/problem+json"
    assert max(waiting) <= BURST  # what is inside is bounded
    assert len(parsed) == len(accepted)  # who is refused is refused before a byte of his body is looked at
    assert (app.state.service.admission.searches, app.state.service.searching.depth) == (0, 0)
    metrics = client.get("/metrics").text
    assert f'dsearch_rejections_total{{reason="overloaded",worker="server"}} {len(refused)}.0' in metrics


def test_a_refusal_is_an_answer_like_others(app: FastAPI, client: TestClient, papers: Collection) -> None:
    service = app.state.service
    places = fill(service.admission)
    refused, ids = client.post(SEARCH, json={"query": "cat"}), set()
    for _ in range(3):
        ids.add(client.post(SEARCH, json={"query": "cat"}).headers["x-request-id"])
    for place in places:
        place.leave()
    found = client.post(SEARCH, json={"query": "cat"})
    assert (refused.status_code, refused.json()["code"], found.status_code) == (503, "overloaded", 200)
    assert len(ids) == 3
    same = ("content-security-policy", "x-content-type-options", "cache-control", "referrer-policy")
    assert {name: refused.headers[name] for name in same} == {name: found.headers[name] for name in same}
    assert "connection" not in refused.headers
    fill(service.admission)
    service.leaving = True
    assert client.post(SEARCH, json={"query": "cat"}).headers["connection"] == "close"


def test_an_error_leaves_no_one_inside(app: FastAPI, client: TestClient, papers: Collection) -> None:
    for body in ({"query": ""}, {}, {"query": "cat", "limit": -1}):
        assert client.post(SEARCH, json=body).status_code == 422
    assert client.post(SEARCH, json={"query": "cat"}, headers={"Host": "evil.example"}).status_code == 421
    assert client.post("/v1/collections/none/search", json={"query": "cat"}).status_code == 404
    assert (app.state.service.admission.searches, app.state.service.admission.requests) == (0, 0)


def test_what_stays_is_not_searched_for_garbage(app: FastAPI, papers: Collection) -> None:
    seen: list[int] = []
    service = app.state.service

    async def scenario() -> None:
        service.start()
        await _settle(service)
        service.require_ready()  # it was loaded by then
        seen.extend((gc.get_freeze_count(), gc.get_threshold()[0]))
        await service.stop()

    thresholds = gc.get_threshold()
    try:
        asyncio.run(scenario())
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
    assert seen[0] > 100_000
    assert seen[1] > thresholds[0]


def test_who_never_sends_the_rest_takes_nobodys_place() -> None:
    async def scenario() -> None:
        door = admission()
        parts = [
            {"type": "http.request", "body": b"{", "more_body": True},
            {"type": "http.request", "body": b"}", "more_body": False},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Any:
            return parts.pop(0)

        place = door.let_in(SEARCH, receive)
        counted = []
        for _ in range(3):
            await place.receive()
            counted.append((door.requests, door.searches))
        assert counted == [(0, 0), (1, 1), (1, 1)]
        place.leave()
        place.leave()
        assert (door.requests, door.searches) == (0, 0)
        door.let_in(SEARCH, nothing).leave()
        assert (door.requests, door.searches) == (0, 0)

    asyncio.run(scenario())
