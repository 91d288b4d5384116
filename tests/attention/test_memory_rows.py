"""Rows of a query memory: what they are made of, extended by, and shared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsearch.attention.memory_rows import (
    START_NULL_LEVEL,
    START_TEMPERATURE,
    TRUSTED,
    FixedMemory,
    by_query,
    in_eight_bits,
)
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.errors import DimensionMismatch, DsearchError, InvalidRequest

PARTS: dict[str, Any] = {
    "states": np.eye(3, 4, dtype=np.float32) * 5,
    "embeddings": np.eye(3, 4, k=1, dtype=np.float32) * 3,
    "rows": np.array([10, 11, 12]),
    "of_query": np.array([2, 0, 1, 0]),
    "of_document": np.array([2, 0, 1, 1]),
    "grades": np.array([3.0, 4.0, 1.0, -2.0]),
    "texts": ["one", "two", "three"],
}


def memory(**changes: Any) -> FixedMemory:
    return FixedMemory(**{**PARTS, **changes})


class Index:
    """Stands for an index of keys."""

    def __len__(self) -> int:
        return 3

    def nearest(self, queries: np.ndarray, count: int) -> np.ndarray:
        return np.tile(np.arange(3), (len(queries), 1))


def test_states_are_of_unit_length_and_embeddings_as_long_as_they_were() -> None:
    made = memory()
    np.testing.assert_allclose(made.states, np.eye(3, 4), atol=1e-6)
    np.testing.assert_allclose(made.embeddings, PARTS["embeddings"], atol=1e-5)
    assert (len(made), made.documents) == (3, 3)


def test_grades_lie_by_query_and_are_parts_of_its_best() -> None:
    made = memory()
    assert made.of_query.tolist() == [0, 0, 1, 2]
    assert made.of_document.tolist() == [0, 1, 1, 2]
    assert made.grades.tolist() == [1.0, -0.5, 1.0, 1.0]
    assert made.starts.tolist() == [0, 2, 3, 4]
    assert made.inserted.tolist() == [False] * 4
    assert made.senders.tolist() == [TRUSTED] * 3


def test_a_query_without_grades_has_an_empty_range() -> None:
    parts = by_query(np.array([3, 1]), np.array([0, 1]), np.array([2.0, 4.0]), np.array([True, False]), 5)
    assert parts["starts"].tolist() == [0, 0, 1, 1, 2, 2]
    assert parts["of_query"].tolist() == [1, 3]
    assert parts["of_document"].tolist() == [1, 0]
    assert parts["inserted"].tolist() == [False, True]
    assert parts["grades"].tolist() == [1.0, 1.0]


def test_the_setting_at_the_start_changes_nothing() -> None:
    assert memory().setting == pytest.approx((0.0, START_TEMPERATURE, START_NULL_LEVEL, 1.0))
    assert (START_TEMPERATURE, START_NULL_LEVEL) == (0.05, 0.5)
    given = memory(strength=2.0, temperature=0.1, null_level=0.3, lending=0.25)
    assert given.setting == pytest.approx((2.0, 0.1, 0.3, 0.25))


REFUSED: list[tuple[dict[str, Any], type[DsearchError], str]] = [
    ({"embeddings": np.eye(3, 5)}, DimensionMismatch, "query states of 4 numbers and documents of 5"),
    ({"grades": np.array([3.0, 4.0, -1.0, 1.0])}, InvalidRequest, "needs finite grades above 0"),
    ({"grades": np.array([3.0, 4.0, 1.0, 0.0])}, InvalidRequest, "needs finite grades above 0"),
    ({"grades": np.array([3.0, np.inf, 1.0, 1.0])}, InvalidRequest, "needs finite grades above 0"),
    ({"grades": np.array([3.0, 4.0, 1.0, np.nan])}, InvalidRequest, "needs finite grades above 0"),
    ({"temperature": 0.0}, InvalidRequest, "temperature=0.0; use a number above 0"),
    ({"temperature": np.inf}, InvalidRequest, "temperature=inf"),
    ({"lending": -0.1}, InvalidRequest, "lending=-0.1; use a number from 0 to 1"),
    ({"lending": 1.1}, InvalidRequest, "lending=1.1"),
    ({"of_query": np.array([3, 0, 1, 0])}, InvalidRequest, "of_query: give an index from 0 to 2"),
    ({"of_query": np.array([-1, 0, 1, 0])}, InvalidRequest, "of_query: give an index from 0 to 2"),
    ({"of_document": np.array([3, 0, 1, 1])}, InvalidRequest, "of_document: give an index from 0 to 2"),
    ({"of_document": np.array([2, 0, 1, -1])}, InvalidRequest, "of_document: give an index from 0 to 2"),
    ({"of_document": np.array([2, 0, 1])}, InvalidRequest, "for each grade"),
    ({"texts": ["one", "two"]}, InvalidRequest, "2 texts for 3 queries; give one each"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_parts_that_do_not_fit_are_refused(
    changes: dict[str, Any], error: type[DsearchError], message: str
) -> None:
    with pytest.raises(error, match=message):
        memory(**changes)


def test_shares_of_lending_at_both_ends_and_no_texts_are_taken() -> None:
    assert memory(lending=0.0).lending == 0.0
    assert memory(lending=1.0, texts=None).texts is None


def test_a_shared_memory_has_the_same_rows_setting_texts_and_indexes() -> None:
    made = memory(strength=2.0, lending=0.5, senders=np.array([TRUSTED, 4, 4]))
    made.index, made.lenders = Index(), Index()
    shared = QueryMemory.sharing(made)
    assert shared.index is made.index
    assert shared.lenders is made.lenders
    assert shared.texts == made.texts
    assert shared.setting == pytest.approx(made.setting)
    for name, part in made.parts().items():
        np.testing.assert_array_equal(shared.parts()[name], part)
    bare = FixedMemory.of_parts(made.parts(), None, made.setting)
    assert (bare.index, bare.lenders, bare.texts) == (None, None, None)


def more(**changes: Any) -> FixedMemory:
    """Two queries: one of this memory in other letters, and a new one; a document of it and a new one."""
    parts = {
        "states": np.eye(2, 4, k=2, dtype=np.float32),
        "embeddings": np.eye(2, 4, k=2, dtype=np.float32),
        "rows": np.array([11, 20]),
        "of_query": np.array([0, 0, 1]),
        "of_document": np.array([0, 1, 1]),
        "grades": np.array([1.0, 2.0, 5.0]),
        "texts": ["  ONE ", "new"],
        "strength": 9.0,
        "temperature": 0.9,
    }
    return FixedMemory(**{**parts, **changes})


def grades_of(made: FixedMemory) -> dict[tuple[int, int], tuple[float, bool]]:
    rows = made.rows[made.of_document].tolist()
    pairs = zip(made.of_query.tolist(), rows, strict=True)
    values = zip(made.grades.tolist(), made.inserted.tolist(), strict=True)
    return dict(zip(pairs, values, strict=True))


@pytest.mark.parametrize("replace", [True, False])
def test_a_query_of_the_same_text_is_one(replace: bool) -> None:
    own = memory(strength=2.0)
    own.index, own.lenders = Index(), Index()
    both = own.extended(more(), replace=replace)
    assert both.texts == ["one", "two", "three", "new"]
    assert both.rows.tolist() == [10, 11, 12, 20]
    assert both.setting == pytest.approx(own.setting)
    assert both.index is own.index
    assert both.lenders is own.lenders
    grade = (0.5, True) if replace else (-0.5, False)
    assert grades_of(both) == {
        (0, 10): (1.0, False),
        (0, 11): grade,
        (0, 20): (1.0, True),
        (1, 11): (1.0, False),
        (2, 12): (1.0, False),
        (3, 20): (1.0, True),
    }
    np.testing.assert_allclose(both.states[:3], own.states)  # the one that was there stays
    np.testing.assert_allclose(both.states[3], np.eye(4)[3], atol=1e-6)
    np.testing.assert_allclose(both.embeddings[3], np.eye(4)[3], atol=1e-6)
    assert both.starts.tolist() == [0, 3, 4, 5, 6]


def test_replacing_is_the_default() -> None:
    assert grades_of(memory().extended(more()))[0, 11] == (0.5, True)


def test_texts_are_kept_where_both_have_them_and_without_them_no_query_is_the_same() -> None:
    for both in (memory(texts=None).extended(more()), memory().extended(more(texts=None))):
        assert both.texts is None
        assert len(both) == 5


def test_queries_of_senders_are_the_same_by_sender_and_key() -> None:
    texts = ["", "", ""]
    own = memory(senders=np.array([3, 3, TRUSTED]), texts=texts)
    same_key = {"states": np.eye(2, 4, dtype=np.float32), "texts": ["", ""]}
    assert len(own.extended(more(**same_key, senders=np.array([3, 3])))) == 3
    assert len(own.extended(more(**same_key, senders=np.array([3, 4])))) == 4
    apart = own.extended(more(**same_key, senders=np.array([5, 4])))
    assert apart.senders.tolist() == [3, 3, TRUSTED, 5, 4]


def test_what_was_inserted_is_a_memory_of_its_own() -> None:
    both = memory(strength=2.0, lending=0.5).extended(more(senders=np.array([TRUSTED, 7])))
    part = both.of_inserted()
    assert part.texts == ["one", "new"]
    assert part.rows.tolist() == [11, 20]
    assert part.senders.tolist() == [TRUSTED, 7]
    assert part.setting == pytest.approx((0.0, START_TEMPERATURE, START_NULL_LEVEL, 1.0))
    assert grades_of(part) == {(0, 11): (0.5, True), (0, 20): (1.0, True), (1, 20): (1.0, True)}
    np.testing.assert_allclose(part.states, np.eye(4)[[0, 3]], atol=1e-6)
    np.testing.assert_allclose(part.embeddings[1], np.eye(4)[3], atol=1e-6)
    last = both.of_inserted().extended(more(texts=["a", "b"])).of_inserted()
    assert last.texts == ["one", "new", "a", "b"]
    later = memory().extended(more(texts=["two", "new"])).of_inserted()
    assert later.texts == ["two", "new"]
    with pytest.raises(InvalidRequest, match="no query was inserted into this memory"):
        memory().of_inserted()


def test_eight_bits_have_a_unit_a_row() -> None:
    codes, scales = in_eight_bits(np.array([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0], [-254.0, 127.0, 1.0]]))
    assert codes.tolist() == [[127, -50, 0], [0, 0, 0], [-127, 64, 0]]
    assert scales.tolist() == pytest.approx([0.01, 0.0, 2.0])
