"""The HTTP service: `create_app(engine)`. Nothing happens at import.

app.py          `create_app`                              wire/        JSON, requests, problem documents
server.py       uvicorn, and a graceful shutdown          auth/        API keys and their scopes
state.py        `Service`: shared state of the routes     middleware/  hosts, deadlines, bodies
collections.py  collections held by requests              overload/    admission control and refusals
feedback.py     events and the pages they refer to        batching/    worker threads and micro-batches
errors.py       errors that only HTTP has                 schemas/     request and response models
routes/         the routes, one file per noun             tasks/       long work in processes of its own
telemetry/      logs, metrics, traces                     ui/          the page: static, no build step
mcp/            tools of agents                           compat/      routes in the shapes of other APIs
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
