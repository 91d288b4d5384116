"""The guides at `/guide`: Markdown of this package, rendered here, without scripts."""

from __future__ import annotations

from html import escape

from fastapi import FastAPI
from markdown_it import MarkdownIt
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from dsearch.errors import NotFound
from dsearch.guide import guide, guides, picture
from dsearch.service.wire.problems import problem_of

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
  <nav aria-label="Guides"><a class="home" href="/">dsearch</a><ul>{links}</ul></nav>
  <main>{body}</main>
</body>
</html>
"""
# Raw HTML is shown as text: a guide is Markdown and nothing else.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def install(app: FastAPI) -> None:
    """Serve the guides; they are no part of the API's description."""
    app.router.routes += [
        Route("/guide", _guide, name="guides"),
        Route("/guide/{name}.png", _picture, name="guide_picture"),
        Route("/guide/{topic}", _guide, name="guide"),
    ]


async def _picture(request: Request) -> Response:
    try:
        path = picture(f"{request.path_params['name']}.png")
    except NotFound as error:
        return problem_of(error)
    return FileResponse(path, headers={"Cache-Control": "no-cache"})


async def _guide(request: Request) -> Response:
    listed = guides()
    topic = request.path_params.get("topic", listed[0].topic)
    try:
        text = guide(topic)
    except NotFound as error:
        return problem_of(error)
    title = next(entry.title for entry in listed if entry.topic == topic)
    links = "".join(
        f'<li><a href="/guide/{entry.topic}"{" aria-current=page" if entry.topic == topic else ""}>'
        f"{escape(entry.title)}</a></li>"
        for entry in listed
    )
    # On /guide itself a picture's name would lead elsewhere.
    body = _MARKDOWN.render(text).replace('<img src="', '<img src="/guide/')
    for wide in ("pre", "table"):  # they scroll within, by keyboard too
        body = body.replace(f"<{wide}>", f'<{wide} tabindex="0">')
    page = _PAGE.format(title=escape(title), links=links, body=body)
    return HTMLResponse(page, headers={"Cache-Control": "no-cache"})
