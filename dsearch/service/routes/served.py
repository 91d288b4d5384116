"""`serves`: the route of a declared call, which gives its method, path, request, errors and description."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response

from dsearch.errors import CollectionNotFound, DsearchError, InvalidRequest
from dsearch.operations import Call
from dsearch.results import Task
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.schemas.declared import body_of, call_of, described, parameters_of
from dsearch.service.state import Service, TheService
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented

TAKEN_ON = {202: {"model": Task, "description": "It was taken on; `Location` leads to it."}}
_BODY_ERRORS = (InvalidJson, BodyTooLarge, UnsupportedMediaType)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks a server for a call, and which server."""

    service: Service
    request: Request

    @property
    def key(self) -> str:
        """Identity of the requester's API key; "" if none is needed."""
        return asker(self.request)


Handler = Callable[[Asked, Any], Awaitable[Any]]


async def by_the_engine(asked: Asked, call: Call[Any]) -> Any:
    """Return what the engine answers; see `dsearch/engine/calls.py`."""
    return await asked.service.answer(call)


def serves(
    router: APIRouter,
    kind: type[Call[Any]],
    *errors: type[DsearchError],
    in_url: bool = False,
    body: Any = None,
    needs_body: bool = True,
    reads_body: bool = False,
    responses: dict[int | str, Any] | None = None,
    **more: Any,
) -> Callable[[Handler], Handler]:
    """Make a function the route of a call; it returns a response, or what becomes one.

    Its docstring, if it has one, goes on with that of the call.

    Args:
        router: of the routes; its prefix begins the call's path.
        kind: the call.
        errors: that it raises, besides those of every call of its kind.
        in_url: whether the request stands in the URL, where the call has a body otherwise.
        body: type of a body that is not an object of the call's fields, but its last one.
        needs_body: whether the body may not be left out.
        reads_body: whether the function reads the body itself, which is not JSON of the call's fields.
        responses: further answers, by status.
        more: arguments of FastAPI's route, such as a `response_model` in place of the call's result.
    """
    place, result = kind.place, kind.result
    path = place.path.replace("{name}", "{collection}")  # as every path names a collection
    if not path.startswith(router.prefix):
        raise ValueError(f"{kind.__name__} is at {path}, which does not begin with {router.prefix}")
    if body is None and not in_url and not reads_body and place.method not in ("GET", "DELETE"):
        body = body_of(kind)
    query = parameters_of(kind) if in_url or place.query else None
    raised: list[type[DsearchError]] = [InvalidRequest, *errors]
    creates = place.method == "PUT" and path.endswith("{collection}")
    raised += [CollectionNotFound] if "{collection}" in path and not creates else []
    raised += _BODY_ERRORS if body is not None else ()
    raised += [BodyTooLarge, UnsupportedMediaType] if reads_body else []
    raised += [Overloaded] if place.writes else []
    answers = documented(*dict.fromkeys(raised)) | (responses or {})
    if result is NoneType:
        more.setdefault("status_code", 204)
    elif result is Task and not place.repeatable:
        more.setdefault("status_code", 202)
        answers = TAKEN_ON | answers
    if result is not NoneType and "response_class" not in more:
        more.setdefault("response_model", result)

    name = _CAPITAL.sub("_", kind.__name__).lower() + ("_by_url" if in_url else "")
    if body is not None and not needs_body:
        body |= None

    def decorate(handler: Handler) -> Handler:
        text = "\n\n".join(filter(None, (described(kind)[0], inspect.getdoc(handler))))
        router.add_api_route(
            path.removeprefix(router.prefix),
            _endpoint(kind, handler, None if reads_body else body, query),
            methods=["GET" if in_url else place.method],
            description=text,
            name=name,
            responses=answers,
            **more,
        )
        return handler

    return decorate


def _endpoint(
    kind: type[Call[Any]], handler: Handler, body: Any, query: Any
) -> Callable[..., Awaitable[Response]]:
    """The function that FastAPI calls: its parameters are the parts of a request."""
    absent = {  # what the function reads from the body
        field.name: None
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING
    }
    in_path = {"collection" if name == "name" else name: name for name in kind.place.in_path}

    async def endpoint(request: Request, service: Service, **given: Any) -> Response:
        content, models = given.pop("body", None), [given.pop("parameters", None)]
        values = {in_path[name]: value for name, value in given.items()}
        if isinstance(content, list):
            values[fields(kind)[-1].name] = content  # type: ignore[arg-type]
        else:
            models.append(content)
        call = call_of(kind, absent | values, models)
        answer = await handler(Asked(service, request), call)
        if isinstance(answer, Response):
            return answer
        return Response(status_code=204) if answer is None else json_answer(answer)

    parameters = {"request": Request, "service": TheService} | dict.fromkeys(in_path, str)
    if body is not None:
        parameters["body"] = body
    if query is not None:
        parameters["parameters"] = Annotated[query, Query()]
    endpoint.__annotations__ = parameters
    endpoint.__signature__ = inspect.Signature(
        [  # type: ignore[attr-defined]
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=annotation,
                default=None if name == "body" and type(None) in get_args(body) else inspect.Parameter.empty,
            )
            for name, annotation in parameters.items()
        ]
    )
    return endpoint
