"""How errors are answered: status, headers and words, by an application of a few routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, HTTPException
from pydantic import Field, ValidationError
from starlette.testclient import TestClient

from dsearch.declared import Values
from dsearch.errors import Command, InvalidRequest, KeyMissing, NotFound
from dsearch.service.errors import Overloaded
from dsearch.service.wire.json import UNLESS_GIVEN, add_headers
from dsearch.service.wire.problems import MEDIA_TYPE, SHOWN_ERRORS, describe, field_errors, install
from dsearch.service.wire.requests import SHOWN, RequestModel, repr_of


class Numbers(RequestModel):
    """A request."""

    numbers: list[int]
    limit: Annotated[int, Field(ge=1, le=9), Values("an integer from 1 to 9")] = 1
    mode: Annotated[
        str, Field(pattern="^(dense|keyword)$"), Values("dense or keyword", ("dense", "keyword"))
    ] = "dense"
    kept_as: str = Field("", alias="as")


def busy() -> Overloaded:
    error = Overloaded("too many")
    error.retry_after_s = 7
    return error


RAISED: dict[str, Exception] = {
    "missing": NotFound("no such thing"),
    "key": KeyMissing("no key", hint=Command("keys create", ("--name", "NAME"))),
    "busy": busy(),
    "teapot": HTTPException(418, headers={"X-Tea": "green"}),
    "gateway": HTTPException(502),
    "own": InvalidRequest("one=1; use 2"),
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = FastAPI()
    install(app)

    @app.post("/numbers")
    def numbers(body: Numbers) -> int:
        return len(body.numbers)

    @app.get("/raise/{name}")
    def fail(name: str, most: int = 1) -> None:
        raise RAISED[name]

    with TestClient(app) as connected:
        yield connected


def refused(**content: Any) -> list[dict[str, str]]:
    """The errors of a request, as an answer lists them."""
    with pytest.raises(ValidationError) as error:
        Numbers.model_validate(content)
    return field_errors([{**one, "loc": ("body", *one["loc"])} for one in error.value.errors()])


def test_only_the_first_refused_fields_are_listed_and_all_are_counted(client: TestClient) -> None:
    answer = client.post("/numbers", json={"numbers": ["x"] * 250})
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (422, MEDIA_TYPE)
    assert len(problem["errors"]) == SHOWN_ERRORS == 100
    assert [one["field"] for one in problem["errors"][:2]] == ["numbers.0", "numbers.1"]
    assert "at least 249 more" in problem["detail"]
    one = client.post("/numbers", json={"numbers": [1], "limit": 0}).json()
    assert (one["detail"], len(one["errors"])) == ("limit=0; use an integer from 1 to 9", 1)


@pytest.mark.parametrize(
    ("name", "status", "code", "header", "value"),
    [
        ("missing", 404, "not_found", "Retry-After", None),
        ("key", 401, "key_missing", "WWW-Authenticate", 'Bearer realm="dsearch"'),
        ("busy", 503, "overloaded", "Retry-After", "7"),
        ("teapot", 418, "invalid_request", "X-Tea", "green"),
        ("gateway", 502, "internal_error", "WWW-Authenticate", None),
        ("own", 422, "invalid_request", "WWW-Authenticate", None),
    ],
)
def test_an_error_is_a_problem_with_its_headers(
    client: TestClient, name: str, status: int, code: str, header: str, value: str | None
) -> None:
    answer = client.get(f"/raise/{name}")
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert (problem["type"], answer.headers["content-type"]) == (f"/problems/{code}", MEDIA_TYPE)
    assert answer.headers.get(header) == value
    assert ("hint" in problem) == (name == "key")
    assert problem["title"] == describe(code)["title"]


def test_routes_that_are_not_there_and_methods_that_are_not_taken(client: TestClient) -> None:
    missing = client.get("/nowhere")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert missing.json()["detail"] == "no route '/nowhere'; see /docs for those that there are"
    wrong = client.get("/numbers")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["detail"] == "GET '/numbers'; use POST, or see /docs"
    assert client.request("A" * 40, "/numbers").json()["detail"].startswith(f"{'A' * 20} '/numbers'")


def test_a_query_that_is_refused_is_named_as_one(client: TestClient) -> None:
    problem = client.get("/raise/own", params={"most": "x"}).json()
    assert [one["field"] for one in problem["errors"]] == ["most"]
    assert problem["detail"].startswith("most='x'; ")


@pytest.mark.parametrize(
    ("content", "field", "detail"),
    [
        ({}, "numbers", "numbers is missing; see /docs for what the request has"),
        ({"numbers": 1}, "numbers", "numbers=1; use an array"),
        ({"numbers": [1], "mode": "dens"}, "mode", "mode='dens'; use dense or keyword (did you mean dense?)"),
        ({"numbers": [1], "mode": 1}, "mode", "mode=1; use dense or keyword"),
    ],
)
def test_a_refused_field_says_what_was_given_and_what_is_allowed(
    content: dict[str, Any], field: str, detail: str
) -> None:
    assert refused(**content) == [{"field": field, "detail": detail}]


@pytest.mark.parametrize(
    ("given", "named"), [([], "array"), ("x", "string"), (True, "boolean"), (1.5, "number")]
)
def test_a_body_of_another_kind_is_named(client: TestClient, given: Any, named: str) -> None:
    (error,) = client.post("/numbers", json=given).json()["errors"]
    assert error == {"field": "body", "detail": f"a body of type {named}; use a JSON object"}


def test_at_most_three_unknown_names_are_repeated() -> None:
    (error,) = refused(numbers=[1], limt=2, b=3, c=4, d=5)
    known = "numbers, limit, mode, as"
    assert error["detail"].startswith("unknown field 'limt', 'b', 'c'")
    assert "'d'" not in error["detail"]
    assert "(did you mean limit?)" in error["detail"]
    assert error["detail"].endswith(f"; use {known}")
    assert Numbers.model_validate({"numbers": [], "as": "x"}).kept_as == "x"
    assert len(refused(numbers=[1], **{"x" * 500: 1})[0]["detail"]) < 200


def test_a_given_value_is_repeated_up_to_a_length() -> None:
    assert repr_of("x" * (SHOWN - 2)) == repr("x" * (SHOWN - 2))
    cut = repr_of("x" * (SHOWN - 1))
    assert (len(cut), cut[-1]) == (SHOWN, "…")
    assert repr_of([0] * SHOWN) != f"a list of {SHOWN}"
    assert repr_of([0] * (SHOWN + 1)) == f"a list of {SHOWN + 1}"
    assert repr_of(dict.fromkeys(range(SHOWN + 1))) == f"an object of {SHOWN + 1}"


def test_headers_are_added_unless_an_answer_has_its_own() -> None:
    def added(*own: tuple[bytes, bytes], close: bool = False) -> list[tuple[bytes, bytes]]:
        start: dict[str, Any] = {"headers": list(own)}
        add_headers(start, "r1", close=close)
        return start["headers"]

    assert added() == [*UNLESS_GIVEN, (b"x-request-id", b"r1")]
    assert added(close=True)[-2:] == [(b"x-request-id", b"r1"), (b"connection", b"close")]
    own = added(
        (b"Cache-Control", b"max-age=9"), (b"X-Request-Id", b"theirs"), (b"Connection", b"keep-alive")
    )
    assert [value for name, value in own if name.lower() == b"cache-control"] == [b"max-age=9"]
    assert [value for name, value in own if name.lower() == b"x-request-id"] == [b"r1"]
    assert [value for name, value in own if name.lower() == b"connection"] == [b"keep-alive"]
    closed = added((b"Connection", b"keep-alive"), close=True)
    assert [value for name, value in closed if name.lower() == b"connection"] == [b"close"]
    assert {name for name, _ in UNLESS_GIVEN} <= {name.lower() for name, _ in own}
