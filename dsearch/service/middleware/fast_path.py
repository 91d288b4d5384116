"""`PlainCall`: calls an endpoint directly with path parameters, a body, the request and its dependencies.

FastAPI examines everything that an endpoint could need on every request, which takes more than a third of
what a search costs the event loop. The needs of our endpoints are known when their routes are made. A body is
validated by the model that the API's description shows, with the same error messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

if TYPE_CHECKING:
    from fastapi._compat import ModelField

Endpoint = Callable[..., Awaitable[Any]]
_MISSING = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}


class PlainCall:
    """Calls the endpoint of a route.

    Args:
        route: one for which `fits` holds.
    """

    def __init__(self, route: APIRoute):
        dependant = route.dependant
        self._endpoint: Endpoint = route.endpoint
        self._path = [field.name for field in dependant.path_params]
        self._request = dependant.request_param_name
        self._given = [
            (sub.name or "", cast("Endpoint", sub.call), sub.request_param_name or "")
            for sub in dependant.dependencies
        ]
        self._body = dependant.body_params[0] if dependant.body_params else None

    @staticmethod
    def fits(route: APIRoute) -> bool:
        """Return True if a route's endpoint can be called directly.

        Its arguments may be strings of its path, a body, the request, and results of coroutines of the
        request.
        """
        try:
            return _is_plain(route)
        except AttributeError:  # another FastAPI names its parts otherwise: its own way works all the same
            return False

    async def __call__(self, request: Request, body: Any = None) -> Response:
        """The answer to a request with this body; None: it has none.

        Raises:
            RequestValidationError: the body is not what the endpoint takes.
        """
        given: dict[str, Any] = {name: request.path_params[name] for name in self._path}
        if self._body is not None:
            given[self._body.name] = self._checked(self._body, body)
        if self._request is not None:
            given[self._request] = request
        for name, make, parameter in self._given:
            given[name] = await make(**{parameter: request})
        return await self._endpoint(**given)

    def _checked(self, field: ModelField, body: Any) -> Any:
        if body is None:
            if field.field_info.is_required():
                raise RequestValidationError([_MISSING])
            return field.get_default()
        checked, errors = field.validate(body, {}, loc=("body",))
        if errors:
            raise RequestValidationError(errors, body=body)
        return checked


def _is_plain(route: APIRoute) -> bool:
    hints, dependant = get_type_hints(route.endpoint), route.dependant
    return (
        inspect.iscoroutinefunction(route.endpoint)
        and hints.get("return") is Response
        and len(dependant.body_params) <= 1
        and not route._embed_body_fields  # pyright: ignore[reportPrivateUsage]
        and all(hints[field.name] is str for field in dependant.path_params)
        and all(_of_the_request(sub) for sub in dependant.dependencies)
        and _asks_nothing_else(dependant)
    )


def _of_the_request(sub: Dependant) -> bool:
    """Return True if a dependency is a coroutine of the request alone."""
    return (
        inspect.iscoroutinefunction(sub.call)
        and sub.request_param_name is not None
        and not (sub.path_params or sub.body_params or sub.dependencies)
        and _asks_nothing_else(sub)
    )


def _asks_nothing_else(dependant: Dependant) -> bool:
    return not any(
        (
            dependant.query_params,
            dependant.header_params,
            dependant.cookie_params,
            dependant.http_connection_param_name,
            dependant.response_param_name,
            dependant.background_tasks_param_name,
            dependant.security_scopes_param_name,
            dependant.websocket_param_name,
        )
    )
