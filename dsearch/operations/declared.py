"""How a call of the product is declared: as the dataclass of its request, once.

    @call("GET", "/v1/collections/{collection}/documents/{id}", query=("episode",))
    class GetDocument(Call[Document]):
        \"""Return one document, read for the task `episode` if one is named.\"""

        collection: str
        id: str
        episode: str | None = field(default=None, kw_only=True)

Clients have the methods of `dsearch/client/calls.py`, a line each, which make such a request and hand it to
whoever answers: a server (`client/over_http.py`) or an engine of this process (`client/local/`). The keys of
a server ask the declaration for its scope.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, dataclass_transform, get_args

Scope = Literal["read", "write", "admin"]
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C", bound="type[Call[Any]]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call is had over HTTP.

    Attributes:
        method: of HTTP.
        path: of the URL, with the names of fields in braces; one with `:path` may have slashes.
        scope: what a key has to allow.
        query: fields that stand in the URL's query; the others make the body.
        renamed: fields that the body names otherwise.
        repeatable: whether carrying it out twice changes no more than once.
    """

    method: str
    path: str
    scope: Scope
    query: tuple[str, ...]
    renamed: dict[str, str]
    repeatable: bool

    @property
    def writes(self) -> bool:
        """Whether it changes what is stored."""
        return self.scope != "read"

    @property
    def in_path(self) -> tuple[str, ...]:
        """Fields that stand in the path."""
        return tuple(re.findall(r"\{(\w+)(?::path)?\}", self.path))

    @property
    def template(self) -> str:
        """The path as `str.format` takes it."""
        return self.path.replace(":path}", "}")


class Call(Generic[R_co]):
    """The request of a call, which gives R_co; a dataclass, made by `@call`."""

    __slots__ = ()
    place: ClassVar[Place]
    result: ClassVar[Any]

    def check(self) -> None:
        """Refuse fields that do not go together.

        Raises:
            InvalidRequest: the message says what to give, or to leave out.
        """

    def arguments(self) -> dict[str, Any]:
        """Return the fields by their names, in their order."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.arguments() == other.arguments()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        written = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        return f"{type(self).__name__}({written})"


CALLS: list[type[Call[Any]]] = []
"""Every call, in the order of its declaration."""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def call(
    method: str,
    path: str,
    *,
    scope: Scope | None = None,
    query: tuple[str, ...] = (),
    renamed: dict[str, str] | None = None,
    repeatable: bool = True,
) -> Callable[[C], C]:
    """Declare a call: the class becomes a dataclass, which nobody changes; arguments as for `Place`.

    Args:
        scope: "read" for GET, else "admin", when None.
    """
    chosen: Scope = scope or ("read" if method == "GET" else "admin")
    place = Place(method, path, chosen, query, renamed or {}, repeatable)

    def declare(kind: Any) -> Any:
        # What `Call` has for all is not generated for each: half of the time that importing them takes. Type
        # checkers see to it that no request is changed.
        declared = dataclass(slots=True, eq=False, repr=False)(kind)
        declared.place = place
        declared.result = get_args(declared.__orig_bases__[0])[0]
        CALLS.append(declared)
        return declared

    return declare
