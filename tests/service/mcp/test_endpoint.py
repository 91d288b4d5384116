"""The route of agents as a route: any message gets an answer, under overload and without the SDK too."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from support.service.overload import nothing
from support.service.problems import problem_in
from support.service.service_fakes import ORIGIN
from support.sizes import by_size

from dsearch.engine import Collection, SearchEngine
from dsearch.service.mcp.tools import TOOLS, ToolCaller
from dsearch.service.mcp.transports import Endpoint, caller_of
from dsearch.service.state import Service

ACCEPTS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1e300, 1e300) | TEXT | st.just("papers/d001"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=6,
)
ARGUMENTS = sorted({name for tool in TOOLS.values() for name in tool.arguments.model_fields})
CALLS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(sorted(TOOLS)) | TEXT,
        "arguments": st.dictionaries(st.sampled_from(ARGUMENTS) | TEXT, VALUES, max_size=3),
    }
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": st.sampled_from(["tools/call", "tools/list", "initialize", "x"])},
    optional={"id": st.integers(0, 9) | TEXT, "params": CALLS | VALUES},
)


@given(MESSAGES | VALUES)
@settings(max_examples=by_size(60, 600), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_message_gets_an_answer(client: TestClient, papers: Collection, sent: Any) -> None:
    answered = client.post("/mcp", content=json.dumps(sent).encode(), headers=ACCEPTS)
    assert answered.status_code < 500, answered.text
    if isinstance(sent, dict) and sent.get("method") == "tools/call" and answered.status_code == 200:
        content = answered.json()
        result = content.get("result", {})
        assert "error" in content or result["isError"] or result["structuredContent"]
        assert "unexpected error" not in answered.text


def test_a_crowd_is_refused_in_words_that_an_agent_reads(
    app: FastAPI, client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    service: Service = app.state.service
    monkeypatch.setattr(service.admission, "searches", 10_000)
    refused = client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=ACCEPTS)
    assert (refused.status_code, problem_in(refused)["code"]) == (503, "overloaded")
    assert refused.json()["error"]["message"] == problem_in(refused)["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    native = client.post("/v1/collections/papers/search", json={"query": "cat"})
    assert (native.status_code, native.json()["code"]) == (503, "overloaded")


def test_an_error_that_nobody_expected_shows_nothing(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret: /home/somebody/key")

    monkeypatch.setattr(Collection, "answer", fail)
    call = {"name": "search", "arguments": {"query": "cat"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answered = client.post("/mcp", json=message, headers=ACCEPTS)
    assert answered.json()["result"]["isError"]
    assert "unexpected error" in answered.text
    assert "secret" not in answered.text


LISTING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def test_a_first_request_that_is_given_up_stops_no_other(app: FastAPI, engine: SearchEngine) -> None:
    """The SDK is started by the first; a client that goes away meanwhile takes it from nobody else."""

    async def scenario() -> int:
        endpoint = Endpoint(app.state.service)
        given_up = asyncio.create_task(endpoint({"method": "POST"}, nothing, nothing))
        await asyncio.sleep(0)
        given_up.cancel()
        with suppress(asyncio.CancelledError):
            await given_up
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(endpoint), base_url=ORIGIN) as client:
            answer = await client.post("/mcp", json=LISTING, headers=ACCEPTS)
        await endpoint.stop()
        return answer.status_code

    assert asyncio.run(scenario()) == 200


def test_a_stopped_service_leaves_no_work_behind(app: FastAPI, papers: Collection) -> None:
    """Nor what the first request of an agent and the first write began."""

    async def scenario() -> set[str]:
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ORIGIN) as client,
        ):
            assert (await client.post("/mcp", json=LISTING, headers=ACCEPTS)).status_code == 200
            app.state.service.calibrate_soon(papers.name)
        for _ in range(3):  # what is cancelled ends with the loop's next turns
            await asyncio.sleep(0)
        return {str(task) for task in asyncio.all_tasks() - {asyncio.current_task()}}

    assert asyncio.run(scenario()) == set()


def test_a_body_too_large_is_refused(client: TestClient) -> None:
    assert client.post("/mcp", content=b"0" * (7 << 20), headers=ACCEPTS).status_code != 413
    assert client.post("/mcp", content=b"0" * (9 << 20), headers=ACCEPTS).status_code == 413


def test_without_the_package_the_extra_is_named(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.streamable_http_manager", None)
    answered = client.post("/mcp", json={}, headers=ACCEPTS)
    assert (answered.status_code, problem_in(answered)["code"]) == (503, "missing_extra")
    assert "pip install 'dsearch[mcp]'" in problem_in(answered)["detail"]


@pytest.mark.parametrize(
    ("noted", "scope", "key"),
    [
        ({}, "admin", ""),
        ({"key_scope": "read", "key_id": "3f9a"}, "read", "3f9a"),
        ({"key_scope": None}, "admin", ""),
    ],
)
def test_a_caller_has_the_scope_that_was_noted(noted: dict[str, Any], scope: str, key: str) -> None:
    """Nothing is noted where no key is required; without a request nobody was asked for one."""
    url = SimpleNamespace(scheme="https")
    request = SimpleNamespace(state=SimpleNamespace(**noted), url=url, headers={"host": "search:8080"})
    caller = caller_of(SimpleNamespace(request=request))  # type: ignore[arg-type]
    assert caller == ToolCaller(scope, key, "https://search:8080")
    assert caller_of(SimpleNamespace(request=None)) == ToolCaller("read")  # type: ignore[arg-type]
