"""`create_app`: the HTTP service over one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from dsearch import __version__
from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.service import (
    problems,
    routes_collections,
    routes_documents,
    routes_health,
    routes_models,
    routes_page,
    routes_search,
)
from dsearch.service.errors import HostNotAllowed, OriginNotAllowed
from dsearch.service.guard import LOOPBACK_HOSTS, Guard
from dsearch.service.requests import DocumentGiven
from dsearch.service.service import Service

_DESCRIPTION = """
A search engine that is one differentiable function. Errors are `application/problem+json` (RFC 9457) with a
stable `code`. Every answer names the state that it came from: `generation`, `model` and `sequence`.
"""


def create_app(engine: SearchEngine, *, hosts: Collection[str] = LOOPBACK_HOSTS) -> FastAPI:
    """The service as an ASGI application; its threads run from the server's start-up to its shutdown.

    Args:
        engine: what it serves. The caller closes it, after the server has stopped.
        hosts: names that requests may be addressed to, without port; "*" for any. The default are those of
            this machine, so that no other site can point its own name here (DNS rebinding).
    """
    service = Service(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="dsearch",
        version=__version__,
        description=_DESCRIPTION.strip(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        responses=problems.documented(InvalidRequest, HostNotAllowed, OriginNotAllowed),
    )
    app.state.service = service
    problems.install(app)
    for routes in (routes_health, routes_collections, routes_documents, routes_search, routes_models):
        app.include_router(routes.router)
    routes_page.install(app)
    _share_schemas(app)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _share_schemas(app: FastAPI) -> None:
    """Put what routes refer to by name alone into the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        template = "#/components/schemas/{model}"
        schemas = document["components"]["schemas"]
        for model in (problems.Problem, DocumentGiven):
            schema = model.model_json_schema(ref_template=template)
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        return document

    app.openapi = openapi
