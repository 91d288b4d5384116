"""Whatever is sent, the answer is an answer: never a 5xx, and a problem document when it is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from support.service.problems import require_an_answer
from support.service.tasks import ended
from support.sizes import by_size

from dsearch.engine import Collection
from dsearch.operations import (
    Attend,
    CountFacets,
    DeleteDocuments,
    Differentiate,
    FindSimilar,
    Predict,
    Search,
    SearchBatch,
)
from dsearch.service.compat import EmbeddingsRequest, RerankRequest, RetrieveRequest
from dsearch.service.schemas.declared import body_of
from dsearch.service.schemas.documents import DocumentGiven

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats(-1e300, 1e300) | TEXT
SAID = st.sampled_from(["cat", "hybrid", "dense", "keyword", "v0", "v1", "keys", "values"])
NAMES = st.sampled_from(["i", "by.name", "eq", "in", "gte", "exists", "and", "or", "not", ""])
VALUES = st.recursive(
    SCALARS | SAID,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=6,
)
ROUTES: dict[str, type[Any]] = {
    "search": body_of(Search),
    "search/batch": body_of(SearchBatch),
    "attend": body_of(Attend),
    "vjp": body_of(Differentiate),
    "predict": body_of(Predict),
    "similar": body_of(FindSimilar),
    "facets": body_of(CountFacets),
    "documents/delete": body_of(DeleteDocuments),
    "documents": DocumentGiven,
    "/v1/embeddings": EmbeddingsRequest,
    "/v1/rerank": RerankRequest,
    "/v2/rerank": RerankRequest,
    "/retrieve": RetrieveRequest,
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any]:
    """A route, and an object with some of the names that it knows and sometimes another."""
    route = draw(st.sampled_from(sorted(ROUTES)))
    names = st.sampled_from(sorted(ROUTES[route].model_fields))
    body = draw(st.dictionaries(names | st.just("other"), VALUES, max_size=4))
    if draw(st.booleans()):
        whole = {
            "search": {"query": "cat"},
            "documents": {"id": "x", "text": "y"},
            "similar": {"like": ["d001"]},
            "facets": {"fields": ["i"]},
            "documents/delete": {"ids": ["d002"]},
            "/v1/embeddings": {"model": "papers", "input": "cat"},
            "/v1/rerank": {"model": "papers", "query": "cat", "documents": ["cat"]},
            "/v2/rerank": {"model": "papers", "query": "cat", "documents": ["cat"]},
        }
        body |= whole.get(route, {"queries": ["cat"]})
    return route, body


@given(bodies())
@settings(max_examples=by_size(60, 600), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_gets_an_answer(client: TestClient, papers: Collection, sent: tuple[str, Any]) -> None:
    route, body = sent
    method = "PUT" if route == "documents" else "POST"
    content = json.dumps([body] if route == "documents" else body).encode()
    headers = {"Content-Type": "application/json"}
    url = route if route.startswith("/") else f"/v1/collections/papers/{route}"
    require_an_answer(client.request(method, url, content=content, headers=headers))
    if route == "documents":
        headers = {"Content-Type": "application/x-ndjson"}
        require_an_answer(client.put(url, content=json.dumps(body).encode(), headers=headers))


@given(st.dictionaries(st.just("metadata") | TEXT, VALUES, max_size=2), st.sampled_from(["d001", "nobody"]))
@settings(max_examples=by_size(15, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_patch_gets_an_answer(client: TestClient, papers: Collection, body: Any, id: str) -> None:
    require_an_answer(client.patch(f"/v1/collections/papers/documents/{id}", json=body))


@given(st.binary(max_size=200), TEXT, st.sampled_from(["a.txt", "b.jsonl", "c.csv", "d.md.gz", "e.json"]))
@settings(max_examples=by_size(20, 200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_gets_an_answer(
    client: TestClient, papers: Collection, content: bytes, name: str, kind: str
) -> None:
    url = "/v1/collections/papers/files"
    answer = client.post(url, files=[("file", (kind, content)), ("file", (name or "x", content))])
    require_an_answer(answer)
    if answer.status_code == 202:
        task = ended(client, answer.json()["id"])
        assert task["state"] == "done" or task["problem"]["code"] == "invalid_source", task
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    require_an_answer(client.post(url, content=b"--x\r\n" + content, headers=headers))
    named = b"Content-Disposition: form-data; filename*=" + content
    require_an_answer(client.post(url, content=b"--x\r\n" + named + b"\r\n--x--", headers=headers))


PARTS = (
    "%FF",
    "%00",
    "a%00b",
    "%ED%A0%80",
    "..%2f..",
    "%0d%0aX: y",
    "'; DROP TABLE--",
    "*",
    "x" * 3000,
)


@pytest.mark.parametrize(
    ("method", "template"),
    [
        ("GET", "/v1/collections/{}"),
        ("PUT", "/v1/collections/{}"),
        ("DELETE", "/v1/collections/{}"),
        ("GET", "/v1/collections/papers/documents/{}"),
        ("DELETE", "/v1/collections/papers/documents/{}"),
        ("GET", "/v1/collections/papers/documents?cursor={}"),
        ("GET", "/v1/collections/papers/documents?limit={}"),
        ("GET", "/v1/collections/papers/documents?filter={}"),
        ("GET", "/v1/collections/papers/facets?fields={}"),
        ("GET", "/v1/collections/papers/facets?fields=i&filter={}"),
        ("GET", "/v1/collections/papers/search?query=cat&filter={}"),
        ("GET", "/v1/collections/papers/search?query=cat&cursor={}"),
        ("GET", "/v1/collections/papers/search?query={}"),
        ("GET", "/v1/collections/papers/search?query=cat&model={}"),
        ("POST", "/v1/collections/papers/models/{}/promote"),
        ("GET", "/v1/models/{}"),
        ("GET", "/problems/{}"),
        ("GET", "/ui/{}"),
        ("GET", "/{}"),
    ],
)
def test_any_address_gets_an_answer(
    client: TestClient, papers: Collection, method: str, template: str
) -> None:
    for part in PARTS:
        require_an_answer(client.request(method, template.format(part)))
