"""Damaged documents end all answers of a collection, as a damaged generation does."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.engine.indexing.clean_close import FILE_NAME, leave_clean_close, read_clean_close
from dsearch.errors import CorruptData
from dsearch.index.durable import file_identity
from dsearch.types import Document

LOST = "DELETE FROM embedding WHERE row = 3"


@pytest.fixture
def home(tmp_path: Path, documents: list[Document]) -> Path:
    """Closed as it should be."""
    with opened(tmp_path / "home") as engine:
        engine.create("food").ingest(documents)
    return tmp_path / "home"


def opened(home: Path) -> SearchEngine:
    return SearchEngine(home, encoder=HashingEncoder)


def change(home: Path, statement: str) -> None:
    connection = sqlite3.connect(home / "food" / "documents.db")
    connection.executescript(statement)
    connection.close()


def test_lost_rows_end_all_answers_and_builds(home: Path) -> None:
    change(home, LOST)
    with opened(home) as engine:
        food = engine.collection("food")
        for ask in (
            lambda: food.search("apple"),
            lambda: food.search("apple", mode="keyword"),
            lambda: food.search_batch(["apple"]),
            lambda: food.similar(["d0"]),
            lambda: food.attend(["apple"]),
            lambda: food.predict(["apple"], field="number"),
            lambda: food.layer_and_stamp(),
            lambda: food.snapshot,
            lambda: food.store.list(),
            lambda: food.refresh(),
        ):
            with pytest.raises(CorruptData, match=r"documents\.db is damaged"):
                ask()
        assert food.verification["state"] == "damaged"
        assert "documents.db" in food.verification["problem"]
        assert engine.damaged() == ["food"]
        assert food.store.live_generation() in food.store.generations()  # not taken for damaged
    assert not (home / "food" / FILE_NAME).exists() or _documents_proven_at(home) is None


def test_a_damaged_document_that_is_replaced_brings_the_answers_back(home: Path) -> None:
    change(home, "UPDATE document SET text = 'x' WHERE row = 3")
    with opened(home) as engine:
        food = engine.collection("food")
        with pytest.raises(CorruptData, match="row 3"):
            food.search("apple")
        food.delete(["d2"])
        food.upsert([Document("d2", "pear")])
        assert "d2" in [hit.id for hit in food.search("pear").hits]
        assert food.verification["state"] == "proven"


def test_damage_found_while_it_answers_ends_the_answers(home: Path) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        assert food.search("apple").hits
        assert food.store.proof is not None
        change(home, LOST)
        food.store.proof.now()
        with pytest.raises(CorruptData):
            food.search("apple")


def _documents_proven_at(home: Path) -> float | None:
    closed = read_clean_close(home / "food" / FILE_NAME)
    return None if closed is None else closed.documents_proven_at


def rewritten(home: Path, **changes: object) -> None:
    path = home / "food" / FILE_NAME
    closed = read_clean_close(path)
    assert closed is not None
    leave_clean_close(home / "food", replace(closed, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["as it was", "touched", "copied", "a day", "never", "an older record"])
def test_the_first_answer_waits_unless_the_file_is_as_it_was_closed(
    home: Path, tmp_path: Path, what: str
) -> None:
    proven_at = time.time() - 3600
    rewritten(home, documents_proven_at=proven_at)
    if what == "touched":
        os.utime(home / "food" / "documents.db")
    elif what == "copied":
        home = Path(shutil.copytree(home, tmp_path / "copy", copy_function=shutil.copy2))
    elif what == "a day":
        rewritten(home, documents_proven_at=proven_at - 24 * 3600)
    elif what == "never":
        rewritten(home, documents_proven_at=None)
    elif what == "an older record":
        rewritten(home, documents_proven_at=None, database=None)
    with opened(home) as engine:
        food = engine.collection("food")
        assert food.store.proof is not None
        if what == "as it was":
            assert food.store.proof.proven_at == proven_at  # and it is verified later
            return
        food.store.require_sound()
        assert (food.store.proof.proven_at or 0) > proven_at
    closed = read_clean_close(home / "food" / FILE_NAME)
    if closed is not None:
        assert closed.database == file_identity(home / "food" / "documents.db")
        assert (closed.documents_proven_at or 0) > proven_at
