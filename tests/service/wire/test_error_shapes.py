"""Errors in the shapes of other APIs: which paths have which, and what their members say."""

from __future__ import annotations

from typing import Any

import pytest

from dsearch.service.wire.problems import shape_of

PROBLEM: dict[str, Any] = {"type": "/problems/x", "status": 422, "code": "invalid_request", "detail": "so"}


def openai(problem: dict[str, Any]) -> dict[str, Any]:
    shape = shape_of("/v1/embeddings")
    assert shape is not None
    content, media_type = shape(problem)
    assert media_type is None
    return content


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/models", "/v1/rerank", "/v2/rerank"],
)
def test_paths_of_other_apis_have_their_shape(path: str) -> None:
    shape = shape_of(path)
    assert shape is not None
    assert shape(PROBLEM)[0]["error"]["message"] == "so"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/collections/files",
        "/v1/collections/a/files",
        "/v1/collections/a/models",
        "/v2/rerank/x",
        "/mcp/x",
        "/",
    ],
)
def test_all_others_are_problem_documents_as_they_are(path: str) -> None:
    assert shape_of(path) is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (422, "invalid_request_error"),
        (499, "invalid_request_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_type_of_an_error_follows_its_status(status: int, kind: str) -> None:
    assert openai({**PROBLEM, "status": status})["error"]["type"] == kind


def test_the_parameter_is_the_first_field_that_is_wrong() -> None:
    assert openai(PROBLEM) == {
        **PROBLEM,
        "message": "so",
        "error": {
            "message": "so",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_request",
        },
    }
    wrong = {**PROBLEM, "errors": [{"field": "a"}, {"field": "b"}]}
    assert openai(wrong)["error"]["param"] == "a"
    assert openai(wrong)["errors"] == wrong["errors"]
    assert openai({**PROBLEM, "errors": []})["error"]["param"] is None


def test_json_rpc_has_the_problem_as_data_of_its_error() -> None:
    shape = shape_of("/mcp")
    assert shape is not None
    assert shape(PROBLEM) == (
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "so", "data": PROBLEM}},
        "application/json",
    )
