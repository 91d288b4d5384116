"""Old generations go when nobody reads them, in any process, and never before."""

from __future__ import annotations

import copy
import fcntl
import gc
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.fakes import HashingEncoder
from support.patience import LATEST_S
from support.sizes import by_size
from support.warm.processes import warm_start

from dsearch.engine import Collection, SearchEngine, open_layer
from dsearch.engine.indexing import leases
from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.indexing.leases import KEEP, Lease, alone_with, clear, lease_registered, retire
from dsearch.errors import CorruptData, InvalidRequest
from dsearch.store import Store
from dsearch.types import Document


def folders(collection: Collection) -> list[int]:
    return sorted(int(path.name) for path in (collection.store.path / "generations").iterdir())


def registered(collection: Collection) -> list[int]:
    return [one.number for one in collection.store.generations()]


def test_the_last_few_stay(collection: Collection) -> None:
    for _ in range(5):
        last = collection.refresh()
    assert registered(collection) == folders(collection) == list(range(last - KEEP + 1, last + 1))


def test_a_generation_that_is_read_stays_as_long_as_it_is(collection: Collection) -> None:
    held = collection.snapshot
    number = held.generation.number
    for _ in range(5):
        collection.refresh()
    assert number in registered(collection)
    assert number in folders(collection)
    layer, _ = collection.layer_and_stamp(mode="dense")
    del held
    gc.collect()
    collection.refresh()
    assert number not in registered(collection)
    assert number not in folders(collection)
    assert layer.snapshot.generation.number in folders(collection)


def test_closing_ends_the_leases_whoever_still_has_the_objects(
    engine: SearchEngine, collection: Collection
) -> None:
    """As a reference cycle would, or a traceback that is kept."""
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as other:
        reading = other.collection("food").snapshot
        twin = reading.generation.searched_with({})
        for _ in range(5):
            collection.refresh()
        assert reading.generation.number in registered(collection)
    collection.refresh()
    assert reading.generation.number not in registered(collection)
    assert twin.number == reading.generation.number


def test_a_layer_that_was_opened_alone_holds_its_generation(
    engine: SearchEngine, collection: Collection
) -> None:
    layer = open_layer(engine.home.path, "food")
    number = layer.snapshot.generation.number
    for _ in range(5):
        collection.refresh()
    assert number in registered(collection)
    assert (layer(torch.ones(1, 32)).positions >= 0).any()
    del layer
    gc.collect()
    collection.refresh()
    assert number not in registered(collection)


def test_a_refreshed_layer_and_its_copy_hold_the_generation_that_they_search(
    engine: SearchEngine, collection: Collection
) -> None:
    """And no longer the one of before."""
    layer = open_layer(engine.home.path, "food")
    before = layer.snapshot.generation.number
    collection.refresh()
    layer.refresh()
    number = layer.snapshot.generation.number
    assert number != before
    twin = copy.deepcopy(layer)
    for _ in range(5):
        collection.refresh()
    assert before not in registered(collection)
    assert number in registered(collection)
    del layer
    gc.collect()
    collection.refresh()
    assert number in registered(collection)
    assert (twin(torch.ones(1, 32)).positions >= 0).any()
    del twin
    gc.collect()
    collection.refresh()
    assert number not in registered(collection)


def test_a_twin_ends_the_lease_that_it_shares(engine: SearchEngine, collection: Collection) -> None:
    """What is searched with parameters of its own is a twin, also when its collection is closed."""
    path = collection.store.path
    engine.close()
    with Store.open(path, readonly=True) as store:
        generation = leases.open_live(store)
        assert generation is not None
        twin = generation.searched_with({}).searched_with({})
        with alone_with(twin.folder) as alone:
            assert not alone
        leases.release(twin)
        with alone_with(twin.folder) as alone:
            assert alone


def test_twins_with_other_parameters_share_the_lease(collection: Collection) -> None:
    twin = collection.snapshot.generation.searched_with({})
    for _ in range(5):
        collection.refresh()
    assert twin.number in registered(collection)


READER = """
import sys; sys.path[:] = {path!r}
from dsearch.engine import SearchEngine
from support.fakes import HashingEncoder
with SearchEngine({home!r}, readonly=True, encoder=HashingEncoder) as engine:
    food = engine.collection("food")
    print(food.snapshot.generation.number, flush=True)
    sys.stdin.readline()
    print(len(food.search("apple").hits), flush=True)
"""


