"""Requests and replies of HTTP without a socket: a flow yields requests and is sent the replies.

One flow serves a client that blocks and one that awaits (the "sans-I/O" way).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias, TypeVar

JSON = "application/json"
NDJSON = "application/x-ndjson"
TENSORS = "application/x-safetensors"

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
