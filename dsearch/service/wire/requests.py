"""Requests on the wire: bodies of a bounded size in strict JSON, and models that reject unknown names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from dsearch.declared import suggestion
from dsearch.service.errors import BodyTooLarge, UnsupportedMediaType
from dsearch.service.wire import json as strict_json
from dsearch.service.wire.error_bound import bounded_fields

SHOWN = 80  # characters of a given value that a message repeats


@dataclass(frozen=True, slots=True)
class allowed:  # it is read as an annotation
    """Annotates a field: whatever its type refuses is answered with `use {what}`.

    A misspelt one of the `choices` is answered with that one as well.
    """

    what: str
    choices: Sequence[str] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The field's schema, whose errors are replaced; by pydantic-core, without a call of Python."""
        return core_schema.custom_error_schema(
            handler(source),
            "not_allowed",
            custom_error_message="use {allowed}",
            custom_error_context={"allowed": self.what, "choices": " ".join(self.choices)},
        )


def encodable(text: str) -> str:
    """The text, if UTF-8 has it: a lone surrogate is no text, and its error is a ValueError."""
    text.encode()
    return text


def listed(names: Iterable[str]) -> str:
    """Names as a message lists them: a, b or c."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def repr_of(value: Any) -> str:
    """A given value as a message repeats it: as Python writes it, cut when it is long."""
    if isinstance(value, list | dict) and len(value) > SHOWN:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class RequestModel(BaseModel):
    """An object that a client sends: unknown names are refused, and the message lists the known ones.

    Null stands for a field that is left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema, whose lists and objects stop at a number of errors."""
        return bounded_fields(handler(source))

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, content: Any) -> Any:
        names = _field_names(cls)
        if isinstance(content, dict) and (unknown := [str(name) for name in content if name not in names]):
            named = cls.model_fields.get(unknown[0])  # an own name, where the request has an alias of it
            meant = suggestion(unknown[0], names) if named is None else f" (did you mean {named.alias}?)"
            raise PydanticCustomError(
                "unknown_field",
                "unknown field {unknown}{meant}; use {known}",
                {
                    "unknown": ", ".join(repr_of(name) for name in unknown[:3]),
                    "meant": meant,
                    "known": ", ".join(names),
                },
            )
        if isinstance(content, dict) and None in content.values():
            return {name: value for name, value in content.items() if value is not None}
        return content


@cache
def _field_names(model: type[BaseModel]) -> dict[str, None]:
    """The names of its fields, in their order: looked up at every request."""
    return dict.fromkeys(field.alias or name for name, field in model.model_fields.items())


MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_STREAM_BYTES = 64 * 1024 * 1024
JSON_TYPES = ("application/json",)
PATCH_TYPES = (*JSON_TYPES, "application/merge-patch+json")  # RFC 7396
NDJSON_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
_PARSED_AT_ONCE = 64 * 1024  # larger bodies are parsed beside the event loop


class _JsonRequest(Request):
    """A request whose body was read and parsed, for FastAPI."""

    def __init__(self, request: Request, value: Any):
        super().__init__(request.scope, request.receive)
        self._body = b"" if value is None else b"read"  # FastAPI checks that there is one, and calls `json`
        self._value = value

    async def json(self) -> Any:
        return self._value


class StrictRoute(APIRoute):
    """A route that parses its JSON body strictly before FastAPI validates it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler for requests that are parsed already."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def strict(request: Request) -> Response:
            return await handle(_JsonRequest(request, await read_json(request)))

        return strict


async def read_json(request: Request) -> Any:
    """Read and parse the body; None if it is empty.

    Raises:
        UnsupportedMediaType: not JSON by its type, or compressed.
        BodyTooLarge, InvalidJson.
    """
    body = b"".join([part async for part in limited(request, MAX_BODY_BYTES)])
    if not body:
        return None
    require_type(request, PATCH_TYPES if request.method == "PATCH" else JSON_TYPES)
    if len(body) <= _PARSED_AT_ONCE:
        return strict_json.parse(body)
    return await run_in_threadpool(strict_json.parse, body)


async def limited(request: Request, limit_bytes: int, instead: str = "") -> AsyncIterator[bytes]:
    """The body part by part, refused as soon as it is seen to be larger; `instead` says what to do then."""
    allowed = f"use at most {limit_bytes} in one request{instead}"
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise BodyTooLarge(f"a body of {declared[:20]} bytes; {allowed}")
    received, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        received += len(part)
        if received > limit_bytes:
            raise BodyTooLarge(f"a body of more than {limit_bytes} bytes; {allowed}")
        yield part


def require_type(request: Request, types: tuple[str, ...]) -> str:
    """The body's media type, which is one of `types`.

    Raises:
        UnsupportedMediaType: it is not, or the body is compressed.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedMediaType(f"Content-Encoding: {encoding[:80]}; send the body uncompressed")
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in types:
        raise UnsupportedMediaType(f"Content-Type: {content_type[:80] or 'none'}; use {' or '.join(types)}")
    return media_type