def test_another_process_holds_what_it_reads_until_it_is_killed(
    engine: SearchEngine, collection: Collection
) -> None:
    code = READER.format(path=sys.path, home=str(engine.home.path))
    reader = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin
    assert reader.stdout
    held = int(reader.stdout.readline())
    for _ in range(5):
        collection.refresh()
    assert held in registered(collection)
    reader.stdin.write("\n")
    reader.stdin.flush()
    assert int(reader.stdout.readline()) == 10  # it opened more files of its generation, and they are there
    reader.kill()
    reader.wait()
    assert held in retire(collection.store)
    assert held not in folders(collection)


def test_one_retired_between_looking_and_leasing_is_not_opened(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that comes just now: what it saw live is retired before it has its lease."""
    before = collection.snapshot.generation.number

    class Late(Lease):
        def __init__(self, folder: Path):
            if int(folder.name) == before:
                for _ in range(KEEP + 1):
                    collection.refresh()
                gc.collect()
                retire(collection.store)
            super().__init__(folder)

    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as other:
        reading = other.collection("food")
        monkeypatch.setattr(leases, "Lease", Late)
        assert reading.snapshot.generation.number == before + KEEP + 1


def test_a_crash_between_the_register_and_the_folder_is_cleared(tmp_path: Path) -> None:
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        food = engine.create("food")
        food.ingest([Document(id="a", text="apple")])
        food.refresh()
        generations = food.store.path / "generations"
        food.store.retire_generation(1)  # and killed
        (generations / ".000009.building-1-abc").mkdir()
        (generations / "000009").mkdir()  # built, never registered
        unfinished = food.store.path / "models" / ".v1.writing"
        unfinished.mkdir(parents=True)
        unregistered = food.store.path / "models" / "v7"
        unregistered.mkdir()
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        food = engine.collection("food")
        assert sorted(path.name for path in generations.iterdir()) == ["000002", "000003"]
        assert not unfinished.exists()
        assert unregistered.exists()  # a model is not derived data
        assert food.search("apple").hits[0].id == "a"


def test_a_generation_leaves_the_register_before_its_folder_goes(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between leaves a folder that nobody misses, and no entry that nobody can open."""
    collection.refresh()
    gone: list[tuple[int, bool]] = []

    def remove(folder: Path) -> None:
        gone.append((int(folder.name), int(folder.name) in registered(collection)))

    monkeypatch.setattr(leases, "_remove", remove)
    gc.collect()
    assert retire(collection.store, keep=1) == [number for number, _ in gone] != []
    assert not any(still for _, still in gone)


def test_what_was_unregistered_is_not_cleared_while_it_is_read(
    engine: SearchEngine, collection: Collection
) -> None:
    collection.refresh()
    store, (first, *_) = collection.store, registered(collection)
    folder = store.path / "generations" / f"{first:06d}"
    gc.collect()
    with alone_with(folder) as alone:
        assert alone
    reader = Lease(folder)
    store.retire_generation(first)
    assert clear(store) == []
    assert folder.is_dir()
    reader.release()
    assert clear(store) == [folder.name]
    assert not folder.exists()


def test_a_generation_without_a_folder_is_retired_too(collection: Collection) -> None:
    collection.refresh()
    first, *others = registered(collection)
    gc.collect()
    shutil.rmtree(generation_folder(collection.store, first))
    assert leases.retire_one(collection.store, first)
    assert registered(collection) == others != []


def test_a_generation_of_the_same_number_is_another_one(collection: Collection) -> None:
    record = collection.store.live_generation()
    assert record is not None
    lease = lease_registered(collection.store, record)
    assert lease is not None
    lease.release()
    assert lease_registered(collection.store, replace(record, manifest_digest="0" * 64)) is None


def test_a_generation_that_does_not_open_is_not_held(collection: Collection) -> None:
    collection.refresh()
    gc.collect()
    record = min(collection.store.generations(), key=lambda one: one.number)
    folder = collection.store.path / "generations" / f"{record.number:06d}"
    with (folder / "keys.faiss").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptData, match=r"keys\.faiss"):
        leases.open_registered(collection.store, record)
    with alone_with(folder) as alone:
        assert alone


def test_a_reader_clears_nothing(engine: SearchEngine, collection: Collection) -> None:
    left = collection.store.path / "generations" / ".000009.building-1-abc"
    left.mkdir()
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as other:
        other.collection("food")
    assert left.exists()


