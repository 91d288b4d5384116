"""Requests that go straight to their route are answered as FastAPI answers them."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.testclient import TestClient
from support.service.service_fakes import ORIGIN

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import NotFound
from dsearch.service import create_app
from dsearch.service.middleware.straight import Straight
from dsearch.service.middleware.strict_route import StrictRoute

ASKED: list[tuple[str, str, bytes]] = [
    ("GET", "/healthz", b""),
    ("HEAD", "/healthz", b""),
    ("POST", "/healthz", b""),
    ("GET", "/healthz/", b""),
    ("GET", "/readyz", b""),
    ("GET", "/nowhere", b""),
    ("GET", "/problems/gone", b""),
    ("GET", "/v1/collections", b""),
    ("GET", "/v1/collections/papers", b""),
    ("GET", "/v1/collections/none", b""),
    ("GET", "/v1/collections/papers/search?q=cat", b""),
    ("POST", "/v1/collections/papers/search", b'{"query": "cat"}'),
    ("POST", "/v1/collections/papers/search/", b'{"query": "cat"}'),
    ("PATCH", "/v1/collections/papers/search", b'{"query": "cat"}'),
    ("POST", "/v1/collections/pa%2Fpers/search", b'{"query": "cat"}'),
    ("POST", "/v1/collections/papers/documents/delete", b'{"ids": ["none"]}'),
    ("GET", "/v1/collections/papers/documents/d001", b""),
    ("DELETE", "/v1/collections/papers/documents/none", b""),
    ("PUT", "/v1/collections/papers/documents", b"[]"),
    ("GET", "/v1/tasks", b""),
]
_OWN = {"took_ms", "query_id", "request_id"}  # of each answer


def told(client: TestClient) -> list[Any]:
    found: list[Any] = []
    for method, path, body in ASKED:
        headers = {"content-type": "application/json"} if body else {}
        answer = client.request(method, path, content=body, headers=headers, follow_redirects=False)
        content = answer.json() if "json" in answer.headers.get("content-type", "") and answer.content else {}
        shown = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
        shown.pop("content-length", None)  # the time that it took has more digits or fewer
        if isinstance(content, dict):
            content = {name: value for name, value in content.items() if name not in _OWN}
        found.append((method, path, answer.status_code, shown, content))
    return found


def test_answers_are_those_of_fastapi(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight: list[str] = []
    answer = Straight._answer  # pyright: ignore[reportPrivateUsage]

    async def counted(self: Straight, handler: Any, scope: Any, receive: Any, send: Any) -> None:
        straight.append(scope["path"])
        await answer(self, handler, scope, receive, send)

    monkeypatch.setattr(Straight, "_answer", counted)
    with TestClient(create_app(engine, query_timeout_s=30), base_url=ORIGIN) as client:
        by_us = told(client)
    assert {"/healthz", "/readyz", "/v1/collections/papers/search"} <= set(straight)
    monkeypatch.setattr("dsearch.service.middleware.straight._handler_of", lambda route: None)
    count = len(straight)
    with TestClient(create_app(engine, query_timeout_s=30), base_url=ORIGIN) as client:
        assert told(client) == by_us
    assert len(straight) == count
    assert {status for _, _, status, _, _ in by_us} >= {200, 404, 405}


async def first(name: str) -> dict[str, str]:
    return {"first": name}


async def second(name: str) -> Response:
    return Response(f"second {name}")


async def failing(request: Request) -> Response:
    raise {"/known": NotFound("no such thing"), "/unknown": ZeroDivisionError()}[request.url.path]


def small() -> FastAPI:
    app, router = FastAPI(), APIRouter(route_class=StrictRoute)
    router.get("/both/{name}")(first)  # answers with what is not a response: FastAPI's to call
    router.get("/both/{name}")(second)
    router.get("/second/{name}")(second)
    router.get("/known")(failing)
    router.get("/unknown")(failing)
    app.include_router(router)
    app.add_middleware(Straight, routes=router.routes)
    return app


def test_the_first_route_that_matches_is_the_one() -> None:
    with TestClient(small()) as client:
        assert client.get("/both/a").json() == {"first": "a"}
        assert client.get("/second/a").text == "second a"


def test_a_mounted_application_has_fastapi_take_its_prefix_away() -> None:
    with TestClient(small(), root_path="/below") as client:
        assert client.get("/below/second/a").text == "second a"


def test_errors_are_answered_where_they_are_known() -> None:
    with TestClient(small()) as client:
        known = client.get("/known")
        assert (known.status_code, known.json()["code"]) == (404, "not_found")
        with pytest.raises(ZeroDivisionError):
            client.get("/unknown")
