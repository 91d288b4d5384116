"""Predicting a field by attention: numbers, labels, vectors, their evidence, and kernel regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention import predict as mean_and_spread
from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.types import Document

QUERY = "cheese and bread"


@pytest.fixture
def stock(engine: SearchEngine, documents: list[Document]) -> Collection:
    """Sixteen documents, of which every third has no fields."""
    made = engine.create("stock")
    made.ingest(
        Document(
            id=d.id,
            title=d.title,
            text=d.text,
            value=[float(i), 1.0],
            metadata={"price": i, "kind": "ab"[i % 2], "fresh": i < 8, "tags": ["x"]} if i % 3 else {},
        )
        for i, d in enumerate(documents)
    )
    return made


def test_it_is_the_attention_of_the_documents_with_the_field(stock: Collection) -> None:
    found = stock.attend([QUERY])
    weights = dict(zip(found.ids[0], found.output.weights[0].tolist(), strict=True))
    have = {id: weight for id, weight in weights.items() if int(id[1:]) % 3}
    total = sum(have.values())
    shares = torch.tensor([[weight / total for weight in have.values()]], dtype=torch.float64)
    prices = torch.tensor([[float(id[1:])] for id in have], dtype=torch.float64)
    expected = mean_and_spread(shares, prices)
    predicted = stock.predict([QUERY], field="price", evidence=3)
    answer = predicted.predictions[0]
    assert predicted.stamp == found.stamp
    assert answer.mean == pytest.approx(float(expected.mean), abs=1e-4)
    assert answer.spread == pytest.approx(float(expected.spread), abs=1e-4)
    assert (answer.candidates, answer.without_field) == (10, 6)
    best = sorted(have, key=lambda id: -have[id])[:3]
    assert [one.id for one in answer.evidence] == best
    assert [one.weight for one in answer.evidence] == pytest.approx(
        [have[id] / total for id in best], abs=1e-6
    )
    assert [one.value for one in answer.evidence] == [int(id[1:]) for id in best]


def test_vectors_are_pooled_entry_by_entry(stock: Collection) -> None:
    answer = stock.predict([QUERY], field="value").predictions[0]
    assert answer.kind == "vector"
    first = stock.predict([QUERY], field="value", evidence=100).predictions[0].evidence
    expected = sum(one.weight * one.value[0] for one in first)
    assert answer.mean == pytest.approx([expected, 1.0], abs=1e-4)
    assert isinstance(answer.spread, list)
    assert answer.spread[1] == pytest.approx(0.0, abs=1e-12)  # all equal, but for rounding


def test_hard_pooling_takes_the_best_document_that_has_the_field(stock: Collection) -> None:
    ranking = [hit.id for hit in stock.search("apple", limit=16).hits]
    best = next(id for id in ranking if int(id[1:]) % 3)
    assert best != ranking[0]
    answer = stock.predict(["apple"], field="price", pooling="hard").predictions[0]
    assert (answer.mean, answer.spread) == (int(best[1:]), 0.0)


def test_a_head_that_reaches_nothing_leaves_its_share_to_the_others(stock: Collection) -> None:
    head = Head(32, heads=2, rank=32)
    with torch.no_grad():  # the second head asks for the opposite, and no document is there
        head.query_out[1] = torch.eye(32)
        head.query_in[1] = -2 * torch.eye(32)
    version = stock.add_model(head, {})
    options = {"score": "boxcar", "width": 1.2, "mode": "dense"}
    both = stock.predict([QUERY], field="kind", model=version, **options).predictions[0]
    alone = stock.predict([QUERY], field="kind", **options).predictions[0]
    assert both.candidates == alone.candidates > 0
    assert both.labels == pytest.approx(alone.labels)


def test_where_no_document_has_the_field_nothing_is_predicted(
    stock: Collection, engine: SearchEngine
) -> None:
    for field in ("cost", "tags"):
        answer = stock.predict([QUERY], field=field).predictions[0]
        assert (answer.kind, answer.mean, answer.spread, answer.labels) == (None, None, None, None)
        assert (answer.candidates, answer.without_field, answer.evidence) == (0, 16, [])
    empty = engine.create("empty").predict([QUERY], field="price").predictions[0]
    assert (empty.kind, empty.candidates, empty.without_field) == (None, 0, 0)
    assert stock.predict([], field="price").predictions == []


def test_one_query_does_not_depend_on_the_others(stock: Collection) -> None:
    together = stock.predict([QUERY, "lemon tea"], field="price").predictions
    for query, answer in zip([QUERY, "lemon tea"], together, strict=True):
        alone = stock.predict([query], field="price").predictions[0]
        assert answer.mean == pytest.approx(alone.mean, abs=1e-4)
        assert [one.id for one in answer.evidence] == [one.id for one in alone.evidence]


def test_predicting_at_a_stored_document_by_its_vector(stock: Collection, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries([QUERY]))
    by_vector = stock.predict(states, field="price").predictions[0]
    assert by_vector == stock.predict([QUERY], field="price", mode="dense").predictions[0]


def test_fields_are_read_in_the_order_of_positions(stock: Collection) -> None:
    stock.upsert([Document(id="new", text="a new one", metadata={"price": 99})])
    stock.delete(["d1"])
    snapshot = stock.snapshot
    prices = stock.field_values(snapshot, "price")
    assert len(prices) == snapshot.positions == 17
    ids = [id for (id,) in stock.ids_at(snapshot, np.arange(17)[:, None])]
    assert prices == [99 if id == "new" else int(id[1:]) if int(id[1:]) % 3 else None for id in ids]


def test_errors(stock: Collection) -> None:
    with pytest.raises(InvalidRequest, match="empty key"):
        stock.predict([QUERY], field="")
    with pytest.raises(InvalidRequest, match="evidence=-1; use 0 or more"):
        stock.predict([QUERY], field="price", evidence=-1)
    stock.upsert([Document(id="odd", text=QUERY, metadata={"price": "seven"}, value=[1.0])])
    with pytest.raises(InvalidRequest, match=r"field 'price' is a \w+ in document '\w+' and a \w+ in '\w+'"):
        stock.predict([QUERY], field="price")
    with pytest.raises(InvalidRequest, match="'price' is a number in document 'd1' and a label in 'odd'"):
        stock.predict([QUERY], field="price", over="all")
    with pytest.raises(
        InvalidRequest, match="field 'value' is a vector of 1 number in document 'odd' and of 2"
    ):
        stock.predict([QUERY], field="value")


def test_padding_is_not_a_document_without_the_field(stock: Collection) -> None:
    """Queries of one call with unequally many candidates."""
    stock.upsert([Document(id="one", text="zebra", metadata={"price": 7})])
    few, more = stock.predict(["zebra", QUERY], field="price", mode="keyword").predictions
    assert (few.candidates, few.without_field) == (1, 0)
    assert more.candidates + more.without_field > 1
    alone = stock.predict(["zebra"], field="price", mode="keyword").predictions[0]
    assert (alone.candidates, alone.without_field, alone.mean) == (1, 0, 7.0)


def test_the_evidence_asked_for_is_that_of_the_largest_weights(stock: Collection) -> None:
    every = stock.predict([QUERY], field="price", evidence=99).predictions[0].evidence
    assert [one.weight for one in every] == sorted((one.weight for one in every), reverse=True)
    assert sum(one.weight for one in every) == pytest.approx(1)
    assert stock.predict([QUERY], field="price", evidence=2).predictions[0].evidence == every[:2]
    assert stock.predict([QUERY], field="price", evidence=0).predictions[0].evidence == []
