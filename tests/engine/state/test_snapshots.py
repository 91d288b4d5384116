"""States of a collection: found by generation and operation, and kept only while their generation lives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.state import snapshots as module
from dsearch.engine.state.snapshots import no_such_state
from dsearch.errors import Conflict, Gone, InvalidRequest
from dsearch.types import Document


def write(collection: Collection, *names: str) -> None:
    for name in names:
        collection.upsert([Document(name, f"apple {name}")])


def test_a_state_is_found_by_its_generation_and_operation(collection: Collection) -> None:
    before = collection.snapshot
    write(collection, "a")
    live, after = collection._snapshots, collection.snapshot
    number = after.generation.number
    assert live.at(number, after.sequence) is after
    assert live.at(number, before.sequence) is before
    assert live.at(number + 1, after.sequence) is None
    assert live.at(number - 1, before.sequence) is None
    assert live.at(number, after.sequence + 1) is None
    collection.refresh()
    assert live.at(number, after.sequence) is None  # of a generation that was replaced
    assert live.at(number + 1, collection.snapshot.sequence) is collection.snapshot


def test_the_last_states_are_kept(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.RECENT == 8
    monkeypatch.setattr(module, "RECENT", 2)
    states = [collection.snapshot]
    for name in "abc":
        write(collection, name)
        states.append(collection.snapshot)
    found = [collection._snapshots.at(one.generation.number, one.sequence) for one in states]
    assert found == [None, *states[1:]]
    collection._snapshots.forget_recent()
    assert collection._snapshots.at(states[2].generation.number, states[2].sequence) is None
    assert collection._snapshots.at(states[3].generation.number, states[3].sequence) is states[3]


def test_the_delta_counts_what_makes_searches_slower(collection: Collection) -> None:
    assert (collection._snapshots.delta, collection._snapshots.stale) == (0, False)
    write(collection, "a", "b")
    collection.delete(["d0", "a"])
    assert collection._snapshots.delta == 3  # two fresh rows, of which one is gone, and one of the build
    assert collection._snapshots.stale
    collection.refresh()
    assert (collection._snapshots.delta, collection._snapshots.stale) == (0, False)
    collection.delete(["d1"])
    assert (collection._snapshots.delta, collection._snapshots.stale) == (1, True)


def test_parameters_of_another_generation_are_not_taken_up(collection: Collection) -> None:
    """An index is measured beside other work, and may have been replaced by then."""
    live, before = collection._snapshots, collection.snapshot
    live.use_parameters(before.generation.number - 1, {"nprobe": 3})
    assert collection.snapshot is before


def test_a_document_that_was_embedded_after_later_ones_is_in_its_place(collection: Collection) -> None:
    collection.store.upsert([Document("waiting", "honey")])
    waiting = collection.store.rows_of(["waiting"])["waiting"]
    write(collection, "later")
    embeddings = collection.encoder.encode_documents(["honey"])
    collection.store.set_embeddings([waiting], embeddings)
    collection.catch_up()
    fresh = collection.snapshot.fresh
    assert fresh.rows.tolist() == sorted(collection.store.rows_of(["waiting", "later"]).values())
    np.testing.assert_array_equal(fresh.embeddings, collection.store.embeddings(fresh.rows))
    assert [hit.id for hit in collection.search("later", limit=1).hits] == ["later"]


@pytest.mark.parametrize(("least", "folded"), [(1e-2, True), (1e-5, False)])
def test_a_projection_without_a_precise_inverse_is_left_out_of_the_keys(
    collection: Collection, least: float, folded: bool
) -> None:
    head = Head(32)
    with torch.no_grad():
        head.key_delta[0, 0] = least - 1
    collection.promote(collection.add_model(head, {}))
    projection = collection._snapshots.key_projection()
    assert (projection is not None) == folded
    assert projection is None or projection[0, 0] == pytest.approx(least)


def test_fresh_rows_that_were_replaced_are_cleared_now_and_then(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DEAD", 2)
    sizes: list[int] = []
    for _ in range(6):
        write(collection, "same")
        sizes.append(len(collection.snapshot.fresh))
    assert max(sizes) <= 5
    assert sizes[-1] < 6
    assert [hit.id for hit in collection.search("apple same", limit=1).hits] == ["same"]


def test_what_waits_for_an_embedding_is_counted(collection: Collection) -> None:
    collection.store.upsert([Document("waiting", "apple")])
    collection.catch_up()
    assert collection._snapshots.pending == 1


def test_a_collection_that_was_never_built_says_so(engine: SearchEngine) -> None:
    made = engine.create("bare")
    made.store.upsert([Document("a", "apple")])
    if made.store.live_generation() is None:
        with pytest.raises(InvalidRequest, match="was never built; build it"):
            _ = made.snapshot


def test_a_stamp_of_later_is_a_conflict_and_one_of_before_is_gone(collection: Collection) -> None:
    write(collection, "a")
    snapshot = collection.snapshot
    _, stamp = collection.layer_and_stamp()
    for change, kind in (
        ({"generation": stamp.generation + 1}, Conflict),
        ({"sequence": stamp.sequence + 1}, Conflict),
        ({"sequence": stamp.sequence - 1}, Gone),
        ({"generation": stamp.generation - 1}, Gone),
    ):
        error = no_such_state("food", replace(stamp, **change), snapshot)
        assert type(error) is kind
        assert f"generation {snapshot.generation.number}, sequence {snapshot.sequence}" in str(error)
