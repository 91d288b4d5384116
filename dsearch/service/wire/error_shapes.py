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
    return _SHAPES.get(path)


def _json_rpc(problem: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """As clients of the Model Context Protocol read it, whatever the status."""
    error = {"code": _SERVER_ERROR, "message": problem["detail"], "data": problem}
    return {"jsonrpc": "2.0", "id": None, "error": error}, JSON


_SHAPES: dict[str, Shape] = {"/mcp": _json_rpc}
