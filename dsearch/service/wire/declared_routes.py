"""`answers`: the route of a declared call, whose method, path, status and result the declaration gives."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, TypeVar

from fastapi import APIRouter

from dsearch.operations import Call
from dsearch.results import Task

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

TAKEN_ON = {202: {"model": Task, "description": "It was taken on; `Location` leads to it."}}


def answers(
    router: APIRouter, kind: type[Call[Any]], *, responses: dict[int | str, Any] | None = None, **more: Any
) -> Callable[[Endpoint], Endpoint]:
    """Make a function the route of a call.

    Args:
        router: of the routes; its prefix begins the call's path.
        kind: the call.
        responses: further answers, by status.
        more: arguments of FastAPI's route, such as a `response_model` in place of the call's result.
    """
    place, result = kind.place, kind.result
    path = place.path.replace("{name}", "{collection}")  # as every path names a collection
    if not path.startswith(router.prefix):
        raise ValueError(f"{kind.__name__} is at {path}, which does not begin with {router.prefix}")
    if result is NoneType:
        more.setdefault("status_code", 204)
    elif result is Task and not place.repeatable:
        more.setdefault("status_code", 202)
        responses = {**TAKEN_ON, **(responses or {})}
    if result is not NoneType and "response_class" not in more:
        more.setdefault("response_model", result)
    return router.api_route(
        path.removeprefix(router.prefix), methods=[place.method], responses=responses, **more
    )
