"""Bodies of requests: how large, of which type, in which encoding."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from dsearch.service.errors import BodyTooLarge, InvalidJson, UnsupportedMediaType
from dsearch.service.wire import requests
from dsearch.service.wire.requests import (
    JSON_TYPES,
    MAX_BODY_BYTES,
    MAX_STREAM_BYTES,
    NDJSON_TYPES,
    limited,
    read_json,
    require_type,
)


def request(*parts: bytes, gone: bool = False, **headers: str) -> Request:
    """A request whose body comes in these parts; with `gone` its client leaves before the last one."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, start=1)
    ]
    if gone:
        messages[-1] = {"type": "http.disconnect"}

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    named = [(name.replace("_", "-").encode(), of.encode()) for name, of in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": named}, receive)


def body(limit: int, *parts: bytes, **options: Any) -> bytes:
    async def whole() -> bytes:
        return b"".join([part async for part in limited(request(*parts, **options), limit)])

    return asyncio.run(whole())


def test_a_body_may_have_exactly_the_limit() -> None:
    assert body(6, b"abc", b"", b"def") == b"abcdef"
    assert body(6, b"abcdef", content_length="6") == b"abcdef"
    assert (MAX_BODY_BYTES, MAX_STREAM_BYTES) == (8 * 2**20, 64 * 2**20)


def test_a_larger_one_is_refused_as_soon_as_it_is_seen() -> None:
    with pytest.raises(BodyTooLarge, match=r"^a body of more than 6 bytes; use at most 6 in one request$"):
        body(6, b"abc", b"defg", b"never read")
    with pytest.raises(BodyTooLarge, match=r"^a body of 7 bytes; use at most 6 in one request$"):
        body(6, content_length="7")  # nothing is received
    with pytest.raises(BodyTooLarge, match=r"^a body of 99999999999999999999 bytes; "):
        body(6, content_length="9" * 5000)


def test_what_is_to_be_done_instead_is_said() -> None:
    async def refused() -> None:
        async for _ in limited(request(b"abc"), 2, "; split it"):
            pass

    with pytest.raises(BodyTooLarge, match=r"in one request; split it$"):
        asyncio.run(refused())


@pytest.mark.parametrize("length", ["", "many", "-7", "²", "6.5"])
def test_a_length_that_is_none_is_not_believed(length: str) -> None:
    assert body(6, b"abc", content_length=length.encode("utf-8").decode("latin-1")) == b"abc"


def test_a_client_that_leaves_ends_the_request() -> None:
    with pytest.raises(ClientDisconnect):
        body(6, b"abc", b"def", gone=True)


@pytest.mark.parametrize(
    "given", ["application/json", "Application/JSON; charset=utf-8", " application/json "]
)
def test_a_type_is_read_without_its_case_and_parameters(given: str) -> None:
    assert require_type(request(content_type=given), JSON_TYPES) == "application/json"


def test_another_type_is_named_with_those_that_are_read() -> None:
    with pytest.raises(UnsupportedMediaType, match=r"^Content-Type: text/plain; use application/json$"):
        require_type(request(content_type="text/plain"), JSON_TYPES)
    with pytest.raises(UnsupportedMediaType, match=r"^Content-Type: none; use application/x-ndjson or app"):
        require_type(request(), NDJSON_TYPES)
    with pytest.raises(UnsupportedMediaType, match=r"^Content-Type: x{80}; use"):
        require_type(request(content_type="x" * 500), JSON_TYPES)


def test_a_compressed_body_is_refused() -> None:
    typed = {"content_type": "application/json"}
    with pytest.raises(UnsupportedMediaType, match=r"^Content-Encoding: gzip; send the body uncompressed$"):
        require_type(request(**typed, content_encoding="gzip"), JSON_TYPES)
    for encoding in ("br", "deflate", "gzip, identity"):
        with pytest.raises(UnsupportedMediaType, match=f"^Content-Encoding: {encoding}; send the body"):
            require_type(request(**typed, content_encoding=encoding), JSON_TYPES)
    assert require_type(request(**typed, content_encoding="Identity"), JSON_TYPES) == "application/json"


def test_json_is_parsed_and_an_empty_body_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = {"content_type": "application/json"}
    assert asyncio.run(read_json(request(b""))) is None
    assert asyncio.run(read_json(request(b'{"a":', b" 1}", **typed))) == {"a": 1}
    with pytest.raises(InvalidJson):
        asyncio.run(read_json(request(b"{", **typed)))
    with pytest.raises(UnsupportedMediaType):
        asyncio.run(read_json(request(b"{}")))
    monkeypatch.setattr(requests, "MAX_BODY_BYTES", 3)
    with pytest.raises(BodyTooLarge):
        asyncio.run(read_json(request(b'"ab"', **typed)))


def test_a_large_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[int] = []

    async def run(parse: Any, content: bytes) -> Any:
        beside.append(len(content))
        return parse(content)

    monkeypatch.setattr(requests, "run_in_threadpool", run)
    for size in (64 * 1024, 64 * 1024 + 1):
        content = b'"' + b"x" * (size - 2) + b'"'
        text = asyncio.run(read_json(request(content, content_type="application/json")))
        assert text == "x" * (size - 2)
    assert beside == [64 * 1024 + 1]
