"""The HTTP service: `create_app(engine)` (DESIGN §7). Nothing happens at import.

app.py          create_app                          routes_*.py     the routes, one file per noun
service.py      what the routes share               requests.py     what clients send
catalogue.py    collections that requests hold      fields.py       fields that say what is allowed
worker.py       one thread, micro-batches           strict_json.py  JSON without its ambiguities
searching.py    what the worker computes            strict_route.py bodies: size, type, encoding
ingesting.py    a stream of lines into documents    guard.py        hosts, origins, headers, request ids
problems.py     errors as problem+json              errors.py       errors that only HTTP has
answers.py      what they get                       respond.py      answers as JSON bytes
ui/             the page: static, no build step
"""

from __future__ import annotations

from dsearch.service.app import create_app

__all__ = ["create_app"]
