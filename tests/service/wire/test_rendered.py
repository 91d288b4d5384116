"""Descriptions and guides are rendered once, in a thread: however many ask, searches go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from support.service.service_fakes import ORIGIN

from dsearch.service.routes import pages as guide
from dsearch.service.routes.pages import RenderedOnce


class Renderer:
    """Renders slowly, and remembers in which threads."""

    def __init__(self, render: Callable[..., Any]):
        self.render = render
        self.threads: list[threading.Thread] = []

    def __call__(self, *args: Any) -> Any:
        self.threads.append(threading.current_thread())
        time.sleep(0.05)  # so that others ask meanwhile
        return self.render(*args)


def _ask(app: FastAPI, path: str, times: int) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as client:
            return await asyncio.gather(*(client.get(path) for _ in range(times)))

    return asyncio.run(ask())


def test_the_openapi_document_is_rendered_once_and_never_on_the_event_loop(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = Renderer(app.openapi)
    monkeypatch.setattr(app, "openapi", renderer)
    answers = _ask(app, "/openapi.json", 20) + _ask(app, "/openapi.json", 1)
    assert {answer.status_code for answer in answers} == {200}
    assert answers[0].headers["content-type"] == "application/json"
    assert all(answer.content == answers[0].content for answer in answers)
    assert answers[0].json() == renderer.render()
    assert len(renderer.threads) == 1
    assert renderer.threads[0] is not threading.current_thread()


def test_a_guide_is_rendered_once_and_never_on_the_event_loop(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = Renderer(guide.guide)
    monkeypatch.setattr(guide, "guide", renderer)
    answers = _ask(app, "/guide/errors", 20) + _ask(app, "/guide/errors", 1)
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.text == answers[0].text for answer in answers)
    assert len(renderer.threads) == 1
    assert renderer.threads[0] is not threading.current_thread()


def test_content_is_kept_where_the_client_that_asked_first_went_away() -> None:
    renderer = Renderer(lambda: b"content")
    rendered = RenderedOnce(renderer)

    async def ask() -> bytes:
        first = asyncio.create_task(rendered.content())
        await asyncio.sleep(0.01)
        first.cancel()
        return await rendered.content()

    assert asyncio.run(ask()) == b"content"
    assert len(renderer.threads) == 1


def test_content_that_failed_is_rendered_again() -> None:
    answers = iter([ValueError("once"), b"content"])

    def render() -> bytes:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    async def ask() -> bytes:
        rendered = RenderedOnce(render)
        with pytest.raises(ValueError, match="once"):
            await rendered.content()
        return await rendered.content()

    assert asyncio.run(ask()) == b"content"
