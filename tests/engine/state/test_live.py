"""States of a collection: found by generation and operation, and kept only while their generation lives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.state import live as module
from dsearch.engine.state.live import no_such_state
from dsearch.errors import Conflict, Gone, InvalidRequest
from dsearch.types import Document


def write(collection: Collection, *names: str) -> None:
    for name in names:
        collection.upsert([Document(name, f"apple {name}")])


def test_a_state_is_found_by_its_generation_and_operation(collection: Collection) -> None:
    before = collection.snapshot
    write(collection, "a")
    live, after = collection._live, collection.snapshot
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
    found = [collection._live.at(one.generation.number, one.sequence) for one in states]
    assert found == [None, *states[1:]]
    collection._live.forget_recent()
    assert collection._live.at(states[2].generation.number, states[2].sequence) is None
    assert collection._live.at(states[3].generation.number, states[3].sequence) is states[3]


def test_the_delta_counts_what_makes_searches_slower(collection: Collection) -> None:
    assert (collection._live.delta, collection._live.stale) == (0, False)
    write(collection, "a", "b")
    collection.delete(["d0", "a"])
    assert collection._live.delta == 3  # two fresh rows, of which one is gone, and one of the build
    assert collection._live.stale
    collection.refresh()
    assert (collection._live.delta, collection._live.stale) == (0, False)


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
    assert collection._live.pending == 1


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
