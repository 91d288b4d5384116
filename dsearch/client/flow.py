"""One description of each call, for a blocking client and for one that awaits.

A call is a generator that yields requests and receives the answers. It builds requests and parses answers
without any socket (the "sans-I/O" way). `@operation` turns it into a method: `Client` runs it to its end and
returns its result, `AsyncClient` returns a coroutine; type checkers see both.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

JSON = "application/json"
NDJSON = "application/x-ndjson"
TENSORS = "application/x-safetensors"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """HTTP request to send.

    Attributes:
        method: HTTP method.
        path: path below the server's address, quoted.
        query: query of the URL.
        content: request body; a file is sent part by part.
        content_type: media type of the body.
        accept: accepted media type.
        repeatable: whether repeating it has no further effect.
        writes: whether it changes something; writes have a longer timeout.
    """

    method: str
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    content: bytes | BinaryIO | None = None
    content_type: str = JSON
    accept: str = JSON
    repeatable: bool = True
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before going on; the answer is empty."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Complete HTTP response; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


NOTHING = HttpReply(0, {}, b"")
Flow: TypeAlias = Generator[Request | Pause, HttpReply, T]
"""Yields requests, is sent their answers (those of 400 and more are raised into it), returns a result."""


class BlockingRunner(Protocol):
    """Runs a flow and waits for it."""

    def run(self, flow: Flow[T]) -> T:
        """The flow's result."""
        ...


class AsyncRunner(Protocol):
    """Runs a flow in an event loop."""

    async def run(self, flow: Flow[T]) -> T:
        """The flow's result."""
        ...


class operation(Generic[P, T]):  # it is read as a decorator
    """Turn a flow into a method that returns its result, or a coroutine of it."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]):
        self._flow = flow
        functools.update_wrapper(self, flow)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: Any) -> Callable[Concatenate[Any, P], Flow[T]]: ...
    @overload
    def __get__(self, client: BlockingRunner, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        """The method of `client`; the flow itself of a class."""
        if client is None:
            return self._flow

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(self._flow(client, *args, **kwargs))

        functools.update_wrapper(call, self._flow)
        signature = inspect.signature(self._flow)
        call.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
        return call
