"""A field that no document has, where one of a similar name is there, is named: filters, groups, facets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.service.apps import patient_app

from dsearch.client.local.engine import LocalEngine
from dsearch.engine import SearchEngine
from dsearch.engine.filters import FilteredSnapshots
from dsearch.errors import InvalidRequest
from dsearch.types import Document


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path_factory.mktemp("fields") / "home", encoder=HashingEncoder) as opened:
        collection = opened.create("food")
        collection.ingest(
            [
                Document(f"d{n}", f"bread number {n}", metadata={"price": n, "at": {"year": 2000 + n}})
                for n in range(20)
            ]
        )
        collection.refresh()
        collection.ingest([Document("late", "bread that came late", metadata={"oven": "stone", "or": 1})])
        opened.create("empty")
        yield opened


SEARCHES: list[tuple[dict[str, Any], str]] = [
    ({"filter": {"prise": {"gte": 3}}}, "filter: no document has the field 'prise' (did you mean price?)"),
    ({"filter": {"at.yeer": {"eq": 2001}}}, "'at.yeer' (did you mean at.year?)"),
    ({"filter": {"or": [{"ovn": {"eq": "stone"}}, {"price": {"gt": 99}}]}}, "'ovn' (did you mean oven?)"),
    ({"fields": "title,prise"}, "fields: no document has the field 'prise' (did you mean price?)"),
    ({"fields": "titel"}, "fields: no document has the field 'titel' (did you mean title?)"),
    ({"group_by": "pricee"}, "group_by='pricee': none of the 21 candidates has this field (did you"),
]
ALLOWED: list[tuple[dict[str, Any], int]] = [
    ({"filter": {"price": {"gt": 99}}}, 0),  # the field is there
    ({"filter": {"colour": {"eq": "red"}}}, 0),  # nothing is near
    ({"filter": {"prise": {"ne": 3}}}, 21),  # holds without the field
    ({"filter": {"prise": {"exists": True}}}, 0),  # asks whether it is there
    ({"filter": {"oven": {"eq": "wood"}}}, 0),  # of one document alone
    ({"filter": {"or": [{"prise": {"eq": 3}}, {"price": {"gte": 12}}]}}, 8),  # the other part matches
    ({"group_by": "colour"}, 21),
    ({"fields": "title,text,metadata,colour"}, 21),
    ({"fields": "oven", "filter": {"price": {"lt": 5}}}, 5),  # other documents have it
]


@pytest.mark.parametrize(("options", "message"), SEARCHES)
def test_a_misspelt_field_is_named_over_http_and_in_python(
    engine: SearchEngine, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LocalEngine(engine).search("food", "bread", limit=30, **options)
    assert message in str(caught.value)
    with TestClient(patient_app(engine), base_url="http://127.0.0.1") as client:
        request = {"query": "bread", "limit": 30, **options}
        answer = client.post("/v1/collections/food/search", json=request)
    assert answer.status_code == 422
    assert message in answer.json()["detail"]


@pytest.mark.parametrize(("options", "hits"), ALLOWED)
def test_a_field_that_may_be_absent_is_no_error(
    engine: SearchEngine, options: dict[str, Any], hits: int
) -> None:
    assert len(engine.collection("food").search("bread", limit=30, **options).hits) == hits
    assert engine.collection("empty").search("bread", **options).hits == []


def test_a_shard_suggests_nothing_as_others_may_have_the_field(engine: SearchEngine) -> None:
    collection = engine.collection("food")
    filter = {"prise": {"gte": 3}}
    assert FilteredSnapshots(collection.store).restricted(collection.snapshot, filter).documents == 0
    with pytest.raises(InvalidRequest, match=r"did you mean price\?"):
        FilteredSnapshots(collection.store, suggest=True).restricted(collection.snapshot, filter)


def test_attention_and_facets_say_it_too(engine: SearchEngine) -> None:
    local = LocalEngine(engine)
    with pytest.raises(InvalidRequest, match=r"did you mean price\?"):
        engine.collection("food").attend(["bread"], filter={"prise": {"gte": 3}})
    with pytest.raises(InvalidRequest, match=r"fields: no document has the field 'prise' \(did you mean"):
        local.facets("food", ["prise"])
    with pytest.raises(InvalidRequest, match=r"filter: no document has the field 'prise'"):
        local.facets("food", ["price"], filter={"prise": {"gte": 3}})
    assert local.facets("food", ["price"], filter={"price": {"gt": 99}}).facets == {"price": []}
    assert local.facets("food", ["colour"]).facets == {"colour": []}


ATTENTION: list[tuple[str, dict[str, Any], str]] = [
    ("predict", {"field": "prise"}, "field: no document has the field 'prise' (did you mean price?)"),
    ("predict", {"field": "at.yeer", "over": "all"}, "'at.yeer' (did you mean at.year?)"),
    ("attend", {"field": "prise"}, "field: no document has the field 'prise' (did you mean price?)"),
    ("attend", {"score": "fuzzy", "match_field": "titel"}, "this field (did you mean title?)"),
    (
        "predict",
        {"field": "price", "score": "prefix", "match_field": "ovn"},
        "match_field='ovn': no document has this field (did you mean oven?)",
    ),
    ("attend", {"score": "fuzy"}, "exact_match, fuzzy, prefix"),
]


@pytest.mark.parametrize(("call", "options", "message"), ATTENTION)
def test_attention_names_a_misspelt_field(
    engine: SearchEngine, call: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        getattr(LocalEngine(engine), call)("food", ["bread"], **options)
    assert message in str(caught.value)
    with TestClient(patient_app(engine), base_url="http://127.0.0.1") as client:
        answer = client.post(f"/v1/collections/food/{call}", json={"queries": ["bread"], **options})
    assert answer.status_code == 422
    assert message in answer.json()["detail"]


def test_attention_to_an_absent_field_is_no_error(engine: SearchEngine) -> None:
    food, empty = engine.collection("food"), engine.collection("empty")
    assert food.predict(["bread"], field="colour").predictions[0].kind is None
    late = food.predict(["bread"], field="price", filter={"oven": {"eq": "stone"}})
    assert late.predictions[0].kind is None
    assert food.attend(["bread"], score="fuzzy", match_field="colour").ids == [[]]
    assert empty.predict(["bread"], field="prise").predictions[0].kind is None


def test_a_field_with_the_name_of_an_operator_is_looked_up(engine: SearchEngine) -> None:
    assert engine.collection("food").search("bread", filter={r"\or": {"eq": 2}}).hits == []
