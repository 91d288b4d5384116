"""A stream of writes: each makes a state of the one before, which is as if it had been loaded."""

from __future__ import annotations

import tempfile
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import HashingEncoder
from support.sizes import by_size

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.snapshot import GrowingMatrix
from dsearch.engine.state import snapshots
from dsearch.types import Document

WORDS = ["apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey"]
IDS = st.sampled_from([f"d{i}" for i in range(6)])
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)
WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(st.tuples(IDS, TEXT), min_size=1, max_size=3)),
        st.tuples(st.just("delete"), st.lists(IDS, min_size=1, max_size=2)),
        st.tuples(st.just("text only"), st.tuples(IDS, TEXT)),
        st.tuples(st.just("encode"), st.none()),
        st.tuples(st.just("metadata"), IDS),
        st.tuples(st.just("refresh"), st.none()),
    ),
    max_size=7,
)


def write(collection: Collection, kind: str, given: object) -> None:
    if kind == "upsert":
        documents = {id: Document(id=id, text=text) for id, text in given}  # type: ignore[attr-defined]
        collection.upsert(list(documents.values()))
    elif kind == "delete":
        collection.delete(given)  # type: ignore[arg-type]
    elif kind == "text only":  # found once it is encoded, which may be after later rows were
        collection.store.upsert([Document(id=given[0], text=given[1])])  # type: ignore[index]
    elif kind == "encode":
        rows = collection.store.pending().rows
        vectors = collection.encoder.encode_documents(collection.store.contents(rows))
        collection.store.set_embeddings(rows, vectors)
        collection.delete([])
    elif kind == "metadata":
        if collection.store.rows_of([given]):  # type: ignore[list-item]
            collection.update_metadata(given, {"n": collection.store.sequence})  # type: ignore[arg-type]
    else:
        collection.refresh()


def answers(collection: Collection) -> list[object]:
    found: list[object] = [collection.snapshot.documents]
    for mode in ("hybrid", "dense", "keyword"):
        for query in ("apple", "bread honey", '"apple bread"'):
            hits = collection.search(query, mode=mode, limit=20).hits  # type: ignore[arg-type]
            found.append([(hit.id, round(hit.score, 5), hit.passage) for hit in hits])
    return found


@settings(max_examples=by_size(8, 80))
@given(WRITES)
def test_every_state_is_as_if_it_had_been_loaded(writes: list[tuple[str, object]]) -> None:
    encoder = HashingEncoder()
    with tempfile.TemporaryDirectory() as home, SearchEngine(home, encoder=lambda: encoder) as engine:
        made = engine.create("food", passages=PassageOptions(tokens=16, overlap=4))
        made.ingest([Document(id=f"d{i}", text=f"{WORDS[i]} {WORDS[(i * 3 + 1) % 8]}") for i in range(3)])
        held: list[tuple[object, list[object]]] = []
        for kind, what in writes:
            write(made, kind, what)
            if kind == "text only":
                made.delete([])  # nothing, but noticed
            with SearchEngine(home, readonly=True, encoder=lambda: encoder) as other:
                loaded = other.collection("food")
                assert answers(made) == answers(loaded)
            present = made.snapshot
            held.append((present, [present.documents, present.embeddings(present.visible()).tolist()]))
        for before, was in held:  # what was given out before has not changed
            assert [before.documents, before.embeddings(before.visible()).tolist()] == was  # type: ignore[attr-defined]


def test_rows_that_are_encoded_after_later_ones_are_found_and_deleted(
    engine: SearchEngine, collection: Collection, encoder: HashingEncoder
) -> None:
    collection.store.upsert([Document(id="early", text="apple banana")])
    collection.upsert([Document(id=f"n{i}", text=f"apple number{i}") for i in range(5)])
    write(collection, "encode", None)
    assert collection.search("banana", limit=1).hits[0].id == "early"
    collection.delete(["n2", "early"])
    with SearchEngine(engine.home.path, readonly=True, encoder=lambda: encoder) as other:
        assert answers(collection) == answers(other.collection("food"))


def test_a_write_reads_what_it_brings_and_no_more(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.upsert([Document(id=f"n{i}", text=f"apple number{i}") for i in range(200)])
    read: list[int] = []
    original = type(collection.store).contents

    def contents(self: object, rows: np.ndarray) -> list[str]:
        read.append(len(rows))
        return original(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(type(collection.store), "contents", contents)
    collection.upsert([Document(id="one", text="banana")])
    collection.delete(["n1"])
    assert sum(read) == 1
    assert collection.search("banana", limit=1).hits[0].id == "one"


def test_rows_that_were_replaced_do_not_pile_up(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_DEAD", 5)
    for i in range(40):
        collection.upsert([Document(id="same", text=f"apple number{i}")])
        assert len(collection.snapshot.fresh) <= 7
    assert collection.snapshot.documents == 17
    assert collection.search("number39", limit=1).hits[0].id == "same"


def test_a_matrix_grows_under_those_who_read_it() -> None:
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    grown = GrowingMatrix(first)
    seen = [grown.appended(np.full((count, 3), count, np.float32)) for count in (1, 0, 2, 5, 1)]
    assert [len(one) for one in seen] == [3, 3, 5, 10, 11]
    for before, after in pairwise(seen):
        assert np.array_equal(after[: len(before)], before)
    assert np.array_equal(first, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert len(grown) == 11
