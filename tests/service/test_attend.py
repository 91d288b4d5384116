"""Requests of attention become queries of the engine, with every field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.errors import DimensionMismatch
from dsearch.operations import Attend, Differentiate
from dsearch.service.searching import _context, question_of
from dsearch.types import Stamp

STAMP = {"generation": 3, "model": "v1", "sequence": 7}


def test_each_field_reaches_the_query() -> None:
    given: dict[str, Any] = {
        "model": "v2",
        "stamp": STAMP,
        "filter": {"year": {"gte": 7}},
        "dtype": "float64",
        "draft": "a" * 24,
        "field": "year",
        "with_head": {"x": [1.0]},
        "bias": [0.5],
        "table": [[0.5, 1.0]],
        "candidates": 7,
    }
    query = question_of(Attend("papers", ["cat"], vectors=[[1.0, 0.0]], options=given), 2, "ann")
    assert query.texts == ["cat"]
    assert query.states is not None
    assert np.asarray(query.states).tolist() == [[1.0, 0.0]]
    assert (query.model, query.stamp) == ("v2", Stamp(3, "v1", 7))
    assert query.filter is not None
    assert (query.dtype, query.draft, query.owner) == ("float64", "a" * 24, "ann")
    assert (query.field, query.with_head, query.bias) == ("year", {"x": [1.0]}, [0.5])
    assert query.table == [[0.5, 1.0]]
    assert (
        query.options["candidates"] == 7 if isinstance(query.options, dict) else query.options.candidates == 7
    )


def test_what_is_left_out_has_its_default() -> None:
    query = question_of(Attend("papers", options={"ids": ["a"]}), 2)
    assert (query.model, query.stamp, query.filter) == (None, None, None)
    assert (query.ids, query.texts, query.states, query.owner) == (["a"], None, None, "")
    assert query.dtype == "float32"


def test_states_may_be_filled_up_with_zeros() -> None:
    """A batch of queries of several lengths has rows of nothing."""
    query = question_of(Attend("papers", vectors=[[1.0, 0.0], [0.0, 0.0]]), 2)
    assert np.asarray(query.states).tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("pooled", "width"),
    [({}, 4), ({"field": "year"}, 1), ({"table": [[0.5] * 3] * 2}, 3)],
    ids=["values", "field", "table"],
)
def test_a_gradient_of_a_context_is_as_wide_as_what_was_pooled(pooled: dict[str, Any], width: int) -> None:
    collection: Any = SimpleNamespace(store=SimpleNamespace(dimension=4))
    call = Differentiate("papers", context=[[0.5] * width], options=pooled)
    gradient = _context(collection, call)
    assert gradient is not None
    assert (gradient.shape, gradient.dtype) == ((1, width), np.float64)
    with pytest.raises(DimensionMismatch, match=r"grad_context\.1 has 1"):
        _context(collection, Differentiate("papers", context=[[0.5] * 4, [0.5]]))
