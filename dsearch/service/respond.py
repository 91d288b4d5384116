"""Answers as JSON bytes: orjson writes plain objects and numpy arrays without a copy."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Response


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer; float32 arrays are written with the digits that give the same float32 back."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, "application/json")
