"""Second names for collections."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.guarded import guarded

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.home import ALIASES_FILE
from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Conflict,
    CorruptData,
    InvalidRequest,
    NotFound,
    UnsupportedFormat,
)
from dsearch.index import durable
from dsearch.types import Document

checked = guarded(SearchEngine, "_open", lock="_opening")


def test_an_alias_stands_for_a_collection_and_is_exchanged_at_once(
    engine: SearchEngine, collection: Collection
) -> None:
    other = engine.create("drinks")
    other.ingest([Document(id="w", text="water apple")])
    engine.set_alias("live", "food")
    assert engine.collection("live") is collection
    assert engine.collection_or_new("live") is collection
    engine.set_alias("live", "drinks")
    assert engine.collection("live") is other
    assert engine.aliases() == {"live": "drinks"}
    assert engine.names() == ["drinks", "food"]
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
        assert [hit.id for hit in reader.collection("live").search("apple").hits] == ["w"]
        engine.set_alias("live", "food")
        assert reader.collection("live").name == "food"
        with pytest.raises(Conflict, match="readonly"):
            reader.set_alias("live", "drinks")
    engine.drop_alias("live")
    with pytest.raises(CollectionNotFound):
        engine.collection("live")
    assert engine.collection("food").store.count().documents == 16


def test_what_would_be_ambiguous_is_refused(engine: SearchEngine, collection: Collection) -> None:
    engine.set_alias("live", "food")
    with pytest.raises(CollectionExists, match="'live' is an alias of 'food'"):
        engine.create("live")
    with pytest.raises(CollectionExists, match="use another name for the alias"):
        engine.set_alias("food", "food")
    with pytest.raises(CollectionNotFound):
        engine.set_alias("more", "live")  # no chains
    with pytest.raises(InvalidRequest):
        engine.set_alias("../x", "food")
    with pytest.raises(NotFound, match="no alias 'more'; there are: live"):
        engine.drop_alias("more")
    with pytest.raises(Conflict, match="alias live stands for collection 'food'"):
        engine.drop("food")
    engine.drop_alias("live")
    engine.drop("food")


def test_the_file_tells_of_its_damage(engine: SearchEngine, collection: Collection) -> None:
    engine.set_alias("live", "food")
    path = engine.home.path / ALIASES_FILE
    written = path.read_bytes()
    for position in range(len(written)):
        damaged = bytearray(written)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        try:
            same = engine.aliases() == {"live": "food"}
        except (CorruptData, UnsupportedFormat):
            continue
        assert same, position  # a changed blank is no damage
    assert engine.collection("food") is collection  # which is not looked up there
    content = json.loads(written)
    path.write_text(json.dumps({**content, "aliases": {"live": "drinks"}}))
    with pytest.raises(CorruptData, match="dsearch alias NAME COLLECTION"):
        engine.collection("live")
    path.unlink()
    path.mkdir()  # there, and cannot be read: not as if there were none
    for ask in (
        engine.aliases,
        partial(engine.set_alias, "more", "food"),
        partial(engine.drop_alias, "live"),
    ):
        with pytest.raises(CorruptData, match="cannot be read"):
            ask()


def test_a_crash_while_it_is_written_leaves_the_old_ones(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.set_alias("live", "food")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.drop_alias("live")
    assert engine.aliases() == {"live": "food"}


def test_a_collection_is_verified_and_recovered_by_its_alias(
    engine: SearchEngine, collection: Collection
) -> None:
    engine.set_alias("live", "food")
    checked = engine.verify("live")
    assert (checked.name, checked.ok, checked.documents) == ("food", True, 16)
    assert (engine.recover("live").name, engine.recover("live").loss) == ("food", None)


def test_aliases_are_synced_before_they_have_their_name(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("sync_file", "sync_folder"):
        sync = getattr(durable, name)

        def recording(path: Path, *, name: str = name, sync: Callable[[Path], None] = sync) -> None:
            there = (engine.home.path / ALIASES_FILE).exists()
            order.append(f"{name} {path.name}, {'in place' if there else 'not yet'}")
            sync(path)

        monkeypatch.setattr(durable, name, recording)
    engine.set_alias("live", "food")
    folder = engine.home.path.name
    assert order == [f"sync_file .{ALIASES_FILE}.writing, not yet", f"sync_folder {folder}, in place"]