def test_a_registered_folder_that_is_missing_is_told(engine: SearchEngine, collection: Collection) -> None:
    number = collection.snapshot.generation.number
    folder = collection.store.path / "generations" / f"{number:06d}"
    os.rename(folder, folder.with_name("elsewhere"))
    with (
        SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as other,
        pytest.raises(CorruptData, match="dsearch refresh -c food"),
    ):
        _ = other.collection("food").snapshot
    os.rename(folder.with_name("elsewhere"), folder)


def test_leases(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    with alone_with(tmp_path) as alone:
        assert not alone
    first.release()
    first.release()
    with alone_with(tmp_path) as alone:
        assert not alone
    second.release()
    with alone_with(tmp_path) as alone:
        assert alone
    with pytest.raises(FileNotFoundError):
        Lease(tmp_path / "none")


FOLLOWER = """
import sys; sys.path[:] = {path!r}
from dsearch.engine import SearchEngine
from support.fakes import HashingEncoder
with SearchEngine({home!r}, readonly=True, encoder=HashingEncoder) as engine:
    food = engine.collection("food")
    food.search("apple")
    print("ready", flush=True)
    seen = set()
    while True:
        food.catch_up()
        answer = food.search("apple", mode={mode!r}, limit=3, coverage=False)
        seen.add((answer.stamp.generation, answer.stamp.sequence, *(hit.id for hit in answer.hits)))
        if answer.hits[0].id == "end":
            break
for one in sorted(seen):
    print(*one)
"""


def test_one_retired_between_opening_its_folder_and_leasing_it_is_not_opened(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = collection.snapshot.generation.number
    lock = fcntl.flock

    def late(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", lock)
            for _ in range(KEEP + 1):
                collection.refresh()
            gc.collect()
            assert before in retire(collection.store) or before not in registered(collection)
        lock(file, operation)

    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as other:
        reading = other.collection("food")
        monkeypatch.setattr(fcntl, "flock", late)
        assert reading.snapshot.generation.number == before + KEEP + 1


def test_a_reader_during_swaps_gets_the_answers_of_the_generations_it_names(
    engine: SearchEngine, collection: Collection
) -> None:
    swaps, least = by_size((30, 1), (100, 5))
    assert follow_swaps(engine, collection, swaps) > least


def follow_swaps(engine: SearchEngine, collection: Collection, swaps: int) -> int:
    """Another process reads while generations are swapped; how many of them its answers were of."""
    code = FOLLOWER.format(path=sys.path, home=str(engine.home.path), mode="keyword")
    reader = warm_start()([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert reader.stdout
    assert reader.stdout.readline() == "ready\n"
    written: list[int] = []
    stated: dict[tuple[int, int], list[str]] = {}

    def note() -> None:
        answer = collection.search("apple", mode="keyword", limit=3, coverage=False)
        stated[answer.stamp.generation, written[-1]] = [hit.id for hit in answer.hits]

    written.append(collection.store.sequence)
    note()
    for swap in range(swaps):
        # Another answer every time: so many words beside the one that is asked for.
        text = "apple " + "word " * (99 - swap)
        written.append(collection.upsert([Document(id=f"s{swap}", text=text)]).sequence)
        note()
        collection.refresh()
        note()
    written.append(collection.upsert([Document(id="end", text="apple apple apple", title="apple")]).sequence)
    note()
    out, _ = reader.communicate(timeout=LATEST_S)
    assert reader.returncode == 0
    answers = [line.split() for line in out.splitlines()]
    for generation, sequence, *ids in answers:
        last = max(one for one in written if one <= int(sequence))  # builds are operations, too
        # Who opens a generation while the next one and a write come has a state that the writer never had:
        # this generation with that write beside it.
        held = stated.get((int(generation), last)) or next(
            held for (_, one), held in stated.items() if one == last
        )
        same = held == ids
        assert same, f"{ids} of generation {generation} at operation {sequence} is not what it held"
    return len({generation for generation, *_ in answers})


def test_a_layer_that_is_refused_holds_nothing(engine: SearchEngine, collection: Collection) -> None:
    folder = generation_folder(collection.store, collection.snapshot.generation.number)
    engine.close()
    with pytest.raises(InvalidRequest, match="hops=0; use an integer of at least 1"):
        open_layer(engine.home.path, "food", hops=0)
    gc.collect()
    with alone_with(folder) as alone:
        assert alone
