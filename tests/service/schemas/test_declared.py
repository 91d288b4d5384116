"""What a server is sent becomes the call that was declared, or is refused by what its fields may have."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dsearch.errors import InvalidRequest
from dsearch.operations import (
    Attend,
    Call,
    CreateCollection,
    Differentiate,
    Evaluate,
    FindSimilar,
    JudgeModel,
    Predict,
    Search,
    SearchBatch,
)
from dsearch.service.schemas.declared import body_of, call_of, parameters_of

STAMP = {"generation": 3, "model": "v1", "sequence": 7}


def sent(kind: type[Call[Any]], content: dict[str, Any], **in_path: str) -> Any:
    model = body_of(kind)
    assert model is not None
    return call_of(kind, in_path or {"collection": "papers"}, [model.model_validate(content)])


def test_a_body_becomes_the_call() -> None:
    given = {"like": ["a", 7], "query": "cat", "limit": 3, "fields": ["title", "year"], "episode": "t"}
    options = {"limit": 3, "fields": "title,year", "episode": "t"}
    assert sent(FindSimilar, given) == FindSimilar("papers", ["a", "7"], query="cat", options=options)
    assert sent(Search, {"query": "cat", "vector": None}) == Search("papers", "cat")


def test_fields_have_the_names_of_the_body() -> None:
    call = sent(Differentiate, {"ids": ["a"], "stamp": STAMP, "grad_scores": [[0.5]]})
    assert (call.scores, call.options["stamp"]) == ([[0.5]], STAMP)
    judged = sent(JudgeModel, {"before": [1.0], "after": [2.0]}, collection="papers", version="v2")
    assert (judged.evidence.before, judged.evidence.after, judged.evidence.measure) == ([1.0], [2.0], "score")


def test_objects_within_a_body_have_fields_of_their_own() -> None:
    made = sent(CreateCollection, {"passages": {"tokens": 7}}, name="papers")
    assert made.passages == {"tokens": 7}
    with pytest.raises(ValidationError, match="use tokens, overlap, none"):
        sent(CreateCollection, {"passages": {"token": 7}}, name="papers")
    graded: dict[str, Any] = {"queries": {"q": "cat"}, "judgements": {"q": {"d": 1.0}}}
    assert sent(Evaluate, {**graded, "systems": [{"model": "v0"}]}).systems == [{"model": "v0"}]


def test_a_request_in_the_url_has_the_names_of_the_body() -> None:
    model = parameters_of(Search)
    assert model is not None
    given = {"query": "cat", "limit": "3", "filter": '{"year": 7}', "fields": ["title", "year"]}
    call = call_of(Search, {"collection": "papers"}, [model.model_validate(given)])
    options = {"limit": 3, "filter": {"year": 7}, "fields": "title,year"}
    assert call == Search("papers", "cat", options=options)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (Search, {}, "neither query nor vector"),
        (SearchBatch, {}, "neither queries nor vectors"),
        (SearchBatch, {"queries": ["cat"], "vectors": [[1.0]] * 2}, "1 query and 2 vectors"),
        (SearchBatch, {"queries": ["cat"] * 2, "vectors": [[1.0]]}, "2 queries and 1 vector"),
        (Attend, {}, "neither queries nor vectors"),
        (Attend, {"ids": ["a"], "queries": ["cat"]}, "ids"),
        (Attend, {"ids": ["a"], "vectors": [[1.0]]}, "ids"),
        (Attend, {"queries": ["a", "b"], "vectors": [[1.0]]}, "2 queries and 1 vector"),
        (Attend, {"queries": ["a", " "]}, r"queries\.1"),
        (Predict, {"field": "year"}, "neither queries nor vectors nor ids"),
        (Predict, {"field": "year", "ids": ["a"], "queries": ["cat"]}, "queries and ids"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    kind: type[Call[Any]], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        sent(kind, given)


@pytest.mark.parametrize("query", ["", " \t\n", "\ud800", "cat \udfff"], ids=ascii)
def test_what_is_no_text_is_no_query(query: str) -> None:
    """Half of a pair of surrogates can be in a string, and in no answer, index or log."""
    with pytest.raises(ValidationError, match="at least one word"):
        sent(Search, {"query": query})
