"""`create_app`: the HTTP service over one engine."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, NoMatchFound

from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest, KeyMissing, ScopeTooNarrow
from dsearch.service import compat
from dsearch.service.deadline import HEADER, QUERY_TIMEOUT_S, Deadline
from dsearch.service.errors import (
    DeadlinePassed,
    HostNotAllowed,
    OriginNotAllowed,
    hide_folder,
    public_encoder,
)
from dsearch.service.guard import EXPOSED, LOOPBACK_HOSTS, Guard
from dsearch.service.keys import Access, ApiKeys, is_open
from dsearch.service.mcp import transports as mcp
from dsearch.service.routes import (
    collections,
    documents,
    models,
    pages,
    search,
    tasks,
)
from dsearch.service.schemas import descriptions
from dsearch.service.schemas.documents import DocumentGiven
from dsearch.service.state import Service
from dsearch.service.tasks.jobs import OpenEngine
from dsearch.service.tasks.uploads import MAX_BYTES
from dsearch.service.wire import problems
from dsearch.version import __version__

_DESCRIPTION = """
A search engine that is one differentiable function. Errors are `application/problem+json` (RFC 9457) with a
stable `code`. Every answer names the state that it came from: `generation`, `model` and `sequence`.

`X-Timeout-Ms` bounds how long a request may take: a search has 2 s without it, other reads 30 s, and at most
30 s with it; a write may wait 60 s for its turn, 600 s at most. `X-Request-Id` names a request in the log.
"""


def create_app(
    engine: SearchEngine,
    *,
    hosts: Collection[str] = LOOPBACK_HOSTS,
    origins: Collection[str] = (),
    require_key: bool = False,
    query_timeout_s: float = QUERY_TIMEOUT_S,
    explore: float = 0.0,
    open_engine: OpenEngine | None = None,
    task_memory_bytes: int | None = None,
    device: str = "cpu",
    migrates_to: str | None = None,
    rerankers: Collection[str] = (),
    model_upload_bytes: int = MAX_BYTES,
) -> FastAPI:
    """Return the service as an ASGI application; its threads run from the server's start-up to its shutdown.

    Args:
        engine: engine to serve. The caller closes it, after the server has stopped.
        hosts: allowed host names of requests, without port; "*" for any. By default the names of this
            machine, so that no other site can point its own name here (DNS rebinding).
        origins: other sites whose pages may call the API from a browser (CORS), such as
            "https://search.example".
        require_key: True to require an API key even before one was made. As soon as the home has keys
            (`keys.json`), every request needs one anyway.
        query_timeout_s: time limit of a search that sets none itself, in seconds.
        explore: share of search pages, 0 to 0.2, on which a coin decides whether two hits swap places: from
            clicks on those, training can tell relevance from position.
        open_engine: opens the same home readonly in the process of a task; picklable, such as a `partial` of
            `tasks.jobs.open_readonly`. With the default encoder when None.
        task_memory_bytes: memory limit of a task's process beyond its libraries; the machine's when None.
        device: device that tasks train on.
        migrates_to: name of the engine's `next_encoder` (of its `encoder` if it has none), which a request
            for a migration may name.
        rerankers: models that a training may name as `reranker`.
        model_upload_bytes: largest size of a trained model that `POST …/models/save` takes, in bytes.
    """
    service = Service(
        engine,
        explore=explore,
        open_engine=open_engine,
        task_memory_bytes=task_memory_bytes,
        device=device,
        migrates_to=migrates_to,
        rerankers=rerankers,
        model_upload_bytes=model_upload_bytes,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await agents.stop()
            await service.stop()

    app = FastAPI(
        title="dsearch",
        version=__version__,
        description=_DESCRIPTION.strip(),
        lifespan=lifespan,
        openapi_url=None,  # its route would write the document anew for every request
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours makes one span of a request
    )
    app.state.service = service
    problems.install(app)
    hide_folder(engine.home.path)
    for name in (migrates_to, *rerankers):
        if name is not None:
            public_encoder(name)
    app.router.routes += declared_routes()
    agents = mcp.install(app, service)
    pages.install(app)
    _share_schemas(app)
    # Middleware: the last one added is the outermost, the first that a request enters.
    app.add_middleware(Deadline, query_timeout_s=query_timeout_s)
    app.add_middleware(Access, keys=ApiKeys(engine.home.path), required=require_key)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", HEADER, "X-Request-Id"],
            expose_headers=EXPOSED,
        )
    app.add_middleware(
        Guard,
        hosts=hosts,
        origins=origins,
        metrics=service.metrics,
        leaving=lambda: service.leaving,
        refusal=service.refusal,
    )
    return app


@functools.cache
def declared_routes() -> tuple[BaseRoute, ...]:
    """Return the routes of the API, built once: they are the same for every application of a process."""
    api = APIRouter(
        generate_unique_id_function=lambda route: route.name,
        responses=problems.documented(
            InvalidRequest, HostNotAllowed, OriginNotAllowed, KeyMissing, ScopeTooNarrow, DeadlinePassed
        ),
    )
    declared = (  # matched in this order: the most frequent routes first
        search.router,
        search.attention,
        pages.router,
        collections.router,
        documents.router,
        search.feedback,
        models.drafts,
        models.router,
        tasks.router,
        compat.router,
    )
    for router in declared:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.summary is None:  # at /docs: no function's name
                sentence = " ".join(route.description.split("\n\n")[0].split()).partition(". ")[0]
                route.summary = sentence.rstrip(".")
        api.include_router(router)
    with suppress(NoMatchFound):
        api.url_path_for("")  # looks through all of them, which builds them: no request has to wait for it
    return tuple(api.routes)


def _share_schemas(app: FastAPI) -> None:
    """Add to the OpenAPI document: schemas that routes refer to by name, descriptions, and security."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        template = "#/components/schemas/{model}"
        schemas = document["components"]["schemas"]
        for model in (problems.Problem, DocumentGiven):
            schema = model.model_json_schema(ref_template=template)
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        descriptions.describe(schemas)
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}, {}]  # no key is required until the first one is made
        for path, operations in document["paths"].items():
            for operation in operations.values():
                if is_open(path):
                    operation["security"] = []
                for parameter in operation.get("parameters", ()):
                    descriptions.describe_parameter(parameter)
        return document

    app.openapi = openapi
