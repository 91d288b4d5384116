"""Blocks of a build and of an indexing run are as one, and what a collection refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.engine.long_documents import OPTIONS, some

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.home import given_identity, is_given, require_encoder
from dsearch.engine.indexing import ingest as module
from dsearch.engine.indexing.ingest import encode_pending, require_dimension, require_options, store_documents
from dsearch.errors import Conflict, EncoderMismatch, InvalidRequest
from dsearch.types import Document, Progress

BLOCKS = ("_STORED_AT_A_TIME", "_ENCODED_AT_A_TIME", "_READ_AT_A_TIME", "_CUT_AT_A_TIME")


@pytest.fixture(params=[1, 5])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for name in BLOCKS:
        monkeypatch.setattr(module, name, request.param)
    return request.param


def state_of(collection: Collection) -> dict[str, Any]:
    generation = collection.snapshot.generation
    passages = generation.passages
    return {
        "rows": generation.rows,
        "vectors": generation.vectors,
        "owners": passages.owners,
        "spans": passages.spans,
        "first": passages.first_spans,
        "keyword": collection.snapshot.all_keyword_scores(["apple number7", "honey"]),
    }


def test_small_blocks_build_what_one_block_builds(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [Document(one.id, one.text, one.title, {"n": n}) for n, one in enumerate(some(count=10))]
    whole, parts = (engine.create(name, passages=OPTIONS) for name in ("whole", "parts"))
    whole.ingest(documents)
    for name in BLOCKS:
        monkeypatch.setattr(module, name, 3)
    parts.ingest(documents)
    expected, found = state_of(whole), state_of(parts)
    assert len(expected["owners"]) > 6
    for name, part in expected.items():
        if name == "vectors":  # batches round otherwise
            np.testing.assert_allclose(found[name], part, atol=1e-6)
        else:
            assert np.array_equal(found[name], part), name
    assert len(parts.search("apple", filter={"n": {"gte": 4}}, limit=50).hits) == len(
        whole.search("apple", filter={"n": {"gte": 4}}, limit=50).hits
    )


def test_progress_counts_documents(engine: SearchEngine, small: int) -> None:
    store = engine.create("food").store
    heard: list[Progress] = []
    documents = [Document(f"d{n}", f"apple {n}") for n in range(12)]
    assert store_documents(store, iter(documents), heard.append) == (12, 0, 0)
    steps = [*range(small, 12, small), 12]
    assert [(one.stage, one.done, one.total) for one in heard] == [("read", done, 0) for done in steps]
    assert store_documents(store, [Document("d0", "bread"), *documents[1:3]]) == (0, 1, 2)
    assert store_documents(store, []) == (0, 0, 0)
    heard.clear()
    encoder = engine.collection("food").encoder
    assert encode_pending(store, encoder, heard.append) == 12
    assert [one.stage for one in heard] == ["encode"] * len(steps)
    assert (heard[-1].done, {one.total for one in heard}) == (12, {12})
    assert encode_pending(store, encoder, heard.append) == 0


def test_the_time_left_counts_characters(engine: SearchEngine, small: int) -> None:
    """One long document is most of the work, wherever in the order it comes."""
    store = engine.create("food").store
    texts = ["apple " * 2000, *(f"apple {n}" for n in range(11))]
    store_documents(store, [Document(f"d{n}", text) for n, text in enumerate(texts)])
    heard: list[Progress] = []
    encode_pending(store, engine.collection("food").encoder, heard.append)
    shares = np.array([0.0, *(one.share or 0.0 for one in heard)])
    assert shares[-1] == 1
    units = np.diff([0, *(one.done for one in heard)]) / 12
    assert np.diff(shares).max() > 0.7 > units.max()


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([1, 1, 1], [[0, 1, 2]]),
        ([10, 10, 10], [[0], [1], [2]]),
        ([4, 4, 4, 4], [[0, 1, 2], [3]]),
        ([25, 1, 1], [[0], [1, 2]]),
        ([5, 5, 5], [[0, 1], [2]]),
    ],
)
def test_long_documents_are_encoded_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], parts: list[list[int]]
) -> None:
    monkeypatch.setattr(module, "_LONG_ENCODED_AT_A_TIME", 10)
    batch, pending = np.array([8, 2, 5, 0])[: len(lengths)], np.full(9, 1000)
    pending[batch] = lengths
    found = module._of_bounded_length(batch, pending)
    assert [part.tolist() for part in found] == [batch[part].tolist() for part in parts]


def test_the_record_names_what_the_next_build_repeats(engine: SearchEngine) -> None:
    made = engine.create("food", language="german", search_fields=["tags"])
    made.ingest([Document("a", "Äpfel", metadata={"tags": "Birnen"})])
    record = made.store.live_generation().record  # type: ignore[union-attr]
    assert (record["language"], record["search_fields"]) == ("german", ["tags"])
    assert record["keys"]["kind"] == "Flat"
    built = module.build_files(made.store)
    assert built.record["language"] == "german"
    assert built.record["search_fields"] == ["tags"]
    assert (built.rows, built.sequence) == (1, made.store.snapshot().sequence)
    bare = module.build_files(made.store, search_fields=[], language="english")
    assert "search_fields" not in bare.record
    assert bare.record["language"] == "english"


def test_given_embeddings_stand_for_an_encoder(engine: SearchEngine, collection: Collection) -> None:
    own = engine.create("own", dimension=3)
    assert is_given(own.store)
    assert not is_given(collection.store)
    assert given_identity(3).to_dict() == {
        "name": "given",
        "revision": "",
        "weights_sha256": "",
        "pooling": "",
        "max_tokens": 0,
        "backend": "given",
        "dtype": "float32",
        "dimension": 3,
    }
    assert given_identity(1).dimension == 1
    with pytest.raises(InvalidRequest, match="dimension=0; use the length of your embeddings, 1 or more"):
        given_identity(0)
    require_dimension(own.store, 3)
    with pytest.raises(Conflict, match="has embeddings of 3 numbers, not 4"):
        require_dimension(own.store, 4)
    with pytest.raises(Conflict, match="encodes texts, and dimension=32 is for embeddings of your own"):
        require_dimension(collection.store, 32)
    require_encoder(collection.store)
    with pytest.raises(EncoderMismatch, match="Search it with a vector or with mode='keyword'"):
        require_encoder(own.store)


OTHER: dict[str, Any] = {
    "dimension": 3,
    "language": "german",
    "search_fields": ["tags"],
    "kind": "SQ8",
    "passages": PassageOptions(tokens=64, overlap=8),
}


@pytest.mark.parametrize("name", OTHER)
def test_each_option_that_differs_is_refused(collection: Collection, name: str) -> None:
    nothing: dict[str, Any] = dict.fromkeys(OTHER)
    require_options(collection.store, **nothing)
    with pytest.raises(Conflict):
        require_options(collection.store, **{**nothing, name: OTHER[name]})
    same = {"language": "english", "search_fields": [], "kind": "Flat", "passages": PassageOptions()}
    require_options(collection.store, **{**nothing, **same})


def test_a_build_that_fails_leaves_no_file_of_tokens_open(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module.Generation, "build", full)
    monkeypatch.setattr(module.TokenKeeper, "close", lambda keeper: closed.append(keeper.spool.path.name))
    with pytest.raises(OSError, match="disk full"):
        module.build_files(collection.store)
    assert closed == ["tokens.db"]
