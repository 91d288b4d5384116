"""The guides at `/guide`: Markdown of this package, rendered here, without scripts."""

from __future__ import annotations

import re
from html import escape, unescape

from fastapi import FastAPI
from markdown_it import MarkdownIt
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from dsearch.errors import NotFound
from dsearch.guide import guide, guides, picture
from dsearch.guide.search import anchor_of, search_guides
from dsearch.service.wire.json import CONTENT_SECURITY_POLICY
from dsearch.service.wire.problems import problem_of
from dsearch.service.wire.rendered import RenderedOnce

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


def install(app: FastAPI) -> None:
    """Serve the guides; they are no part of the API's description."""
    pages = _Pages()
    app.router.routes += [
        Route("/guide", pages.answer, name="guides"),
        Route("/guide/{name}.png", _picture, name="guide_picture"),
        Route("/guide/{topic}", pages.answer, name="guide"),
    ]


async def _picture(request: Request) -> Response:
    try:
        path = picture(f"{request.path_params['name']}.png")
    except NotFound as error:
        return problem_of(error)
    return FileResponse(path, headers={"Cache-Control": "no-cache"})


class _Pages:
    """The pages of the guides, each rendered once."""

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
    return _page(title, _HEADING.sub(_with_anchor, body), topic)


def _results(query: str) -> str:
    sections = search_guides(query, RESULTS)
    items = "".join(
        f'<li><a href="/guide/{section.topic}#{section.anchor}">{escape(section.heading)}</a> '
        f"({section.topic})<br>{escape(section.snippet)}</li>"
        for section in sections
    )
    body = f"<ol>{items}</ol>" if items else "<p>No guide has these words; try others, or read the list.</p>"
    return _page(f"Guides: {query}", f"<h1>{escape(query)}</h1>{body}", query=query)


def _with_anchor(heading: re.Match[str]) -> str:
    level, content = heading.groups()
    return f'<h{level} id="{anchor_of(unescape(_TAG.sub("", content)))}">{content}</h{level}>'


def _page(title: str, body: str, topic: str = "", query: str = "") -> str:
    links = "".join(
        f'<li><a href="/guide/{entry.topic}"{" aria-current=page" if entry.topic == topic else ""}>'
        f"{escape(entry.title)}</a></li>"
        for entry in guides()
    )
    return _PAGE.format(title=escape(title), links=links, body=body, query=escape(query, quote=True))


def _answer(page: str) -> Response:
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}
    return HTMLResponse(page, headers=headers)
