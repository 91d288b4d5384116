"""Fields of rows that are kept, and what a match of a field needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.guarded import guarded

from dsearch.engine import Collection
from dsearch.engine.state import caches
from dsearch.engine.state.caches import FieldCache
from dsearch.errors import InvalidRequest
from dsearch.lru_cache import LruCache
from dsearch.types import Document

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


pytestmark = pytest.mark.usefixtures("unchecked")  # the store is a stand-in


class Rows:
    """A store in which the document of row n has the year n, and a place; it notes which rows are read."""

    def __init__(self) -> None:
        self.read: list[list[int]] = []

    def documents(self, rows: np.ndarray) -> list[Document]:
        self.read.append(rows.tolist())
        return [
            Document(
                f"d{n}",
                f"text {n}",
                f"title {n}",
                {"year": int(n), "at": {"x": int(n)}, "all": [1, 2]},
                float(n),
            )
            for n in rows
        ]

    def field_values(self, rows: np.ndarray, field: str) -> list[Any]:
        return [document.metadata.get(field) for document in self.documents(rows)]

    def values(self, rows: np.ndarray) -> list[Any]:
        return [document.value for document in self.documents(rows)]


def kept() -> tuple[Rows, FieldCache]:
    rows = Rows()
    return rows, FieldCache(rows)  # type: ignore[arg-type]


def of(fields_: FieldCache, field: str, *rows: int, own: bool = False) -> list[Any]:
    return fields_.of(np.array(rows, np.int64), field, own=own)


def test_values_come_in_the_order_of_rows_and_each_row_is_read_once() -> None:
    rows, values = kept()
    assert of(values, "year", 5, 3, 4) == [5, 3, 4]
    assert of(values, "year", 3, 6, 5) == [3, 6, 5]
    assert of(values, "year", 4) == [4]
    assert rows.read == [[5, 3, 4], [6]]


def test_the_own_fields_of_documents_and_the_value_have_names() -> None:
    _, values = kept()
    assert of(values, "title", 1, 2, own=True) == ["title 1", "title 2"]
    assert of(values, "text", 1, own=True) == ["text 1"]
    assert of(values, "id", 1, own=True) == ["d1"]
    assert of(values, "value", 3) == [3.0]
    assert of(values, "at.x", 7, own=True) == [7]
    assert of(values, "all", 7, own=True) == [[1, 2]]
    assert of(values, "at", 7, own=True) == [None]  # an object is no value
    assert of(values, "at.x.y", 7, own=True) == [None]
    assert of(values, "title", 1) == [None]  # of the metadata
    assert of(values, "year", 8) == of(values, "year", 8, own=True) == [8]
    assert of(values, "title", 2, own=True) == ["title 2"]  # what was kept for one use serves no other
    assert of(values, "title", 2) == [None]


def test_rows_that_were_replaced_are_thrown_away_when_they_are_most() -> None:
    rows, values = kept()
    of(values, "year", *range(10))
    of(values, "year", 10, 11, 12, 13, 14, 15)  # sixteen, more than twice of six
    rows.read.clear()
    of(values, "year", 15, 10)
    assert rows.read == []
    of(values, "year", 1)
    assert rows.read == [[1]]


def test_the_least_recent_field_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MAX_FIELDS", 2)
    rows, values = kept()
    for field in ("a", "b", "c"):
        of(values, field, 1)
    rows.read.clear()
    of(values, "b", 1)
    of(values, "c", 1)
    assert rows.read == []
    of(values, "a", 1)
    assert rows.read == [[1]]
    values.clear()
    of(values, "a", 1)
    assert rows.read == [[1], [1]]


def test_a_large_field_is_read_each_time_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MAX_FIELD_BYTES", 10)
    monkeypatch.setattr(caches, "_READ_AT_ONCE", 2)
    rows, values = kept()
    for _ in range(2):
        assert of(values, "year", 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
        assert rows.read == [[1, 2], [3, 4], [5]]
        rows.read.clear()


def matched(collection: Collection, **options: Any) -> dict[str, Any]:
    return collection.layer_parts(collection.snapshot, options)[1]  # type: ignore[arg-type]


def test_a_match_of_a_field_is_a_score_of_its_own(collection: Collection) -> None:
    plain = matched(collection, score="exact_match", match_field="title", mode="hybrid", candidates=5)
    assert (plain["score"].name, plain["score"].field) == ("exact_match", "title")
    assert (plain["mode"], plain["candidates"]) == ("dense", 5)
    assert "match_field" not in plain
    assert "ignore_case" not in plain


def test_new_documents_are_matched_too(collection: Collection) -> None:
    collection.upsert([Document("new", "a text", title="Of its own")])
    options: Any = {"score": "exact_match", "match_field": "title", "pooling": "hard"}
    assert collection.attend(["Of its own"], **options).ids[0][0] == "new"
    assert not any(collection.attend(["of its own"], **options).output.weights[0])
    assert collection.attend(["of its own"], **options, ignore_case=True).ids[0][0] == "new"


def test_options_without_a_field_stay(collection: Collection) -> None:
    options = {"score": "gaussian", "mode": "hybrid", "ignore_case": False}
    assert matched(collection, **options) == {"score": "gaussian", "mode": "hybrid"}
    assert matched(collection, score="exact_match") == {"score": "exact_match"}  # of vectors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "gausian"}, r"score='gausian'; use one of .*did you mean gaussian"),
        ({"match_field": "title"}, r"match_field='title' with score='dot'; only .* compare a field"),
        ({"match_field": "title", "score": "gaussian"}, "only .* compare a field"),
        ({"score": "fuzzy"}, "score='fuzzy' without a field; give match_field"),
        ({"ignore_case": True}, "ignore_case without match_field"),
        (
            {"score": "fuzzy", "match_field": "nubmer"},
            "match_field='nubmer': no document .*did you mean number",
        ),
    ],
)
def test_matches_that_cannot_be_are_refused(
    collection: Collection, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        matched(collection, **options)
