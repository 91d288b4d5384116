"""What an engine of this process does for each call, by the class of its request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dsearch.operations import Call

C = TypeVar("C", bound=Call[Any])
Handler = Callable[[Any, C], Any]  # of a LocalEngine and a request

HANDLERS: dict[type[Call[Any]], Handler[Any]] = {}


def handles(kind: type[C]) -> Callable[[Handler[C]], Handler[C]]:
    """Register a function as what handles the calls of this kind."""

    def register(handler: Handler[C]) -> Handler[C]:
        HANDLERS[kind] = handler
        return handler

    return register
