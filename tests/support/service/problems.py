"""Answers that are problem documents."""

from __future__ import annotations

from typing import Any

from dsearch.service.wire.problems import kinds


def problem_in(answered: Any) -> dict[str, Any]:
    """The problem of an answer, out of the error that JSON-RPC puts around it."""
    content = answered.json()
    if "jsonrpc" in content:
        assert answered.headers["content-type"] == "application/json"
        return content["error"]["data"]
    assert answered.headers["content-type"] == "application/problem+json"
    return content


def require_an_answer(answered: Any) -> None:
    assert answered.status_code < 500, answered.text
    if answered.status_code >= 400:
        problem = problem_in(answered)
        assert kinds()[problem["code"]][0] == problem["status"] == answered.status_code
        assert problem["detail"]


def error_table() -> str:
    """Every code as a Markdown table: what stands in the guide "errors"."""
    import dsearch.training  # its errors are what a task can fail with

    assert dsearch.training
    lines = ["| code | status | meaning |", "|---|---|---|"]
    lines += [f"| `{code}` | {status} | {title} |" for code, (status, title) in kinds().items()]
    return "\n".join(lines)
