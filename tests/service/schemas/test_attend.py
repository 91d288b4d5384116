"""Requests of attention become queries of the engine, with every field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.errors import DimensionMismatch
from dsearch.service.schemas.attend import AttendRequest, VjpRequest, matrix
from dsearch.service.searching import _context

STAMP = {"generation": 3, "model": "v1", "sequence": 7}


def test_what_is_left_out_has_its_default() -> None:
    query = AttendRequest(ids=["a"]).to_query(2)
    assert (query.model, query.stamp, query.filter) == (None, None, None)
    assert (query.ids, query.texts, query.states, query.owner) == (["a"], None, None, "")
    assert query.dtype == "float32"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither queries nor vectors; give one of the two"),
        ({"ids": ["a"], "queries": ["cat"]}, "ids beside queries or vectors; give them alone"),
        ({"ids": ["a"], "vectors": [[1.0]]}, "ids beside queries or vectors; give them alone"),
        ({"queries": ["a", "b"], "vectors": [[1.0]]}, "2 queries and 1 vector; give as many"),
        ({"queries": ["a"], "vectors": [[1.0], [0.5]]}, "1 query and 2 vectors; give as many"),
    ],
)
def test_queries_come_in_one_way(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttendRequest(**given)


def test_rows_have_the_dimension_of_the_collection() -> None:
    rows = matrix("grad_context", [[1.0, 2.0]], 2)
    assert (rows.tolist(), rows.dtype) == ([[1.0, 2.0]], np.float64)
    with pytest.raises(DimensionMismatch, match=r"^grad_context\.1 has 1 number; this collection's embedd"):
        matrix("grad_context", [[1.0, 2.0], [1.0]], 2)


def test_states_may_be_filled_up_with_zeros() -> None:
    """A batch of queries of several lengths has rows of nothing."""
    query = AttendRequest(vectors=[[1.0, 0.0], [0.0, 0.0]]).to_query(2)
    assert np.asarray(query.states).tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("pooled", "width"),
    [({}, 4), ({"field": "year"}, 1), ({"table": [[0.5] * 3] * 2}, 3)],
    ids=["values", "field", "table"],
)
def test_a_gradient_of_a_context_is_as_wide_as_what_was_pooled(pooled: dict[str, Any], width: int) -> None:
    collection: Any = SimpleNamespace(store=SimpleNamespace(dimension=4))
    given = {"ids": ["a"], "stamp": STAMP, "grad_context": [[0.5] * width], **pooled}
    gradient = _context(collection, VjpRequest.model_validate(given))
    assert gradient is not None
    assert gradient.shape == (1, width)
