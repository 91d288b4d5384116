"""The page at `/` and the API's description at `/docs`: static files of this package, no other host's.

The description itself, `/openapi.json`, is the same for everybody: a second of work when it is first asked
for, and bytes from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from dsearch.service.wire.rendered import RenderedOnce

UI = Path(__file__).parents[1] / "ui"


class _Files(StaticFiles):
    """Files that a browser asks about again each time: a new release is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def install(app: FastAPI) -> None:
    """Serve the page, the API's description, and the page that shows it."""
    app.router.routes += [
        Route("/", _page("index.html"), name="page"),
        Route("/docs", _page("docs.html"), name="docs"),
        Route("/openapi.json", _description(app), name="openapi", include_in_schema=False),
        Mount("/docs/assets", _Files(directory=_swagger_folder()), name="docs_assets"),
        Mount("/ui", _Files(directory=UI), name="ui"),
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
