"""Damage is named when the damaged bytes are read, and by `verify` where no answer reads them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.engine.indexing.ingest import generation_folder
from dsearch.errors import CorruptData
from dsearch.types import Document


@pytest.fixture
def home(tmp_path: Path, documents: list[Document]) -> Path:
    """Closed in good order."""
    with opened(tmp_path / "home") as engine:
        engine.create("food").ingest(documents)
    return tmp_path / "home"


def opened(home: Path) -> SearchEngine:
    return SearchEngine(home, encoder=HashingEncoder)


def change(home: Path, statement: str) -> None:
    connection = sqlite3.connect(home / "food" / "documents.db")
    connection.executescript(statement)
    connection.close()


@pytest.mark.parametrize("name", ["keys.faiss", "embeddings.npy", "rows.npy"])
def test_a_flipped_bit_of_an_index_is_found_before_the_first_answer(home: Path, name: str) -> None:
    with opened(home) as engine:
        store = engine.collection("food").store
        live = store.live_generation()
        assert live is not None
        path = generation_folder(store, live.number) / name
    whole = bytearray(path.read_bytes())
    whole[-2] ^= 64
    path.write_bytes(whole)
    with opened(home) as engine:
        food = engine.collection("food")
        for _ in range(2):
            with pytest.raises(CorruptData, match=name):
                food.search("apple")
        food.upsert([Document("late", "apple")])  # documents are intact
        food.refresh()
        assert food.search("late apple", limit=20).hits


def test_a_damaged_document_ends_the_answers_that_read_it_until_it_is_replaced(home: Path) -> None:
    change(home, "UPDATE document SET text = 'x' WHERE row = 3")
    with opened(home) as engine:
        food = engine.collection("food")
        with pytest.raises(CorruptData, match="row 3"):
            food.store.get("d2")
        assert food.store.get("d1").id == "d1"
        assert [found.split(" ")[1] for found in engine.verify("food").damage] == ["3"]
        food.delete(["d2"])
        food.upsert([Document("d2", "pear")])
        assert food.store.get("d2").text == "pear"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM embedding WHERE row = 3",
        "UPDATE document SET deleted = 2 WHERE row = 3",
        "UPDATE document SET metadata = '{}' WHERE row = 3",
    ],
)
def test_damage_that_no_answer_has_to_read_is_named_by_verify(home: Path, statement: str) -> None:
    change(home, statement)
    with opened(home) as engine:
        assert not engine.verify("food").ok


def test_the_record_of_a_clean_close_of_an_earlier_release_is_ignored(home: Path) -> None:
    (home / "food" / "clean-close.json").write_text('{"format": 1}')
    with opened(home) as engine:
        assert engine.collection("food").search("apple").hits
        assert engine.verify("food").ok
