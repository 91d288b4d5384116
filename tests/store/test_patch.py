"""A part of the metadata changed, and fields read for many rows."""

from __future__ import annotations

import numpy as np
import pytest
from support.store.matching import matching_rows

from dsearch.errors import DocumentNotFound, InvalidDocument, InvalidRequest, NotFound
from dsearch.store import DocumentCounts
from dsearch.store.store import merge_patch
from dsearch.types import Document

# The examples of RFC 7396, appendix A, whose patch and outcome are such as metadata can be.
RFC = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("before", "changes", "after"), RFC)
def test_the_examples_of_the_rfc(store, before, changes, after):
    store.upsert([Document("a", "x", metadata=before)])
    store.update_metadata("a", changes)
    assert store.get("a").metadata == after


def test_merging_changes_neither_side():
    before, changes = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge_patch(before, changes) == {"a": {"b": 1, "c": 2}}
    assert (before, changes) == ({"a": {"b": 1}}, {"a": {"c": 2}})
    assert merge_patch(["a"], {"a": 1}) == {"a": 1}
    assert merge_patch({"a": 1}, ["c"]) == ["c"]


def test_the_embedding_the_text_and_the_value_stay(store, embed):
    store.upsert([Document("a", "x", "title", {"n": 1}, [1.0, 2.0])], embed("title x"))
    receipt = store.update_metadata("a", {"n": 2})
    assert (receipt.sequence, receipt.updated, receipt.rows) == (2, 1, (2,))
    assert store.get("a") == Document("a", "x", "title", {"n": 2}, [1.0, 2.0])
    assert store.count() == DocumentCounts(1, 0, 1)
    np.testing.assert_array_equal(store.embeddings([2]), embed("title x"))
    assert matching_rows(store, {"n": {"eq": 2}}).tolist() == [2]
    assert store.update_metadata("a", {"n": 2, "absent": None}).sequence == 2  # nothing changed
    assert store.verify().ok


def test_what_cannot_be_changed_says_so_and_nothing_is(store):
    store.upsert([Document("a", "x", metadata={"n": 1})])
    with pytest.raises(DocumentNotFound, match="no document 'b' to change; upsert it whole first"):
        store.update_metadata("b", {"n": 2})
    with pytest.raises(InvalidDocument, match=r"has nan at metadata\.m"):
        store.update_metadata("a", {"n": 2, "m": float("nan")})
    deep: dict = {}
    for _ in range(5000):
        deep = {"x": deep}
    with pytest.raises(InvalidDocument, match="nests deeper than 32 levels"):
        store.update_metadata("a", deep)
    with pytest.raises(InvalidRequest, match=r'changes of type list; give an object .* \{"key": null\}'):
        store.update_metadata("a", [1])
    assert store.get("a").metadata == {"n": 1}
    assert store.sequence == 1


def test_fields_and_values_of_rows(store):
    store.upsert(
        [
            Document("a", "x", metadata={"n": 1, "deep": {"er": "s"}}, value=2),
            Document("b", "x", metadata={"n": "1", "deep": [1]}, value=[1.0, 2.0]),
            Document("c", "x", metadata={"n": True, "deep": {}}),
            Document("d", "x", metadata={"n": [1]}),
        ]
    )
    store.delete(["a"])  # an older snapshot still reads it
    assert store.field_values([4, 1, 2, 3, 1], "n") == [None, 1, "1", True, 1]
    assert store.field_values([1, 2, 3, 4], "deep.er") == ["s", None, None, None]
    assert store.field_values([1, 3], "deep") == [None, None]
    assert store.values([2, 1, 3]) == [[1.0, 2.0], 2.0, None]
    assert store.values([]) == store.field_values([], "n") == []
    with pytest.raises(NotFound, match="row 9 is not in this collection"):
        store.field_values([1, 9], "n")
    with pytest.raises(InvalidRequest, match=r"field: the field 'a\.\.b' with an empty key"):
        store.field_values([1], "a..b")
