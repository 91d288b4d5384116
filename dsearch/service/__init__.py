"""The HTTP service: `create_app(engine)`. Nothing happens at import.

app.py          `create_app`                              admission.py  admission control and refusals
server.py       uvicorn, and a graceful shutdown          keys.py       API keys and their scopes
state.py        `Service`: shared state of the routes     guard.py      hosts, request ids, unexpected errors
collections.py  collections held by requests              deadline.py   timeouts, clients that disconnect
worker.py       worker threads and micro-batches          errors.py     errors that only HTTP has
searching.py    work of the search worker                 telemetry.py  logs, metrics, spans
ingest.py       streams of documents                      compat.py     routes in the shapes of other APIs
feedback.py     events and the pages they refer to        wire/         JSON, requests, problem documents
routes/         the routes, one file per noun             schemas/      request and response models
tasks/          long work in processes of its own         mcp/          tools of agents
ui/             the page: static, no build step
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsearch.service.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    """`create_app` is loaded when it is asked for: `dsearch keys` needs neither torch nor FastAPI."""
    if name == "create_app":
        from dsearch.service.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
