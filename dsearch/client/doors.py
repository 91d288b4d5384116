"""`@door`: a line of a client's class that hands the request of a call to whoever answers it.

    @door(GetDocument)
    def get(self, collection: str, id: str, *, episode: str | None = None) -> Document: ...

The method makes a `GetDocument` of its arguments and gives it to the client's `run`: `Client` and
`LocalEngine` return its result, `AsyncClient` a coroutine of it; type checkers see both.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from dsearch.operations.declared import Call

P = ParamSpec("P")
T = TypeVar("T")


class BlockingRunner(Protocol):
    """Answers a call and waits for it."""

    def run(self, call: Call[T], /) -> T:
        """Return the result of a call."""
        ...


class AsyncRunner(Protocol):
    """Answers a call in an event loop."""

    async def run(self, call: Call[T], /) -> T:
        """Return the result of a call."""
        ...


class Door(Generic[P, T]):
    """Method of a client; its class has the door itself, with the method's signature and description."""

    def __init__(self, kind: type[Call[T]], method: Callable[Concatenate[Any, P], T]):
        self.kind = kind
        self._method = method
        functools.update_wrapper(self, method)
        place = kind.place
        self.__doc__ = f"{inspect.getdoc(kind)}\n\n`{place.method} {place.template}`"
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        self._own = frozenset(names) if "options" in names else None

    def request(self, *args: P.args, **arguments: P.kwargs) -> Call[T]:
        """Return the request that the method makes of its arguments.

        Raises:
            TypeError: they are not those of the method.
        """
        given: dict[str, Any] = dict(arguments)
        if self._own is not None:
            options = {name: given.pop(name) for name in arguments if name not in self._own}
            given["options"] = options
        try:
            return self.kind(*args, **given)
        except TypeError:
            inspect.signature(self._method).bind(None, *args, **arguments)  # says it by the method's name
            raise

    def __call__(self, client: BlockingRunner, /, *args: P.args, **arguments: P.kwargs) -> T:
        """Answer the call by a client that blocks."""
        return client.run(self.request(*args, **arguments))

    @overload
    def __get__(self, client: None, owner: Any) -> Door[P, T]: ...
    @overload
    def __get__(self, client: BlockingRunner, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        """Return the method of `client`; the door itself of a class."""
        if client is None:
            return self

        def call(*args: P.args, **arguments: P.kwargs) -> Any:
            return client.run(self.request(*args, **arguments))

        call.__name__, call.__qualname__ = self._method.__name__, self._method.__qualname__
        call.__module__, call.__doc__ = self._method.__module__, self.__doc__
        call.__signature__ = self._bound_signature  # type: ignore[attr-defined]
        return call

    @functools.cached_property
    def _bound_signature(self) -> inspect.Signature:
        signature = inspect.signature(self._method)
        return signature.replace(parameters=[*signature.parameters.values()][1:])


def door(kind: type[Call[T]]) -> Callable[[Callable[Concatenate[Any, P], T]], Door[P, T]]:
    """Make a method a door of this call; its parameters are the call's, its body is empty."""
    return functools.partial(Door, kind)
