"""Each collection gets the encoder that it was encoded by, and nothing is loaded before it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.guarded import guarded

from dsearch.encoder import TextEncoder
from dsearch.engine import SearchEngine
from dsearch.engine.home import HomeEncoders
from dsearch.types import Document

checked = guarded(HomeEncoders, "_own", "_following")


def counted(loaded: list[str], made: TextEncoder):
    def load() -> TextEncoder:
        loaded.append(str(made.identity.dimension))
        return made

    return load


def test_each_is_loaded_once_and_when_it_is_asked_for() -> None:
    loaded: list[str] = []
    own, other = HashingEncoder(), HashingEncoder(dimension=16)
    encoders = HomeEncoders(counted(loaded, own), counted(loaded, other))
    assert loaded == []
    assert encoders.own is encoders.own is own
    assert encoders.following is encoders.following is other
    assert loaded == ["32", "16"]


def test_without_another_one_it_is_the_same() -> None:
    own = HashingEncoder()
    encoders = HomeEncoders(lambda: own)
    assert encoders.following is own


@pytest.mark.parametrize("following", [False, True])
def test_a_collection_gets_what_it_was_encoded_by(tmp_path: Path, following: bool) -> None:
    own, other = HashingEncoder(), HashingEncoder(dimension=16)
    made_by = other if following else own
    with SearchEngine(tmp_path, encoder=lambda: made_by) as engine:
        engine.create("notes").ingest([Document("a", "bread")])
    with SearchEngine(tmp_path, encoder=lambda: own, next_encoder=lambda: other) as engine:
        collection = engine.collection("notes")
        assert collection.encoder is made_by


def test_a_migrated_one_keeps_its_encoder_until_it_is_dropped(tmp_path: Path) -> None:
    own, other = HashingEncoder(), HashingEncoder(dimension=16)
    with SearchEngine(tmp_path, encoder=lambda: own) as engine:
        store = engine.create("notes").store
        encoders = HomeEncoders(lambda: own)
        encoders.migrated("notes", other)
        before = encoders.of(store)
        encoders.forget("notes")
        assert before() is other
        assert encoders.of(store)() is own
