"""Memory by JSON: however many items of a body are wrong, a bounded number of errors is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from starlette.testclient import TestClient

from dsearch.engine import Collection
from dsearch.service.schemas.documents import ARRAY
from dsearch.service.schemas.feedback import Events
from dsearch.service.wire import problems
from dsearch.service.wire.requests import SHOWN_ERRORS, BoundedErrors, RequestModel

WRONG = 20_000
MOST_ERRORS = 5000  # of a piece of objects, each with the errors of a piece of numbers
LISTS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: [0] * WRONG,
    "texts": lambda: [""] * WRONG,
    "nulls": lambda: [None] * WRONG,
    "lists": lambda: [[0, ""] for _ in range(WRONG)],
    "objects": lambda: [{} for _ in range(WRONG)],
    "a long list inside": lambda: [[""] * WRONG],
    "long lists inside": lambda: [[""] * 200 for _ in range(WRONG // 200)],
    "documents": lambda: [{"id": "a", "embedding": [""] * 200} for _ in range(WRONG // 200)],
    "object of numbers": lambda: {str(i): 0 for i in range(WRONG)},
    "object of texts": lambda: {str(i): "" for i in range(WRONG)},
    "object of lists": lambda: {str(i): [0, ""] for i in range(WRONG)},
    "object of objects": lambda: {str(i): {"a": "", "b": ""} for i in range(WRONG)},
    "a long object inside": lambda: {"a": {str(i): "" for i in range(WRONG)}},
}


def _models(root: type[BaseModel] = RequestModel) -> Iterator[type[BaseModel]]:
    for model in root.__subclasses__():
        if model.__module__.startswith("dsearch."):
            yield model
        yield from _models(model)


def _errors(validate: Callable[[Any], Any], value: Any) -> int:
    try:
        validate(value)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("kind", LISTS)
def test_a_long_list_in_any_field_of_any_request_has_a_bounded_number_of_errors(
    app: FastAPI, kind: str
) -> None:
    value = LISTS[kind]()
    fields = [
        (model, field.alias or name) for model in _models() for name, field in model.model_fields.items()
    ]
    assert len(fields) > 100
    refused = 0
    for model, name in fields:
        errors = _errors(model.model_validate, {name: value})
        refused += errors > 0
        assert errors < MOST_ERRORS, (model.__name__, name)
    assert refused
    for body in (ARRAY, TypeAdapter[Any](Events)):
        assert _errors(body.validate_python, value) < MOST_ERRORS


@pytest.mark.parametrize("kind", ["numbers", "objects", "nulls", "texts", "documents"])
def test_documents_that_are_all_wrong_are_answered_by_their_first_errors(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    built: list[int] = []

    class Counted(RequestValidationError):
        def __init__(self, errors: Any, **more: Any):
            built.append(len(errors))
            super().__init__(errors, **more)

    monkeypatch.setattr("dsearch.service.routes.documents.RequestValidationError", Counted)
    answer = client.put("/v1/collections/papers/documents", json=LISTS[kind]())
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_request")
    assert len(problem["errors"]) == SHOWN_ERRORS
    assert problem["errors"][0]["field"].startswith("0")
    assert "at least" in problem["detail"]
    assert built
    assert built[0] < MOST_ERRORS


def test_errors_that_are_not_shown_are_not_described(
    client: TestClient, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[int] = []
    describe = problems.field_errors

    def counted(errors: Any) -> list[dict[str, str]]:
        described.append(len(errors))
        return describe(errors)

    monkeypatch.setattr(problems, "field_errors", counted)
    client.put("/v1/collections/papers/documents", json=[0] * 250)
    assert described == [SHOWN_ERRORS]


_FIELDS: dict[str, Any] = {
    "numbers": (list[float] | None, None),
    "most": (Annotated[list[int], Field(max_length=700)] | None, None),
    "rows": (list[list[int]] | None, None),
    "grades": (dict[str, dict[str, float]] | None, None),
    "either": (float | list[float] | None, None),
}


class _Plain(BaseModel):
    """A request as pydantic validates it."""

    model_config = ConfigDict(strict=True)


class _Bounded(RequestModel):
    """A request of the service."""

    model_config = ConfigDict(strict=True)


PLAIN, BOUNDED = (create_model("Request", __base__=base, **_FIELDS) for base in (_Plain, _Bounded))


COUNTS = st.integers(0, 40) | st.sampled_from([255, 256, 257, 511, 512, 513, 700, 701, 1500])
WRONG_PLACES = st.sets(st.integers(0, 1500), max_size=3)


@given(COUNTS, WRONG_PLACES, st.sampled_from(["numbers", "most", "rows", "grades", "either"]))
def test_a_few_errors_are_those_of_pydantic_wherever_they_stand(
    count: int, places: set[int], name: str
) -> None:
    good: Any = {"rows": [1], "grades": {"a": 1.0}}.get(name, 1)
    bad: Any = {"rows": [1, "x"], "grades": {"a": "x"}}.get(name, "x")
    items = [bad if place in places else good for place in range(count)]
    content = {name: {str(n): item for n, item in enumerate(items)} if name == "grades" else items}
    results: list[Any] = []
    for model in (PLAIN, BOUNDED):
        try:
            results.append(model.model_validate(content).model_dump())
        except ValidationError as error:
            results.append([{**one, "url": ""} for one in error.errors()])
    assert results[0] == results[1]


def test_a_body_that_is_a_list_is_bounded_too() -> None:
    plain, bounded = TypeAdapter(list[int]), TypeAdapter(Annotated[list[int], BoundedErrors()])
    value: list[Any] = [*range(1000), "x", *range(1000)]
    with pytest.raises(ValidationError) as expected:
        plain.validate_python(value)
    with pytest.raises(ValidationError) as error:
        bounded.validate_python(value)
    assert error.value.errors() == expected.value.errors()
    assert bounded.validate_python(value[:1000]) == value[:1000]
    assert _errors(bounded.validate_python, ["x"] * WRONG) < MOST_ERRORS
    assert bounded.json_schema() == plain.json_schema()
