"""What is not a call: liveness, metrics, the page at `/`, the API's description and the guides.

Pages are static files of this package, no other host's, and Markdown of it that is rendered here. The
description, `/openapi.json`, is the same for everybody: a second of work when it is first asked for, and
bytes from then on.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from html import escape, unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
from fastapi import APIRouter, FastAPI
from markdown_it import MarkdownIt
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from dsearch.errors import EncoderUnavailable, NotFound
from dsearch.guide import guide, guides, picture
from dsearch.guide.search import anchor_of, search_guides
from dsearch.operations import Ready
from dsearch.service.errors import NotReady
from dsearch.service.routes.served import Asked, serves
from dsearch.service.schemas.answers import Health
from dsearch.service.state import TheService
from dsearch.service.telemetry import MEDIA_TYPE
from dsearch.service.wire import problems
from dsearch.service.wire.json import CONTENT_SECURITY_POLICY, json_answer
from dsearch.service.wire.problems import problem_of

UI = Path(__file__).parents[1] / "ui"
T = TypeVar("T")
router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Report that the process lives."""
    return json_answer({"status": "ok"})


@serves(router, Ready, NotReady, EncoderUnavailable, response_model=Health)
async def readyz(asked: Asked, _: Ready) -> dict[str, Any]:
    asked.service.require_ready()
    return {"status": "ready"}


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'dsearch_queue_depth{worker="search"} 0.0\n'}}}},
)
async def metrics(service: TheService) -> Response:
    """Counters and gauges in Prometheus' text format; needs a key of scope read where keys are on."""
    return Response(await service.read(service.metrics.text), media_type=MEDIA_TYPE)


@router.get("/problems/{code}", responses=problems.documented(NotFound))
async def describe_problem(code: str) -> dict[str, Any]:
    """Describe a problem `type`: its code, status and title."""
    return problems.describe(code)


# ---- pages


class RenderedOnce(Generic[T]):
    """Content that is rendered when it is first needed, and kept.

    The event loop renders nothing, and requests that come meanwhile hold no thread.

    Args:
        render: returns the content; called in a thread, once.
    """

    def __init__(self, render: Callable[[], T]):
        self._render = render
        self._kept: list[T] = []
        self._turn = asyncio.Lock()
        self._rendering = threading.Lock()

    async def content(self) -> T:
        """The content."""
        if not self._kept:
            async with self._turn:
                await run_in_threadpool(self._keep)
        return self._kept[0]

    def _keep(self) -> None:
        with self._rendering:  # the thread of a request that went away goes on
            if not self._kept:
                self._kept.append(self._render())


class _Files(StaticFiles):
    """Files that a browser asks about again each time: a new release is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def install(app: FastAPI) -> None:
    """Serve the page, the API's description, the page that shows it, and the guides."""
    guides_of = _Guides()
    app.router.routes += [
        Route("/", _page("index.html"), name="page"),
        Route("/docs", _page("docs.html"), name="docs"),
        Route("/openapi.json", _description(app), name="openapi", include_in_schema=False),
        Mount("/docs/assets", _Files(directory=_swagger_folder()), name="docs_assets"),
        Mount("/ui", _Files(directory=UI), name="ui"),
        Route("/guide", guides_of.answer, name="guides"),
        Route("/guide/{name}.png", _picture, name="guide_picture"),
        Route("/guide/{topic}", guides_of.answer, name="guide"),
    ]


def _page(name: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def page(request: Request) -> Response:
        return FileResponse(UI / name, headers={"Cache-Control": "no-cache"})

    return page


def _description(app: FastAPI) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    document = RenderedOnce(lambda: orjson.dumps(app.openapi()))

    async def description(request: Request) -> Response:
        return Response(await document.content(), media_type="application/json")

    return description


def _swagger_folder() -> Path:
    """The folder of Swagger UI's files inside the package `fastapi-offline`, of which nothing is run here."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "static"


# ---- guides

_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title} · dsearch</title>
  <link rel="icon" href="/ui/icon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="/ui/guide.css">
</head>
<body>
  <nav aria-label="Guides"><a class="home" href="/">dsearch</a>
    <form action="/guide" role="search">
      <input type="search" name="q" value="{query}" maxlength="200" aria-label="Search the guides"
        placeholder="Search the guides">
    </form><ul>{links}</ul></nav>
  <main>{body}</main>
</body>
</html>
"""
MAX_QUERY_CHARACTERS = 200
RESULTS = 10
_POLICY = CONTENT_SECURITY_POLICY.replace("form-action 'none'", "form-action 'self'")
_HEADING = re.compile(r"<h([23])>(.*?)</h\1>")
_TAG = re.compile(r"<[^>]+>")
# Raw HTML is shown as text: a guide is Markdown and nothing else.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


async def _picture(request: Request) -> Response:
    try:
        path = picture(f"{request.path_params['name']}.png")
    except NotFound as error:
        return problem_of(error)
    return FileResponse(path, headers={"Cache-Control": "no-cache"})


class _Guides:
    """The pages of the guides, each rendered once: Markdown, without scripts."""

    def __init__(self) -> None:
        self._listed = RenderedOnce(lambda: {entry.topic: entry.title for entry in guides()})
        self._pages: dict[str, RenderedOnce[str]] = {}

    async def answer(self, request: Request) -> Response:
        """The page of a topic, or of the sections that have the words of a query."""
        listed = await self._listed.content()
        query = request.query_params.get("q", "")[:MAX_QUERY_CHARACTERS].strip()
        if query:
            return _answer(await run_in_threadpool(_results, query))
        topic = request.path_params.get("topic", next(iter(listed)))
        if topic not in listed:
            try:
                await run_in_threadpool(guide, topic)
            except NotFound as error:
                return problem_of(error)
        page = self._pages.setdefault(topic, RenderedOnce(lambda: _rendered(topic, listed[topic])))
        return _answer(await page.content())


def _rendered(topic: str, title: str) -> str:
    # On /guide itself a picture's name would lead elsewhere.
    body = _MARKDOWN.render(guide(topic)).replace('<img src="', '<img src="/guide/')
    for wide in ("pre", "table"):  # they scroll within, by keyboard too
        body = body.replace(f"<{wide}>", f'<{wide} tabindex="0">')
    return _guide_page(title, _HEADING.sub(_with_anchor, body), topic)


def _results(query: str) -> str:
    sections = search_guides(query, RESULTS)
    items = "".join(
        f'<li><a href="/guide/{section.topic}#{section.anchor}">{escape(section.heading)}</a> '
        f"({section.topic})<br>{escape(section.snippet)}</li>"
        for section in sections
    )
    body = f"<ol>{items}</ol>" if items else "<p>No guide has these words; try others, or read the list.</p>"
    return _guide_page(f"Guides: {query}", f"<h1>{escape(query)}</h1>{body}", query=query)


def _with_anchor(heading: re.Match[str]) -> str:
    level, content = heading.groups()
    return f'<h{level} id="{anchor_of(unescape(_TAG.sub("", content)))}">{content}</h{level}>'


def _guide_page(title: str, body: str, topic: str = "", query: str = "") -> str:
    links = "".join(
        f'<li><a href="/guide/{entry.topic}"{" aria-current=page" if entry.topic == topic else ""}>'
        f"{escape(entry.title)}</a></li>"
        for entry in guides()
    )
    return _PAGE.format(title=escape(title), links=links, body=body, query=escape(query, quote=True))


def _answer(page: str) -> Response:
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}
    return HTMLResponse(page, headers=headers)
