"""What surrounds every request: hosts, origins, headers, problems, errors that nobody expected."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.problems import error_table
from support.service.service_fakes import ORIGIN

import dsearch
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import CorruptData
from dsearch.guide import guide
from dsearch.service import create_app
from dsearch.service.guard import Guard
from dsearch.service.wire.problems import kinds

PATHS = (
    "/",
    "/docs",
    "/openapi.json",
    "/healthz",
    "/v1/collections",
    "/nothing",
    "/ui/app.js",
    "/ui/nothing",
)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.", "", "[::2]", "127.0.0.1:x"],
)
def test_other_hosts_are_refused_everywhere(client: TestClient, host: str) -> None:
    for path in PATHS:
        answered = client.get(path, headers={"Host": host})
        assert (answered.status_code, answered.json()["code"]) == (421, "host_not_allowed")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]", "[::1]:8080"]
)
def test_this_machine_has_these_names(client: TestClient, host: str) -> None:
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


def test_ways_to_write_a_host_are_answered_and_not_all_remembered(engine: SearchEngine) -> None:
    answered: list[str] = []

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        answered.append(dict(scope["headers"])[b"host"].decode())

    async def ask_all(guard: Guard, hosts: list[str]) -> None:
        for host in hosts:
            scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", host.encode())]}
            await guard(scope, None, None)  # type: ignore[arg-type]

    guard = Guard(answering)
    hosts = [f"localhost:{port}" for port in range(1, 500)]
    asyncio.run(ask_all(guard, hosts * 2))
    assert answered == hosts * 2
    remembered = [value for value in vars(guard).values() if isinstance(value, set)]
    assert all(len(value) <= 64 for value in remembered), "a client decides how much memory is taken"


@pytest.mark.parametrize(("hosts", "status"), [(["localhost", "x"], 200), (["x", "localhost"], 421)])
def test_of_several_hosts_the_first_counts(hosts: list[str], status: int) -> None:
    assert asyncio.run(_asked([(b"host", host.encode()) for host in hosts])) == status


def test_the_host_of_our_own_page_has_no_case() -> None:
    headers = [(b"host", b"LOCALHOST:80"), (b"origin", b"http://localhost:80")]
    assert asyncio.run(_asked(headers)) == 200


async def _asked(headers: list[tuple[bytes, bytes]], error: Exception | None = None) -> int:
    """Status of the answer of an application that is guarded; it may fail when that has begun."""
    started: list[int] = []

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if error is not None:
            raise error

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.append(message["status"])

    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    await Guard(answering)(scope, None, send)  # type: ignore[arg-type]
    (status,) = started
    return status


def test_half_an_answer_is_cut_and_not_taken_for_a_whole() -> None:
    """The server closes the connection only for an error that it sees."""
    with pytest.raises(RuntimeError, match="of the application"):
        asyncio.run(_asked([(b"host", b"localhost")], RuntimeError("of the application")))


def test_other_names_can_be_given(engine: SearchEngine) -> None:
    with TestClient(
        patient_app(engine, hosts=["search.example"]), base_url="http://search.example"
    ) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/healthz", headers={"Host": "localhost"}).status_code == 421
    with TestClient(patient_app(engine, hosts="*"), base_url="http://any.example") as client:
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "http://localhost", "127.0.0.1", ""]
)
def test_pages_of_other_sites_are_refused(client: TestClient, papers: Collection, origin: str) -> None:
    for method, path in (
        ("PUT", "/v1/collections/x"),
        ("DELETE", "/v1/collections/papers"),
        ("GET", "/healthz"),
    ):
        answered = client.request(method, path, headers={"Origin": origin})
        assert (answered.status_code, answered.json()["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in answered.headers
    assert client.get("/v1/collections/papers").status_code == 200


def test_our_own_page_is_served(client: TestClient) -> None:
    assert client.put("/v1/collections/x", headers={"Origin": ORIGIN}).status_code == 201


def test_a_preflight_is_granted_nothing(client: TestClient) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
    answered = client.options("/v1/collections/x", headers=asked)
    assert answered.status_code == 403
    assert not [name for name in answered.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe|\*|https?:", policy)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    assert headers["cache-control"] in ("no-store", "no-cache")


def test_the_page_and_the_description_are_two_pages(client: TestClient) -> None:
    assert [("swagger" in client.get(path).text) for path in ("/", "/docs")] == [False, True]


def test_routes_and_methods_that_are_not_there(client: TestClient) -> None:
    missing = client.get("/nothing%0A<b>")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    method = client.post("/healthz")
    assert (method.status_code, method.json()["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "GET"
    assert "use GET" in method.json()["detail"]
    for path in ("/ui/../app.py", "/ui/%2e%2e/app.py", "/ui/..%2fapp.py", "/docs/assets/../core.py"):
        assert client.get(path).status_code == 404


def test_an_unexpected_error_shows_an_id_and_nothing_else(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret: /home/somebody/key")

    monkeypatch.setattr(Collection, "answer", fail)
    with caplog.at_level(logging.ERROR):
        answered = client.post("/v1/collections/papers/search", json={"query": "cat"})
    assert answered.status_code == 500
    problem = answered.json()
    assert problem["code"] == "internal_error"
    assert problem["request_id"] == answered.headers["x-request-id"]
    assert "secret" not in answered.text
    assert "RuntimeError" not in answered.text
    assert "secret" in caplog.text  # for the operator
    assert problem["request_id"] in caplog.text
    assert "content-security-policy" in answered.headers
    # The worker lives on.
    monkeypatch.undo()
    assert client.post("/v1/collections/papers/search", json={"query": "cat"}).status_code == 200


def test_an_error_raised_on_purpose_says_what_to_do(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CorruptData("generation 3 is damaged; run: dsearch refresh")

    monkeypatch.setattr(Collection, "answer", fail)
    answered = client.post("/v1/collections/papers/search", json={"query": "cat"})
    assert (answered.status_code, answered.json()["code"]) == (500, "corrupt_data")
    assert answered.json()["detail"] == "generation 3 is damaged; run: dsearch refresh"


def test_queries_are_not_logged(
    client: TestClient, papers: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="dsearch"):
        client.post("/v1/collections/papers/search", json={"query": "my own secret illness"})
        client.post("/v1/collections/papers/search", json={"query": "my own secret illness", "limit": 0})
    assert "illness" not in caplog.text


# ---- the OpenAPI document


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with SearchEngine(tmp_path_factory.mktemp("home")) as engine:
        yield create_app(engine).openapi()


def _operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _has_example(content: dict[str, Any], document: dict[str, Any]) -> bool:
    schema = _resolved(content.get("schema", {}), document)
    return schema.get("format") == "binary" or bool(
        {"example", "examples"} & (content.keys() | schema.keys())
    )


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """What a schema refers to; of one that may be null, what it else is; of an array, what is in it."""
    schema = next((one for one in schema.get("anyOf", []) if "$ref" in one), schema)
    if schema.get("type") == "array" and "examples" not in schema:
        schema = schema["items"]
    return document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)


def test_every_route_documents_its_problems_and_has_examples(document: dict[str, Any]) -> None:
    assert len(_operations(document)) >= 19
    for name, operation in _operations(document):
        assert operation.get("description") or operation.get("summary"), name
        for status, response in operation["responses"].items():
            content = response.get("content", {})
            if int(status) >= 400:
                assert set(content) == {"application/problem+json"}, (name, status)
                for example in content["application/problem+json"]["examples"].values():
                    assert kinds()[example["value"]["code"]][0] == int(status)
        assert {"403", "421", "422"} <= operation["responses"].keys(), name
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert _has_example(content, document), name
        answer = operation["responses"].get("200")
        if answer and name != "GET /problems/{code}":
            assert any(_has_example(content, document) for content in answer["content"].values()), name


def test_every_reference_of_the_document_is_there(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/components/schemas/(\w+)"', str(document).replace("'", '"')))
    assert references <= document["components"]["schemas"].keys()
    assert "HTTPValidationError" not in references


def test_examples_of_requests_are_answered(client: TestClient, papers: Collection, app: FastAPI) -> None:
    names = {"collection": "papers", "id": "d000", "alias": "latest"}
    for name, operation in _operations(app.openapi()):
        method, path = name.split()
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is None:
            continue
        schema = _resolved(body["schema"], app.openapi())
        array = body["schema"].get("type") == "array" and "example" not in body
        for example in [body["example"]] if "example" in body else schema["examples"]:
            example = [example] if array else example
            at = re.sub(r"{(\w+)}", lambda part: names.get(part[1], "unknown"), path)
            answered = client.request(method, at, json=example)
            # What an example names may be unknown here (a document, a search); nothing of it is malformed.
            assert (
                answered.status_code in (200, 202, 404, 409, 410) or "unknown" in answered.json()["code"]
            ), name


def test_every_problem_is_described_where_its_type_leads(client: TestClient) -> None:
    assert len(kinds()) > 20
    for code, (status, title) in kinds().items():
        answered = client.get(f"/problems/{code}")
        assert answered.json() == {"code": code, "status": status, "title": title}
        assert title.endswith(".")
    assert client.get("/problems/nothing").json()["code"] == "not_found"


def test_the_guide_lists_every_code(client: TestClient) -> None:
    text = guide("errors")
    table = error_table()
    assert table in text, "put this table into dsearch/guide/errors.md:\n\n" + table
    package = Path(dsearch.__file__).parent
    here = [
        path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("cli", "client")
    ]
    codes = {code for path in here for code in re.findall(r'^    code = "(\w+)"', path.read_text(), re.M)}
    assert codes - {"error"} <= set(re.findall(r"^\| `(\w+)` \|", text, re.M))
