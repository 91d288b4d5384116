"""When a client tries again and when it does not, what it makes of errors, and what it loads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from dsearch.client import AsyncClient, Client
from dsearch.errors import (
    AccessDenied,
    CollectionNotFound,
    Conflict,
    DsearchError,
    InvalidRequest,
    KeyMissing,
    ScopeTooNarrow,
    Unavailable,
)
from dsearch.service.deadline import MAX_READ_TIMEOUT_S

READY = httpx2.Response(200, json={"status": "ready"})


def problem(status: int, code: str, **headers: str) -> httpx2.Response:
    content = {"type": f"/problems/{code}", "title": "…", "status": status, "code": code, "detail": "said"}
    return httpx2.Response(status, json=content, headers=headers)


class Replies:
    """Answers in their order, or errors raised, and what was asked and how long was paused meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *replies: httpx2.Response | Exception):
        self.replies, self.asked, self.pauses_s = [*replies], list[httpx2.Request](), list[float]()
        monkeypatch.setattr("time.sleep", self.pauses_s.append)

        async def sleep(pause_s: float) -> None:
            self.pauses_s.append(pause_s)

        monkeypatch.setattr("asyncio.sleep", sleep)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return httpx2.Response(reply.status_code, headers=reply.headers, content=reply.content)  # used once

    @property
    def paused_s(self) -> list[float]:
        return [pause_s for pause_s in self.pauses_s if pause_s]


Call = Callable[..., Any]


@pytest.fixture(params=["waits", "awaits"])
def call(request: pytest.FixtureRequest) -> Call:
    """Calls a method of a client that gets these replies, in both manners."""

    def waits(replies: Replies, name: str, *args: Any, own: Any = None, **options: Any) -> Any:
        with Client(transport=httpx2.MockTransport(replies), **(own or {})) as client:
            return getattr(client, name)(*args, **options)

    def awaits(replies: Replies, name: str, *args: Any, own: Any = None, **options: Any) -> Any:
        async def main() -> Any:
            async with AsyncClient(transport=httpx2.MockTransport(replies), **(own or {})) as client:
                return await getattr(client, name)(*args, **options)

        return asyncio.run(main())

    return {"waits": waits, "awaits": awaits}[request.param]


@pytest.mark.parametrize(
    "first",
    [
        problem(503, "overloaded"),
        problem(429, "overloaded"),
        httpx2.ConnectError("refused"),
        httpx2.RemoteProtocolError("server disconnected"),
        httpx2.ReadError("reset"),
    ],
)
def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, call: Call, first: Any) -> None:
    replies = Replies(monkeypatch, first, first, READY)
    assert call(replies, "ready") is True
    assert len(replies.asked) == 3
    assert 0.1 <= replies.paused_s[0] <= 0.2 <= replies.paused_s[1] <= 0.4


