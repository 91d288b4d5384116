"""Answers: JSON (orjson writes plain objects and numpy arrays without a copy), or tensors as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from fastapi import Request, Response

from dsearch.types import Stamp

TENSORS = "application/x-safetensors"
FACTS = "answer"  # the entry of a safetensors header that holds what an answer says beside its tensors


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer; float32 arrays are written with the digits that give the same float32 back."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, "application/json")


def wants_tensors(request: Request) -> bool:
    """Whether the client accepts an answer as safetensors, which it has to name."""
    return TENSORS in request.headers.get("accept", "").lower()


def tensors_answer(tensors: dict[str, np.ndarray], facts: Any) -> Response:
    """Tensors as safetensors, the facts beside them as JSON in the header."""
    from safetensors.numpy import save

    said = orjson.dumps(facts, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    return Response(save(contiguous, {FACTS: said}), media_type=TENSORS)


def stamped(stamp: Stamp) -> dict[str, Any]:
    """The state that an answer came from, as answers name it."""
    return {"generation": stamp.generation, "model": stamp.model, "sequence": stamp.sequence}


TENSOR_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {TENSORS: {"schema": {"type": "string", "format": "binary"}}}}
}
"""The `responses` of a route that answers tensors when they are asked for."""
