"""`Straight`: direct dispatch of requests to routes that need nothing else of FastAPI.

FastAPI and Starlette pass every request through an error handler, three exit stacks, a look at each router
and two wrappers of the route: several times the work of most of our routes. The needs of a route are known
when it is made (fast_path.py), so a request is matched here and its endpoint is called. All other requests go
to FastAPI: other routes and methods, unknown paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from dsearch.service.middleware.fast_path import PlainCall
from dsearch.service.middleware.strict_route import StrictRoute, strict_handler
from dsearch.service.wire.problems import ANSWERS

Handler = Callable[[Request], Awaitable[Response]]
Answers = Mapping[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]


class Straight:
    """An ASGI middleware, the innermost.

    Args:
        app: what has the routes.
        routes: of it, in the order in which they are looked through.
        answers: to the errors that routes raise, by their class.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], answers: Answers = ANSWERS):
        self.app = app
        self._answers = answers
        self._by_method: dict[str, list[tuple[Any, APIRoute, Handler | None]]] = {}
        for route in routes:
            if isinstance(route, APIRoute):
                handler = _handler_of(route)
                for method in route.methods or ():
                    self._by_method.setdefault(method, []).append((route.path_regex.match, route, handler))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] == "http" and not scope.get("root_path"):
            path = scope["path"]
            for match, route, handler in self._by_method.get(scope["method"], ()):
                found = match(path)
                if found is None:
                    continue
                if handler is None:
                    break  # the first that matches is the one; this is FastAPI's to call
                scope["route"], scope["endpoint"] = route, route.endpoint
                scope["path_params"] = found.groupdict()
                await self._answer(handler, scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _answer(self, handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await handler(request)
        except Exception as error:
            kind = next((kind for kind in type(error).__mro__ if kind in self._answers), None)
            if kind is None:
                raise
            response = await self._answers[kind](request, error)
        await response(scope, receive, send)


def _handler_of(route: APIRoute) -> Handler | None:
    """Return the handler that answers the route without FastAPI; None if only FastAPI can."""
    if not PlainCall.fits(route):
        return None
    if route.body_field is None:
        return PlainCall(route)
    return strict_handler(PlainCall(route)) if isinstance(route, StrictRoute) else None