def test_retry_after_is_waited_for_and_not_outlived(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    replies = Replies(monkeypatch, problem(503, "not_ready", **{"Retry-After": "3"}), READY)
    assert call(replies, "ready") is True
    assert replies.paused_s == [3.0]
    replies = Replies(monkeypatch, problem(503, "not_ready", **{"Retry-After": "10"}), READY)
    assert call(replies, "ready") is True
    for later in ("11", "3600"):
        replies = Replies(monkeypatch, problem(503, "not_ready", **{"Retry-After": later}))
        with pytest.raises(Unavailable, match="said"):
            call(replies, "ready")
        assert replies.paused_s == []


def test_it_gives_up_with_the_server_s_own_words(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    replies = Replies(monkeypatch, *[problem(503, "overloaded")] * 3)
    with pytest.raises(Unavailable) as error:
        call(replies, "ready", own={"retries": 2})
    assert (error.value.code, error.value.status, str(error.value)) == ("overloaded", 503, "said")
    assert len(replies.asked) == 3
    replies = Replies(monkeypatch, *[httpx2.ConnectError("connection refused")] * 2)
    with pytest.raises(
        Unavailable, match=r"GET http://127.0.0.1:8080/readyz: connection refused; .* dsearch serve"
    ):
        call(replies, "ready", own={"retries": 1})


@pytest.mark.parametrize(
    ("first", "tries"),
    [
        (problem(503, "overloaded"), 2),
        (httpx2.ConnectError("refused"), 2),
        (httpx2.RemoteProtocolError("server disconnected"), 1),
        (httpx2.ReadTimeout("slow"), 1),
    ],
)
@pytest.mark.parametrize("method", ["add_model", "save_model"])
def test_what_adds_something_is_not_sent_twice(
    monkeypatch: pytest.MonkeyPatch, call: Call, first: Any, tries: int, method: str
) -> None:
    added = httpx2.Response(201, json={"model": "v1", "parent": "v0", "sequence": 3})
    answers = {"add_model": (added, "model", "v1"), "save_model": (task("queued"), "id", "t1")}
    answer, name, value = answers[method]
    replies = Replies(monkeypatch, first, answer)
    if tries == 2:
        assert getattr(call(replies, method, "papers", {}), name) == value
    else:
        with pytest.raises(Unavailable):
            call(replies, method, "papers", {})
    assert len(replies.asked) == tries


def test_a_batch_that_was_refused_for_now_is_sent_again_and_no_other(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    def written(inserted: int) -> httpx2.Response:
        rest = {"updated": 0, "unchanged": 0, "refused": 0, "problems": []}
        return httpx2.Response(200, json={"sequence": 1, "inserted": inserted, **rest})

    replies = Replies(monkeypatch, written(1000), problem(503, "overloaded"), written(500))
    taken: list[int] = []

    def documents():
        for number in range(1500):
            taken.append(number)
            yield {"id": str(number), "text": "x"}

    assert call(replies, "upsert", "papers", documents()).inserted == 1500
    sent = [[json.loads(line)["id"] for line in request.content.splitlines()] for request in replies.asked]
    assert [len(ids) for ids in sent] == [1000, 500, 500]
    assert sent[1] == sent[2]
    assert sent[0] + sent[2] == [str(number) for number in taken]


@pytest.mark.parametrize(
    ("reply", "kind", "code", "tries"),
    [
        (problem(404, "collection_not_found"), CollectionNotFound, "collection_not_found", 1),
        (problem(409, "code_of_a_newer_server"), Conflict, "code_of_a_newer_server", 1),
        (problem(413, "body_too_large"), InvalidRequest, "body_too_large", 1),
        (problem(401, "key_missing"), KeyMissing, "key_missing", 1),
        (problem(403, "scope_too_narrow"), ScopeTooNarrow, "scope_too_narrow", 1),
        (problem(403, "origin_not_allowed"), AccessDenied, "origin_not_allowed", 1),
        (problem(500, "internal_error"), DsearchError, "internal_error", 1),
        (httpx2.Response(502, text="<html>bad gateway"), Unavailable, "unavailable", 1),
        (httpx2.Response(200, text="<html>hello"), Unavailable, "unavailable", 1),
        (httpx2.ReadTimeout("slow"), Unavailable, "unavailable", 1),
    ],
)
def test_an_answer_that_is_none_says_so(
    monkeypatch: pytest.MonkeyPatch, call: Call, reply: Any, kind: type[Exception], code: str, tries: int
) -> None:
    replies = Replies(monkeypatch, *[reply] * 5)
    with pytest.raises(DsearchError) as error:
        call(replies, "ready")
    assert (type(error.value), error.value.code) == (kind, code)
    assert len(replies.asked) == tries
    if isinstance(reply, httpx2.ReadTimeout):
        assert "no answer in 30 s; give a larger timeout_s" in str(error.value)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("ready", httpx2.ReadTimeout("slow"), r"no answer in 1\.5 s; give a larger timeout_s$"),
        ("delete_collection", httpx2.WriteTimeout("slow"), "no answer in 7 s; give a larger write_timeout_s"),
        ("ready", httpx2.ConnectTimeout("silent"), "silent; is the server running.* dsearch serve"),
    ],
    ids=["read", "write", "connect"],
)
def test_who_waited_in_vain_is_told_what_to_change(
    monkeypatch: pytest.MonkeyPatch, call: Call, name: str, error: Exception, said: str
) -> None:
    own = {"timeout_s": 1.5, "write_timeout_s": 7.0, "retries": 0}
    with pytest.raises(Unavailable, match=said):
        call(Replies(monkeypatch, error), name, *(["papers"] if name != "ready" else []), own=own)


def task(state: str) -> httpx2.Response:
    content = {"id": "t1", "kind": "train", "collection": "papers", "created": "2026-01-31T12:00:00+00:00"}
    return httpx2.Response(202 if state == "queued" else 200, json={**content, "state": state})


def test_a_task_is_waited_for(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    replies = Replies(monkeypatch, task("queued"), task("running"), problem(503, "overloaded"), task("done"))
    assert call(replies, "wait_for_task", "t1").state == "done"
    assert [pause_s for pause_s in replies.paused_s if pause_s == 0.5] == [0.5, 0.5]
    assert replies.asked[0].url.path == "/v1/tasks/t1"
    replies = Replies(monkeypatch, *[task("running")] * 5)
    waiting = functools.partial(call, replies, "wait_for_task", "t1")
    with pytest.raises(Unavailable, match="task t1 is running after 1 s"):
        waiting(timeout_s=1)
    assert len(replies.asked) == 3  # after 0, .5 and 1 s


def test_training_is_asked_for_as_the_route_has_it(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    replies = Replies(monkeypatch, task("queued"), httpx2.ReadError("reset"))
    train = functools.partial(call, replies, "train", "papers")
    assert train(source="feedback", seed=3).id == "t1"
    assert json.loads(replies.asked[0].content) == {"from": "feedback", "seed": 3}
    with pytest.raises(Unavailable):  # it may have begun, and is not begun twice
        train(self_supervised=True)
    assert len(replies.asked) == 2


def test_what_is_sent_beside_the_question(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    replies = Replies(monkeypatch, READY)
    limits = {"timeout_s": 1.5, "write_timeout_s": 2.5}
    call(replies, "ready", own={"url": "https://other.example/below", "api_key": "ds_key", **limits})
    (asked,) = replies.asked
    assert str(asked.url).startswith("https://other.example/below/")
    assert {*asked.extensions["timeout"].values()} == {1.5}
    headers = asked.headers
    assert (headers["authorization"], headers["x-timeout-ms"]) == ("Bearer ds_key", "1500")
    assert headers["accept"] == "application/json, application/problem+json"
    replies = Replies(monkeypatch, httpx2.Response(204))
    call(replies, "delete_collection", "papers", own=limits)
    assert {*replies.asked[0].extensions["timeout"].values()} == {2.5}
    assert "authorization" not in replies.asked[0].headers
    assert "x-timeout-ms" not in replies.asked[0].headers


@contextlib.contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that says it is ready, and the request lines that reached it."""
    lines: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lines.append(self.requestline)
            self.send_response(200)
            self.send_header("content-length", str(len(READY.content)))
            self.end_headers()
            self.wfile.write(READY.content)

        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", lines
        finally:
            server.shutdown()
            thread.join()


def test_queries_go_to_the_server_whatever_proxy_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ready(url: str) -> bool:
        async with AsyncClient(url, retries=0) as client:
            return await client.ready()

    with listening() as (url, asked), listening() as (proxy, seen):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with Client(url, retries=0) as client:
            assert client.ready()
        assert asyncio.run(ready(url))
    assert asked == ["GET /readyz HTTP/1.1"] * 2
    assert seen == []


def test_the_server_is_given_no_more_time_than_it_takes(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """A longer wait of the client's own must not make each read a 422."""
    for timeout_s in (30.0, 100.0):
        replies = Replies(monkeypatch, READY)
        call(replies, "ready", own={"timeout_s": timeout_s})
        sent_ms = int(replies.asked[0].headers["x-timeout-ms"])
        assert sent_ms == 30_000 == 1000 * MAX_READ_TIMEOUT_S


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "localhost:8080"}, "url='localhost:8080'; use one such as http://127.0.0.1:8080"),
        ({"timeout_s": 0}, "timeout_s=0; use a number of seconds above 0"),
        ({"retries": -1}, "retries=-1; use 0 or more"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_settings_that_cannot_be_are_refused(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        kind(**options)


def test_questions_that_are_no_json_are_refused_before_they_are_sent(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        call(Replies(monkeypatch), "upsert", "papers", [{"id": "a", "text": {1, 2}}])


def test_a_client_loads_no_engine() -> None:
    code = "import sys, dsearch; dsearch.Client(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "faiss", "fastapi", "numpy", "dsearch.engine", "httpx2"} & set(done.stdout.split())
