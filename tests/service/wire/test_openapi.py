"""The OpenAPI document: every field of requests and answers has a description, and an example that fits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsearch.engine import SearchEngine
from dsearch.service import create_app
from dsearch.service.schemas.descriptions import DESCRIPTIONS, FIELD_EXAMPLES
from dsearch.service.wire.requests import RequestModel
from dsearch.types import Hit


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("openapi") / "home"
    with SearchEngine(folder) as engine:
        app = create_app(engine)
        assert app.openapi() == app.openapi()
        return app.openapi()


def fields_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, description's place and schema of every field of a body and every parameter."""
    for name, schema in document["components"]["schemas"].items():
        for field, about in schema.get("properties", {}).items():
            yield f"{name}.{field}", about, about
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                yield f"{method} {path} {parameter['name']}", parameter, parameter["schema"]


def test_every_field_has_a_description_and_an_example(document: dict[str, Any]) -> None:
    fields = list(fields_of(document))
    assert len(fields) > 600
    assert [name for name, place, _ in fields if not place.get("description")] == []
    assert [name for name, _, schema in fields if not schema.get("examples")] == []


def test_every_example_fits_its_field(document: dict[str, Any]) -> None:
    wrong: list[str] = []
    for name, _, schema in fields_of(document):
        whole = {**schema, "components": document["components"]}
        validator = jsonschema.Draft202012Validator(whole)
        wrong += [f"{name}: {one}" for one in schema.get("examples", ()) if not validator.is_valid(one)]
    assert wrong == []


def test_what_every_answer_has_is_required_and_nothing_else(document: dict[str, Any]) -> None:
    """Clients are generated from it: they would fail on what is left out, or allow for what never is."""
    schemas = document["components"]["schemas"]
    plain = Hit(1, "a", 0.5, 0.9, "T", "text", {}).to_dict()
    assert {*schemas["Hit"]["required"]} == {*plain}
    assert schemas["DeleteResult"]["required"] == ["sequence", "deleted", "note"]
    assert {*schemas["Document"]["required"]} == {"id", "text", "title", "metadata", "value"}


def bodies(model: type[RequestModel] = RequestModel) -> Iterator[type[RequestModel]]:
    for each in model.__subclasses__():
        yield each
        yield from bodies(each)


def test_every_example_of_a_body_is_a_request_that_is_accepted(document: dict[str, Any]) -> None:
    """Rules between fields too, which a schema cannot say: pages of the API send the example as it is."""
    by_name = {body.__name__: body for body in bodies()}  # the class with its options comes after its base
    tried = Counter[str]()
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", ()) if name in by_name else ():
            by_name[name].model_validate_json(json.dumps(example))
            tried[name] += 1
    assert len(tried) > 20
    assert tried["TrainRequest"] == 4


def test_no_text_is_of_a_field_that_is_gone(document: dict[str, Any]) -> None:
    names = {name.rpartition(" ")[2] for name, _, _ in fields_of(document)}
    plain = {name.rpartition(".")[2] for name in names}
    for texts in (DESCRIPTIONS, FIELD_EXAMPLES):
        assert [name for name in texts if name not in (names if "." in name else plain)] == []
