"""Results and answers have one declaration each, which the OpenAPI document describes."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import orjson
import pytest

from dsearch import results, types
from dsearch.results import Evidence, FieldPrediction
from dsearch.service.schemas import answers
from dsearch.service.schemas.answers import prediction_answer
from dsearch.service.schemas.declared import described
from dsearch.types import Explanation, Hit, Passage

SHAPES: dict[str, Any] = {
    name: one
    for module in (types, results, answers)
    for name, one in vars(module).items()
    if inspect.isclass(one) and dataclasses.is_dataclass(one)
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_docstring_describes_fields_that_there_are(name: str) -> None:
    text, about = described(SHAPES[name])
    assert text
    assert {*about} <= {field.name for field in dataclasses.fields(SHAPES[name])}


def test_a_hit_is_written_without_what_was_not_requested() -> None:
    hit = Hit(1, "a", 0.5, 0.9, "T", "text", {"year": 2017})
    plain = {"rank": 1, "id": "a", "weight": 0.5, "score": 0.9, "title": "T", "text": "text"}
    plain["metadata"] = {"year": 2017}
    assert orjson.loads(orjson.dumps(hit.to_dict())) == plain
    full = dataclasses.replace(hit, explain=Explanation([0.9], [0.0], [0.5]), passage=Passage(0, 0, 2, "te"))
    written = orjson.loads(orjson.dumps(full.to_dict()))
    assert written == {
        **plain,
        "explain": {
            "dense": [0.9],
            "keyword": [0.0],
            "head_weights": [0.5],
            "terms": {},
            "shares": [1.0],
            "mixing": 0.0,
            "memory": 0.0,
            "past_queries": [],
            "second_stage": 0.0,
            "reranker": 0.0,
        },
        "passage": {"ordinal": 0, "start": 0, "end": 2, "text": "te"},
    }


def test_labels_are_written_as_a_list() -> None:
    labels: dict[str | bool, float] = {True: 0.75, "true": 0.25}
    prediction = FieldPrediction("label", None, None, labels, [Evidence("a", 1.0, True)], 1, 0)
    written = orjson.loads(orjson.dumps(prediction_answer(prediction)))
    assert written["labels"] == [{"label": True, "share": 0.75}, {"label": "true", "share": 0.25}]
    assert written["evidence"] == [{"id": "a", "weight": 1.0, "value": True}]
    assert {*written} == {field.name for field in dataclasses.fields(FieldPrediction)}
