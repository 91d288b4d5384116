"""JSON on the wire: encoding of answers and their headers, parsing of requests, random ids.

Answers are JSON (orjson writes plain objects and numpy arrays without a copy), or tensors in safetensors.

Requests are the safe part of RFC 8259 (I-JSON, RFC 7493), by the rules that also apply to files.

Ids of requests and of shown pages are random and cannot be guessed. Random bytes are requested from the
operating system for many ids at a time: each request releases Python's lock, and while a search computes the
thread waits to acquire it again. That happened twice a request.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import orjson
from fastapi import Request, Response
from starlette.types import Message

from dsearch.corpus import strict_json
from dsearch.service.errors import InvalidJson
from dsearch.types import Stamp

TENSORS = "application/x-safetensors"
FACTS = "answer"  # the entry of a safetensors header that holds what an answer says beside its tensors


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer; float32 arrays are written with the digits that give the same float32 back."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, "application/json")


def wants_tensors(request: Request) -> bool:
    """Return True if the client accepts an answer as safetensors, which it must name explicitly."""
    return TENSORS in request.headers.get("accept", "").lower()


def tensors_answer(tensors: dict[str, np.ndarray], facts: Any) -> Response:
    """Tensors as safetensors, the facts beside them as JSON in the header."""
    from safetensors.numpy import save

    said = orjson.dumps(facts, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    return Response(save(contiguous, {FACTS: said}), media_type=TENSORS)


def json_tensors(tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """Tensors for `json_answer`: orjson writes arrays as they lie in memory, and no scalar arrays."""
    return {
        name: np.ascontiguousarray(tensor) if tensor.ndim else tensor[()] for name, tensor in tensors.items()
    }


def stamped(stamp: Stamp) -> dict[str, Any]:
    """The state that an answer came from, as answers name it."""
    return {"generation": stamp.generation, "model": stamp.model, "sequence": stamp.sequence}


TENSOR_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {TENSORS: {"schema": {"type": "string", "format": "binary"}}}}
}
"""The `responses` of a route that answers tensors when they are asked for."""


_BYTES = 16
_BLOCK = 256  # ids

_spare_ids: list[str] = []


def new_id() -> str:
    """Thirty-two hexadecimal digits that nobody has had."""
    try:
        return _spare_ids.pop()  # one step: no two threads get the same
    except IndexError:
        digits, each = os.urandom(_BYTES * _BLOCK).hex(), 2 * _BYTES
        _spare_ids.extend(digits[start : start + each] for start in range(each, len(digits), each))
        return digits[:each]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spare_ids.clear)


MAX_DEPTH = strict_json.MAX_DEPTH


def parse(body: bytes) -> Any:
    """The value that `body` describes.

    Raises:
        InvalidJson: says what is wrong and where.
    """
    try:
        return strict_json.parse(body.decode())
    except UnicodeDecodeError as error:
        raise InvalidJson(
            f"not JSON: byte {error.start + 1} is not UTF-8; send UTF-8 JSON (RFC 8259)"
        ) from None
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidJson(f"not JSON: {error.msg} at {where}; send UTF-8 JSON (RFC 8259)") from None
    except strict_json.AmbiguousJson as error:
        raise InvalidJson(str(error)) from None


CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # the icons inside the stylesheet of /docs
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

# As they are sent: made into bytes once, not for every answer.
UNLESS_GIVEN = [
    (name.lower().encode("ascii"), value.encode("ascii"))
    for name, value in {**HEADERS, "Cache-Control": "no-store"}.items()
]
_NAMES = frozenset((*(name for name, _ in UNLESS_GIVEN), b"x-request-id", b"connection"))


def add_headers(start: Message, request_id: str, *, close: bool) -> None:
    """Add them to ASGI's start of an answer, unless it has its own.

    Args:
        start: the message.
        request_id: of the request.
        close: whether the connection ends with this answer.
    """
    pairs = start["headers"]
    names = {name.lower() for name, _ in pairs}
    if names.isdisjoint(_NAMES):
        headers = [*pairs, *UNLESS_GIVEN]
    else:
        replaced = (b"x-request-id", b"connection") if close else (b"x-request-id",)
        headers = [header for header in pairs if header[0].lower() not in replaced]
        headers += [header for header in UNLESS_GIVEN if header[0] not in names]
    headers.append((b"x-request-id", request_id.encode("ascii")))
    if close:
        headers.append((b"connection", b"close"))
    start["headers"] = headers
