"""Errors as clients of other APIs parse them, by the path of the request.

A problem document (problems.py) gets further members for such a client and stays a problem document. JSON-RPC
has no room for that: there the problem is the `data` of its error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

JSON = "application/json"
_SERVER_ERROR = -32000  # of those that JSON-RPC 2.0 leaves to servers

Shape = Callable[[dict[str, Any]], tuple[dict[str, Any], str | None]]
"""Problem document → content of the answer, and its media type if that differs."""


def shape_of(path: str) -> Shape | None:
    """The shape of errors of requests for `path`; None: the problem document as it is."""
    if path in _SHAPES:
        return _SHAPES[path]
    return _openai if path.startswith(_OPENAI_PATHS) else None


def _json_rpc(problem: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """As clients of the Model Context Protocol read it, whatever the status."""
    error = {"code": _SERVER_ERROR, "message": problem["detail"], "data": problem}
    return {"jsonrpc": "2.0", "id": None, "error": error}, JSON


def _openai(problem: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """With the members `error`, which clients of OpenAI's API read, and `message`, of Cohere's."""
    detail, errors = problem["detail"], problem.get("errors")
    error = {
        "message": detail,
        "type": _OPENAI_TYPES.get(problem["status"], "invalid_request_error")
        if problem["status"] < _SERVER_STATUS
        else "server_error",
        "param": errors[0]["field"] if errors else None,
        "code": problem["code"],
    }
    return {**problem, "error": error, "message": detail}, None


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_SERVER_STATUS = 500
_OPENAI_PATHS = ("/v1/embeddings", "/v1/models")
_SHAPES: dict[str, Shape] = {"/mcp": _json_rpc, "/v1/rerank": _openai, "/v2/rerank": _openai}
