"""Answers that are problem documents."""

from __future__ import annotations

from typing import Any

from dsearch.service.wire.problems import kinds


def require_an_answer(answered: Any) -> None:
    assert answered.status_code < 500, answered.text
    if answered.status_code >= 400:
        assert answered.headers["content-type"] == "application/problem+json"
        problem = answered.json()
        assert kinds()[problem["code"]][0] == problem["status"] == answered.status_code
        assert problem["detail"]
