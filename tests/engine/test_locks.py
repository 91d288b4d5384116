"""Writers, builds and compaction exclude each other: the lock is held here, and each of them waits for it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.guarded import guarded
from support.locks import WatchedLock, waiting

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.home import Home
from dsearch.engine.indexing.ingest import build_generation
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.models.files import save_model
from dsearch.errors import CollectionExists, HomeLocked, InvalidRequest
from dsearch.types import Document

checked = guarded(SearchEngine, "_open", lock="_opening")

WRITES: dict[str, Callable[[Collection], object]] = {
    "ingest": lambda food: food.ingest([Document("new", "apple")]),
    "upsert": lambda food: food.upsert([Document("new", "apple")]),
    "delete": lambda food: food.delete(["d1"]),
    "delete_matching": lambda food: food.delete_matching({"number": {"eq": 1}}),
    "update_metadata": lambda food: food.update_metadata("d1", {"number": 100}),
    "add_model": lambda food: food.add_model(Head(32), {}),
    "add_to_record": lambda food: food.add_to_record("v1", {"note": "later"}),
    "promote": lambda food: food.promote("v1"),
    "rollback": lambda food: food.rollback(),
    "delete_model": lambda food: food.delete_model("v2"),
}


@pytest.fixture
def writing(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> WatchedLock:
    """The lock of the collection's writers, shared with its builds as the plain one is."""
    lock = WatchedLock()
    monkeypatch.setattr(collection, "_writing", lock)
    monkeypatch.setattr(collection.rebuilder, "_writing", lock)
    return lock


@pytest.fixture
def building(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> WatchedLock:
    """The lock that one build at a time holds."""
    lock = WatchedLock()
    monkeypatch.setattr(collection.rebuilder, "_building", lock)
    return lock


@pytest.mark.parametrize("change", ["set_alias", "drop_alias", "drop", "create"])
def test_names_change_one_after_the_other(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    engine.create("drinks")
    engine.set_alias("old", "food")
    monkeypatch.setattr(engine.home, "naming", naming := WatchedLock())
    changes: dict[str, Callable[[], object]] = {
        "set_alias": lambda: engine.set_alias("new", "food"),
        "drop_alias": lambda: engine.drop_alias("old"),
        "drop": lambda: engine.drop("drinks"),
        "create": lambda: engine.create("more"),
    }
    with waiting(naming, changes[change]):
        assert (engine.names(), engine.aliases()) == (["drinks", "food"], {"old": "food"})
    assert (engine.names(), engine.aliases()) != (["drinks", "food"], {"old": "food"})


def test_a_name_that_another_thread_takes_during_a_creation_is_told(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`create` refuses it, `collection_or_new` gives the collection, and what was built is removed."""
    faster: list[Collection] = []

    def build(*arguments: Any, **options: Any) -> None:
        build_generation(*arguments, **options)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr("dsearch.engine.engine.build_generation", build_generation)
            faster.append(engine.create("food"))

    monkeypatch.setattr("dsearch.engine.engine.build_generation", build)
    with pytest.raises(CollectionExists, match="collection 'food' exists"):
        engine.create("food")
    assert engine.collection_or_new("food") is faster[0]
    engine.drop("food")
    assert engine.collection_or_new("food") is faster[1]
    assert [path.name for path in engine.home.path.iterdir() if path.is_dir()] == ["food"]


@pytest.mark.parametrize("name", WRITES)
def test_a_write_waits_for_other_writers(collection: Collection, writing: WatchedLock, name: str) -> None:
    for _ in range(2):
        save_model(collection.store, Head(32), parent="v0", record={})
    if name == "rollback":
        collection.promote("v1")
    before, live = collection.store.sequence, collection.live_model
    with waiting(writing, lambda: WRITES[name](collection)):
        assert (collection.store.sequence, collection.live_model) == (before, live)
    after = {
        "sequence": collection.store.sequence,
        "live": collection.live_model,
        "models": [model.version for model in collection.store.models()],
    }
    assert after != {"sequence": before, "live": live, "models": ["v0", "v1", "v2"]}


def test_what_others_wrote_is_read_and_the_writers_are_stopped_between_writes(
    collection: Collection, writing: WatchedLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught_up = list[str]()
    monkeypatch.setattr(collection._snapshots, "catch_up", lambda: caught_up.append("live"))
    with waiting(writing, collection.catch_up):
        assert caught_up == []
    assert caught_up == ["live"]
    with collection.writing_stopped():
        assert writing.locked()
    assert not writing.locked()


def test_a_generation_is_published_between_writes(collection: Collection, writing: WatchedLock) -> None:
    """A build publishes under the lock of writers: until then the old generation answers."""
    before = collection.snapshot.generation.number
    with waiting(writing, collection.refresh):
        assert collection.snapshot.generation.number == before
        assert collection.store.live_generation().number == before
    assert collection.snapshot.generation.number > before


def test_compaction_waits_for_a_build(collection: Collection, building: WatchedLock) -> None:
    """Files of a build that runs must not be cleared away as left over, nor rows that it reads be purged.

    Nothing was deleted since the live generation: compaction builds none itself, for which it would wait too.
    """
    being_built = collection.store.path / "generations" / "000099"
    being_built.mkdir()
    with waiting(building, lambda: compact(collection)):
        assert being_built.is_dir()
    assert not being_built.exists()


@pytest.mark.parametrize(
    ("holder", "url"),
    [
        ({"host": socket.gethostname(), "url": "http://127.0.0.1:1"}, "http://127.0.0.1:1"),
        ({"host": "elsewhere", "url": "http://127.0.0.1:1"}, None),
        ({"host": socket.gethostname(), "url": None}, None),
        ({"host": socket.gethostname(), "url": 7}, None),
    ],
)
def test_a_home_that_is_written_names_its_server_on_this_machine_alone(
    tmp_path: Path, holder: dict[str, object], url: str | None
) -> None:
    """An address of another machine's loopback would lead to whatever listens here."""
    first, second = Home(tmp_path), Home(tmp_path)
    first.lock()
    (tmp_path / "LOCK.holder").write_text(json.dumps({"pid": 42, "command": "dsearch serve", **holder}))
    with pytest.raises(HomeLocked) as locked:
        second.lock()
    assert f"process 42 on {holder['host']} (dsearch serve)" in str(locked.value)
    assert locked.value.url == url
    assert ("which serves it at" in str(locked.value)) == (url is not None)
    (tmp_path / "LOCK.holder").write_text("{")
    with pytest.raises(HomeLocked, match="is being written by another process; wait"):
        second.lock()
    first.announce("http://127.0.0.1:8")
    with pytest.raises(HomeLocked) as locked:
        second.lock()
    assert locked.value.url == "http://127.0.0.1:8"
    first.unlock()
    assert not (tmp_path / "LOCK.holder").exists()
    second.lock()
    assert second.locked
    second.unlock()


def test_a_full_disk_does_not_keep_the_lock_from_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping a collection is what frees space."""
    home = Home(tmp_path / "home")
    home.lock()
    home.announce("http://127.0.0.1:1")
    files = set(home.path.iterdir())

    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    home.announce("http://127.0.0.1:2")
    assert home.locked
    assert len(files - set(home.path.iterdir())) == 1  # the one that named the earlier server
    assert not set(home.path.iterdir()) - files
    with pytest.raises(HomeLocked, match="another process"):
        Home(home.path).lock()
    home.unlock()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InvalidRequest, match=r"file/home cannot hold collections .*by --home or DSEARCH_HOME"
    ):
        Home(tmp_path / "file" / "home").lock()
