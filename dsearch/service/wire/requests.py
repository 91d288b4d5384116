"""Requests on the wire: bodies of a bounded size in strict JSON, and models that reject unknown names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import cache
from itertools import islice
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import (
    CoreSchema,
    PydanticCustomError,
    PydanticKnownError,
    SchemaValidator,
    core_schema,
)
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from dsearch.declared import suggestion
from dsearch.service.errors import BodyTooLarge, UnsupportedMediaType
from dsearch.service.wire import json as strict_json

SHOWN = 80  # characters of a given value that a message repeats
SHOWN_ERRORS = 100
_PLAIN_PIECE = 256  # items that have one error each at most
_PIECE = 16  # items that may have several: lists, objects
_PLAIN = frozenset({"str", "int", "float", "bool", "any", "literal", "none", "date", "datetime"})
_INNER = ("schema", "items_schema", "keys_schema", "values_schema")


def repr_of(value: Any) -> str:
    """A given value as a message repeats it: as Python writes it, cut when it is long."""
    if isinstance(value, list | dict) and len(value) > SHOWN:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


# ---- a bound on the errors of one request
#
# pydantic describes every wrong item of a list. A body of 8 MiB has four million items, and what describes
# them took gigabytes. Here a long list or object is validated piece by piece, up to the piece in which there
# are more errors than an answer shows: the others are never built.


class BoundedErrors:
    """Annotates a list or an object that is a whole body: its errors are bounded."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema, which stops at a number of errors."""
        return _bounded(handler(source), within=False)


def bounded_fields(schema: CoreSchema) -> CoreSchema:
    """The schema of a model with lists and objects in its fields that stop at a number of errors.

    Models among the fields stay as they are: each is bounded where it is declared.
    """
    content = cast("dict[str, Any]", schema)
    kind = content["type"]
    if kind == "model-fields":
        fields = {
            name: {**field, "schema": _bounded(field["schema"], within=False)}
            for name, field in content["fields"].items()
        }
        return cast("CoreSchema", {**content, "fields": fields})
    if "schema" not in content:
        return schema
    return cast("CoreSchema", {**content, "schema": bounded_fields(content["schema"])})


def _bounded(schema: CoreSchema, *, within: bool) -> CoreSchema:
    """The schema with bounded lists and objects; `within` another one, a plain list has one error at most."""
    content = dict(cast("dict[str, Any]", schema))
    kind = content["type"]
    if kind in ("model", "definition-ref"):
        return schema
    container = kind in ("list", "dict")
    for name in _INNER:
        if name in content:
            content[name] = _bounded(content[name], within=within or container)
    if kind == "union":
        content["choices"] = [_choice(choice, within=within) for choice in content["choices"]]
    changed = cast("CoreSchema", content)
    if not container:
        return changed
    plain = _is_plain(content.get("items_schema" if kind == "list" else "values_schema"))
    if plain and kind == "list" and within:
        content["fail_fast"] = True
        return changed
    most = content.get("max_length")
    piece = _PLAIN_PIECE if plain else _PIECE
    if most is not None and most <= piece:
        return changed
    return core_schema.no_info_wrap_validator_function(_Pieces(piece, most), changed)


def _choice(choice: Any, *, within: bool) -> Any:
    """A choice of a union; one that was wrapped keeps the name by which errors call it, `list[float]`."""
    if isinstance(choice, tuple):
        return _bounded(choice[0], within=within), choice[1]
    bounded = _bounded(choice, within=within)
    return (bounded, SchemaValidator(choice).title) if bounded["type"] == "function-wrap" else bounded


def _is_plain(schema: Any) -> bool:
    """Return True if an item has one error at most and holds no further items."""
    if schema is None:
        return True
    if schema["type"] in _PLAIN:
        return True
    wrapped = ("nullable", "custom-error", "function-after")
    return schema["type"] in wrapped and _is_plain(schema["schema"])


class _Pieces:
    """Validates a long list or object in pieces.

    Args:
        piece: number of items that are validated together.
        most: number of items that are allowed.
    """

    def __init__(self, piece: int, most: int | None):
        self._piece, self._most = piece, most

    def __call__(self, value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
        """The validated value.

        Raises:
            ValidationError: with the errors of the first pieces, until there are more than are shown.
        """
        if not isinstance(value, list | dict):
            return validate(value)
        items = cast("list[Any] | dict[str, Any]", value)
        if self._most is not None and len(items) > self._most:
            kind = "List" if isinstance(items, list) else "Dictionary"
            lengths = {"field_type": kind, "max_length": self._most, "actual_length": len(items)}
            raise PydanticKnownError("too_long", lengths)
        if len(items) <= self._piece:
            return validate(items)
        valid: list[Any] | dict[str, Any] = [] if isinstance(items, list) else {}
        errors = seen = 0
        for part in _parts(items, self._piece):
            seen += len(part)
            try:
                checked = validate(part)
            except ValidationError as error:
                errors += error.error_count()
                if errors > SHOWN_ERRORS:
                    break
                continue
            if not errors:
                valid.extend(checked) if isinstance(valid, list) else valid.update(checked)
        if errors:
            return validate(_first(items, seen))  # once more, so that places count from the whole's beginning
        return valid


def _parts(items: list[Any] | dict[str, Any], size: int) -> Iterator[list[Any] | dict[str, Any]]:
    if isinstance(items, list):
        yield from (items[start : start + size] for start in range(0, len(items), size))
        return
    pairs = iter(items.items())
    while part := dict(islice(pairs, size)):
        yield part


def _first(items: list[Any] | dict[str, Any], count: int) -> list[Any] | dict[str, Any]:
    return items[:count] if isinstance(items, list) else dict(islice(items.items(), count))


# ---- models and bodies


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
