"""The HTTP service: `create_app(engine)` (DESIGN §7). Nothing happens at import.

app.py          create_app                          routes_*.py     the routes, one file per noun
service.py      what the routes share               requests.py     what clients send
catalogue.py    collections that requests hold      fields.py       fields that say what is allowed
worker.py       one thread, micro-batches           strict_json.py  JSON without its ambiguities
searching.py    what the worker computes            strict_route.py bodies: size, type, encoding
ingesting.py    a stream of lines into documents    guard.py        hosts, origins, headers, request ids
problems.py     errors as problem+json              errors.py       errors that only HTTP has
keys.py         API keys of a home                  access.py       who may ask for what
deadline.py     how long a request may take         patience.py     how long a slow client is waited for
metrics.py      what /metrics shows                 readings.py     what it reads when it is asked
logs.py         one JSON object a line              telemetry.py    spans, where OpenTelemetry is installed
tasks.py        long work, one after the other     task_store.py   what survives a restart
task_jobs.py    what tasks compute, elsewhere       made.py         what they made, on its way back
opening.py      a home that is only read            server.py       uvicorn, and an end without losses
straight.py     requests go to their route          one_write.py    head and body in one piece
admission.py    who is let in                       refusal.py      the answer to who is not
feedback.py     events get their pages              impressions.py  pages answered lately, in memory
answers.py      what they get                       respond.py      answers as JSON bytes
lag.py          how late the event loop is          answer_headers.py  what every answer carries
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
