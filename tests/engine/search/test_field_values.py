"""Values of candidates: which kinds there are, their rows, and what padding counts for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine import Collection
from dsearch.engine.search.attend import (
    field_rows,
    kind_of_all,
    pooled_rows,
    texts_at,
    with_field,
    without_padding,
)
from dsearch.errors import InvalidRequest
from dsearch.types import Document

pytestmark = pytest.mark.usefixtures("unchecked")


class Output(SimpleNamespace):
    """Positions and weights of two queries, the second with a place less."""

    def _replace(self, **changed: Any) -> Output:
        return Output(**{**vars(self), **changed})


def output(dtype: torch.dtype = torch.float32) -> Any:
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=dtype)
    return Output(positions=np.array([[4, 2], [1, -1]]), weights=weights, context=None, output="of the head")


def test_values_at_padding_do_not_count_whatever_they_are() -> None:
    for anything in (100.0, float("nan"), float("inf")):
        rows = torch.tensor([[[2.0], [6.0]], [[3.0], [anything]]])
        pooled = pooled_rows(output(), rows)
        assert pooled.context.tolist() == [[5.0], [3.0]]
        assert pooled.output is None
    assert pooled_rows(output(torch.float64), rows).context.dtype == torch.float64


def test_gradients_reach_the_values_that_count() -> None:
    rows = torch.ones(2, 2, 3, requires_grad=True)
    pooled_rows(output(), rows).context.sum().backward()
    assert rows.grad is not None
    assert rows.grad[..., 0].tolist() == [[0.25, 0.75], [1.0, 0.0]]


@pytest.mark.parametrize("shape", [(2, 2), (2, 1, 1), (1, 2, 1), (2, 2, 1, 1)])
def test_values_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"use \[2, 2, value_dim\], a row for each candidate"):
        pooled_rows(output(), torch.zeros(shape))


def kind(*values: Any) -> str | None:
    return kind_of_all(((lambda at: f"d{at}", at, value) for at, value in enumerate(values)), "x")


def test_kinds() -> None:
    assert kind() is None
    assert kind(1, 2.5, -3) == "number"
    assert kind("a", True, "b") == "label"
    assert kind([1.0, 2.0], [3, 4]) == "vector"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 2, "a", [1]), "a number in document 'd0' and a label in 'd2'"),
        ((True, 1), "a label in document 'd0' and a number in 'd1'"),
        (([1.0], [1.0, 2.0]), "a vector of 1 number in document 'd0' and of 2 in 'd1'"),
        (([1.0], 1.0), "a vector in document 'd0' and a number in 'd1'"),
    ],
)
def test_the_first_two_documents_of_different_kinds_are_named(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        kind(*values)
    assert str(refused.value) == f"field 'x' is {message}; make it of one kind to pool it"


@pytest.fixture
def priced(collection: Collection) -> Collection:
    one = {"price": 3, "sold": True, "kind": "x"}
    two = {"price": 5.5, "sold": False, "kind": "y"}
    collection.upsert(
        [
            Document("a", "one", title="first", metadata=one, value=[1.0, 2.0]),
            Document("b", "two", metadata=two, value=[3.0, 4.0]),
        ]
    )
    return collection


def places(collection: Collection, *ids: str) -> np.ndarray:
    state = collection.snapshot
    every = [id for (id,) in collection.ids_at(state, np.arange(state.positions)[:, None])]
    return np.array([[every.index(id) if id else -1 for id in ids]])


def test_rows_stand_where_the_candidates_do_and_padding_is_zero(priced: Collection) -> None:
    at = places(priced, "b", "", "a", "b")
    state = priced.snapshot
    assert field_rows(priced, state, "price", at).tolist() == [[[5.5], [0.0], [3.0], [5.5]]]
    assert field_rows(priced, state, "sold", at).tolist() == [[[0.0], [0.0], [1.0], [0.0]]]
    assert field_rows(priced, state, "value", at).tolist() == [[[3, 4], [0, 0], [1, 2], [3, 4]]]
    assert field_rows(priced, state, "price", np.full((1, 2), -1)).tolist() == [[[0.0], [0.0]]]
    priced.upsert([Document("much", "x", metadata={"price": 2**24 + 1})])  # which float32 has not
    much = field_rows(priced, priced.snapshot, "price", places(priced, "a", "much"))
    assert much.tolist() == [[[3.0], [2.0**24 + 1]]]


def test_texts_and_fields_that_are_missing_are_refused(priced: Collection) -> None:
    with pytest.raises(InvalidRequest, match="values='kind': text cannot be pooled; use predict"):
        field_rows(priced, priced.snapshot, "kind", places(priced, "a"))
    with pytest.raises(InvalidRequest, match=r"field 'price': document 'd3' has none; .*exists"):
        field_rows(priced, priced.snapshot, "price", places(priced, "a", "d3"))
    with pytest.raises(InvalidRequest, match="did you mean price"):
        field_rows(priced, priced.snapshot, "pirce", places(priced, "a", "d3"))


def test_texts_of_candidates_leave_padding_out(priced: Collection) -> None:
    at = np.concatenate([places(priced, "b", "a", ""), places(priced, "", "", "b")])
    assert texts_at(priced, priced.snapshot, at) == [["two", "first one"], ["two"]]
    assert without_padding([["a", "", "b"], ["", ""]]) == [["a", "b"], []]


def test_values_of_documents_that_are_gone_are_not_read(priced: Collection) -> None:
    """Over all documents each position has a row, and one of a deleted document counts for nothing."""
    priced.delete([f"d{number}" for number in range(16)])
    layer, _ = priced.layer_and_stamp(over="all")
    given: list[Any] = []
    with_field(priced, layer, "price", lambda values: given.append(values))  # type: ignore[arg-type, func-returns-value]
    (values,) = given
    assert len(values) == layer.snapshot.positions
    assert sorted(values.flatten().tolist())[-2:] == [3.0, 5.5]
    assert values.sum().item() == 8.5
