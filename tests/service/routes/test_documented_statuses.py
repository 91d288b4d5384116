"""Status codes that the schema documents for each operation: of its success, and of its errors."""

from __future__ import annotations

from pathlib import Path

from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.service import create_app

OF_ALL = {"401", "403", "421", "422", "504"}
DOCUMENTED: dict[tuple[str, str], list[str]] = {
    ("200", "404 409 413 415 503"): [
        "POST /v1/collections/{collection}/search",
        "POST /v1/collections/{collection}/search/batch",
        "POST /v1/collections/{collection}/predict",
        "PUT /v1/collections/{collection}/documents",
        "PATCH /v1/collections/{collection}/documents/{id}",
        "POST /v1/collections/{collection}/documents/delete",
        "POST /v1/embeddings",
        "POST /v1/rerank",
        "POST /v2/rerank",
    ],
    ("200", "404 409 503"): [
        "GET /v1/collections/{collection}/search",
        "DELETE /v1/collections/{collection}/documents/{id}",
    ],
    ("200", "404 409 410 413 415 503"): [
        "POST /v1/collections/{collection}/similar",
        "POST /v1/collections/{collection}/attend",
        "POST /v1/collections/{collection}/vjp",
    ],
    ("200", ""): [
        "GET /healthz",
        "GET /metrics",
        "GET /v1/collections",
        "GET /v1/tasks",
        "GET /v1/models",
    ],
    ("200", "503"): [
        "GET /readyz",
    ],
    ("200", "404"): [
        "GET /problems/{code}",
        "GET /v1/collections/{collection}",
        "GET /v1/collections/{collection}/documents",
        "GET /v1/collections/{collection}/documents/{id}",
        "GET /v1/collections/{collection}/facets",
        "GET /v1/collections/{collection}/stats",
        "GET /v1/collections/{collection}/models",
        "GET /v1/tasks/{id}",
        "GET /v1/models/{id}",
    ],
    ("200 201", "409 413 415 503"): [
        "PUT /v1/collections/{collection}",
    ],
    ("204", "404 409 503"): [
        "DELETE /v1/collections/{collection}",
        "DELETE /v1/collections/{collection}/models/{version}",
    ],
    ("200", "500"): [
        "GET /v1/aliases",
    ],
    ("204", "404 409 500 503 507"): [
        "DELETE /v1/aliases/{alias}",
    ],
    ("200", "404 413 415"): [
        "POST /v1/collections/{collection}/facets",
    ],
    ("200", "404 409 413 415 500 503 507"): [
        "POST /v1/collections/{collection}/feedback",
        "POST /v1/collections/{collection}/outcomes",
        "POST /v1/collections/{collection}/models/remember",
        "PUT /v1/aliases/{alias}",
    ],
    ("200", "404 500"): [
        "GET /v1/collections/{collection}/judgements",
        "GET /v1/collections/{collection}/judgements/next",
    ],
    ("201", "404 409 413 415 503"): [
        "POST /v1/collections/{collection}/heads",
    ],
    ("201", "404 409 413 415 503 507"): [
        "POST /v1/collections/{collection}/models",
    ],
    ("204", "404"): [
        "DELETE /v1/collections/{collection}/heads/{draft}",
    ],
    ("200", "404 410"): [
        "GET /v1/collections/{collection}/heads/{draft}",
    ],
    ("200", "404 409 410 500 503"): [
        "POST /v1/collections/{collection}/models/{version}/promote",
    ],
    ("200", "404 409 500 503"): [
        "POST /v1/collections/{collection}/models/rollback",
    ],
    ("200", "404 413 415 500 503 507"): [
        "POST /v1/collections/{collection}/models/rollback-rows",
    ],
    ("200", "404 410 500"): [
        "GET /v1/collections/{collection}/models/{version}/head",
    ],
    ("202", "404 409 413 415 503 507"): [
        "POST /v1/collections/{collection}/files",
        "POST /v1/collections/{collection}/models/save",
    ],
    ("202", "404 409 413 415 500 503"): [
        "POST /v1/collections/{collection}/models/{version}/judge",
    ],
    ("202", "404 413 415 503"): [
        "POST /v1/collections/{collection}/train",
        "POST /v1/collections/{collection}/tune",
        "POST /v1/collections/{collection}/evaluate",
        "POST /v1/collections/{collection}/refresh",
    ],
    ("202", "404 503"): [
        "POST /v1/collections/{collection}/compact",
    ],
    ("202", "404 409 413 415 503"): [
        "POST /v1/collections/{collection}/migrate",
    ],
    ("200", "404 503"): [
        "DELETE /v1/tasks/{id}",
        "GET /v1/tasks/{id}/events",
    ],
    ("200", "404 413 415 503"): [
        "POST /retrieve",
    ],
}
"""(success, errors beside those of all) → operations."""


def test_each_operation_documents_its_statuses(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        schema = create_app(engine).openapi()
    found = {
        f"{method.upper()} {path}": set(operation["responses"])
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    }
    expected = {
        operation: {*success.split(), *errors.split()} | OF_ALL
        for (success, errors), operations in DOCUMENTED.items()
        for operation in operations
    }
    assert found == expected
