"""`StrictRoute`: request bodies have a size limit, must match their declared type, and are strict JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from dsearch.service.errors import BodyTooLarge, UnsupportedMediaType
from dsearch.service.wire import json as strict_json

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_STREAM_BYTES = 64 * 1024 * 1024
JSON_TYPES = ("application/json",)
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
    require_type(request, JSON_TYPES)
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
