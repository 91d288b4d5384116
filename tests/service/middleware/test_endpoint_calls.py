"""Endpoints that are called without FastAPI's look-through answer as they do with it."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.testclient import TestClient
from support.service.service_fakes import ORIGIN

from dsearch.engine import Collection, SearchEngine
from dsearch.service import create_app
from dsearch.service import routes as routes_package
from dsearch.service.middleware.fast_path import PlainCall
from dsearch.service.middleware.strict_route import StrictRoute

GIVEN: list[tuple[str, str, bytes]] = [
    (method, path, body)
    for method, path, good in [
        ("POST", "papers/search", {"query": "cat and dog", "limit": 3, "mode": "hybrid"}),
        ("POST", "papers/search/batch", {"queries": ["cat", "dog"], "limit": 2}),
        ("POST", "papers/similar", {"like": ["d001"], "limit": 2}),
        ("POST", "papers/attend", {"queries": ["cat"], "candidates": 3}),
        ("POST", "papers/facets", {"field": "year"}),
        ("POST", "papers/documents/delete", {"filter": {"year": {"eq": -1}}}),
        ("POST", "none/search", {"query": "cat"}),
        ("PUT", "papers", {}),
        ("PUT", "papers", {"language": "klingon"}),
    ]
    for body in [
        json.dumps(good).encode(),
        json.dumps({**good, "limit": "3", "queries": 7, "unknown": None}).encode(),
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"cat"',
        b"{",
        b'{"query": "cat", "query": "dog"}',
    ]
]
_OWN = {"took_ms", "query_id", "request_id"}  # of each answer


def told(client: TestClient) -> list[tuple[int, Any]]:
    answers: list[tuple[int, Any]] = []
    for method, path, body in GIVEN:
        headers = {"content-type": "application/json"}
        answer = client.request(method, f"/v1/collections/{path}", content=body, headers=headers)
        answers.append((answer.status_code, without_own(answer.json())))
    return answers


def without_own(value: Any) -> Any:
    if isinstance(value, list):
        return [without_own(one) for one in value]
    if isinstance(value, dict):
        return {name: without_own(one) for name, one in value.items() if name not in _OWN}
    return value


def test_answers_and_errors_are_those_of_fastapi(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestClient(create_app(engine, query_timeout_s=30), base_url=ORIGIN) as client:
        plain = told(client)
    monkeypatch.setattr(PlainCall, "fits", lambda route: False)
    with TestClient(create_app(engine, query_timeout_s=30), base_url=ORIGIN) as client:
        assert told(client) == plain
    assert {status for status, _ in plain} >= {200, 404, 422}


def test_every_route_with_a_body_is_called_so() -> None:
    routes = [
        route
        for module in pkgutil.iter_modules(routes_package.__path__)
        for route in getattr(
            importlib.import_module(f"dsearch.service.routes.{module.name}"), "router", APIRouter()
        ).routes
        if isinstance(route, StrictRoute) and route.body_field is not None
    ]
    assert len(routes) >= 15
    assert [route.path for route in routes if not PlainCall.fits(route)] == []


class Asked(BaseModel):
    number: int


async def of_the_request(request: Request) -> str:
    return request.method


async def of_a_header(word: Annotated[str, Header()]) -> str:
    return word


async def fitting(
    name: str, asked: Asked, request: Request, made: Annotated[str, Depends(of_the_request)]
) -> Response:
    return Response(f"{name} {asked.number} {request.url.path} {made}")


async def converted(number: int, asked: Asked) -> Response: ...


async def by_query(asked: Asked, word: str) -> Response: ...


async def two_bodies(asked: Asked, other: Asked) -> Response: ...


async def by_header(asked: Asked, made: Annotated[str, Depends(of_a_header)]) -> Response: ...


async def serialised(asked: Asked) -> Asked: ...


def in_a_thread(asked: Asked) -> Response: ...


@pytest.mark.parametrize(
    ("path", "endpoint", "fits"),
    [
        ("/{name}", fitting, True),
        ("/{number}", converted, False),
        ("/", by_query, False),
        ("/", two_bodies, False),
        ("/", by_header, False),
        ("/", serialised, False),
        ("/", in_a_thread, False),
    ],
)
def test_what_an_endpoint_may_ask_for(path: str, endpoint: Any, fits: bool) -> None:
    assert PlainCall.fits(APIRoute(path, endpoint, methods=["POST"])) is fits


def test_an_endpoint_is_given_what_it_asks_for() -> None:
    router, app = APIRouter(prefix="/in", route_class=StrictRoute), FastAPI()
    router.post("/{name}")(fitting)
    app.include_router(router)
    with TestClient(app) as client:
        assert client.post("/in/x", json={"number": 3}).text == "x 3 /in/x POST"
        assert client.post("/in/x", json={"number": "no"}).status_code == 422


def test_a_route_whose_parts_have_other_names_is_left_to_fastapi() -> None:
    router = APIRouter()

    @router.post("/asked")
    async def asked(body: dict[str, Any]) -> Response:
        return Response(json.dumps(body))

    (route,) = (one for one in router.routes if isinstance(one, APIRoute))
    assert PlainCall.fits(route)
    del route._embed_body_fields
    assert not PlainCall.fits(route)
