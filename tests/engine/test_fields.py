"""Filters on the fields that a generation keeps find what SQLite finds, and need not ask it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.bare_generation import add_bare_generation

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.filters import matching
from dsearch.errors import CorruptData
from dsearch.index import metadata as fields
from dsearch.index.metadata import FieldsBuilder, MetadataFields
from dsearch.store import Store, parse_filter
from dsearch.types import Document

ORDERED = st.one_of(
    st.sampled_from(["", "a", "b", "é", "𝔸", "1", "true", 'quo"te', "new\nline", "\ud7ff", "\ue000"]),
    st.sampled_from([0, 1, -1, 2, 2**53, 2**53 + 1, -(2**63), 2**63 - 1]),
    st.sampled_from([0.0, -0.0, 1.0, 1.5, -1e300, 9007199254740992.0]),
)
SCALARS = ORDERED | st.none() | st.booleans()
KEYS = st.sampled_from(["k", "m", "a.b", "é", "or"])
METADATA = st.dictionaries(
    KEYS,
    st.one_of(
        SCALARS,
        st.lists(SCALARS | st.lists(SCALARS, max_size=1), max_size=3),
        st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=2), max_size=2),
        st.just("nul \0 within"),
    ),
    max_size=3,
)
FIELDS = st.sampled_from(["k", "m", "k.m", "a\\.b", "k.a\\.b", "é", "\\or", "none", "k.k.k"])
CONDITIONS = st.one_of(
    st.fixed_dictionaries({"eq": SCALARS}),
    st.fixed_dictionaries({"ne": SCALARS}),
    st.fixed_dictionaries({"in": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"nin": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"exists": st.booleans()}),
    *(st.fixed_dictionaries({order: ORDERED}) for order in ("gt", "gte", "lt", "lte")),
)
FILTERS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.builds(lambda field, condition: {field: condition}, FIELDS, CONDITIONS),
    lambda inner: st.one_of(
        st.builds(lambda parts: {"and": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"or": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=4,
)


@given(st.lists(METADATA, min_size=1, max_size=6), st.lists(FILTERS, min_size=1, max_size=12))
def test_both_ways_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, metadata: list[dict[str, Any]], filters: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("fields")
    with Store.create(folder / "c", name="c", encoder={}, dimension=1) as store:
        store.upsert([Document(f"{i}", "x", metadata=one) for i, one in enumerate(metadata)])
        rows = np.arange(1, len(metadata) + 1)
        builder = FieldsBuilder()
        for document in store.documents(rows):
            builder.add(document.metadata)
        builder.save(folder / "kept")
        kept = MetadataFields(folder / "kept", len(rows))
        for filter in filters:
            found = matching(parse_filter(filter), kept)
            nul = "\\u0000" in json.dumps(metadata)
            assert found is not None or nul, filter
            if found is not None:
                assert rows[found].tolist() == store.rows_matching_ever(filter).tolist(), filter


def test_a_search_asks_the_store_for_fresh_rows_alone(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    original = Store.rows_matching_ever

    def noted(store: Store, filter: object, after: int = 0) -> np.ndarray:
        asked.append(after)
        return original(store, filter, after)

    monkeypatch.setattr(Store, "rows_matching_ever", noted)
    few = {"number": {"lt": 4}}
    assert {hit.id for hit in collection.search("a", filter=few).hits} == {"d0", "d1", "d2", "d3"}
    assert asked == []
    collection.upsert(
        [Document("n", "new", metadata={"number": 1}), Document("o", "x", metadata={"number": 9})]
    )
    collection.update_metadata("d3", {"number": 99})
    collection.delete(["d0"])
    assert {hit.id for hit in collection.search("a", filter=few).hits} == {"d1", "d2", "n"}
    assert asked == [16]
    collection.refresh()
    assert {hit.id for hit in collection.search("a", filter=few).hits} == {"d1", "d2", "n"}
    assert asked == [16]


def test_rows_that_were_pending_at_the_build_are_found(engine: SearchEngine) -> None:
    """A fresh row may be older than the youngest of the generation."""
    made = engine.create("given", dimension=2)
    unit = np.array([[1.0, 0.0]], np.float32)
    made.store.upsert([Document("late", "apple", metadata={"n": 1})])
    made.upsert([Document("soon", "pear", metadata={"n": 1})], unit)
    made.refresh()
    made.store.set_embeddings([1], unit)
    made.catch_up()
    for _ in range(2):
        found = made.search("apple pear", mode="keyword", filter={"n": {"eq": 1}}).hits
        assert {hit.id for hit in found} == {"late", "soon"}
        made.refresh()


def test_what_cannot_be_kept_is_asked_of_the_store(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "MAX_VALUES", 2)
    monkeypatch.setattr(fields, "MAX_FIELDS", 2)
    made = engine.create("many")
    made.ingest([Document(f"{n}", "word", metadata={"many": n, "few": n % 2, "more": n}) for n in range(5)])
    kept = made.snapshot.generation.fields
    assert kept is not None
    assert kept.column(("many",)) is None
    assert kept.column(("more",)) is None
    assert kept.column(("none",)) is None  # a document may have it among those that were not counted
    few = kept.column(("few",))
    assert few is not None
    assert few.values == [[], 0, 1]
    for filter, ids in (
        ({"many": {"gte": 3}}, {"3", "4"}),
        ({"more": {"eq": 2}}, {"2"}),
        ({"few": {"eq": 1}}, {"1", "3"}),
        ({"few": {"eq": 1}, "more": {"gt": 1}}, {"3"}),
    ):
        assert {hit.id for hit in made.search("word", filter=filter).hits} == ids


def test_a_generation_without_fields_is_searched_as_before(
    collection: Collection, engine: SearchEngine
) -> None:
    collection.store.publish_generation(add_bare_generation(collection.store))
    collection.catch_up()
    assert collection.snapshot.generation.fields is None
    assert len(collection.search("a", filter={"number": {"lt": 4}}).hits) == 4


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    builder = FieldsBuilder()
    for number in range(3):
        builder.add({"n": number})
    builder.save(tmp_path / "kept")
    np.save(tmp_path / "kept" / "0_codes.npy", np.array([1, 2, 9], np.int32))
    with pytest.raises(CorruptData, match="field 0 does not fit"):
        MetadataFields(tmp_path / "kept", 3).column(("n",))
    (tmp_path / "kept" / "fields.json").write_text("{}")
    with pytest.raises(CorruptData, match="fields"):
        MetadataFields(tmp_path / "kept", 3)
