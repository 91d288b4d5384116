"""Flipped bits: `verify` names what is damaged, and nothing damaged is served as if it were whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from support.store.store_trials import flip, flips

from dsearch.errors import CorruptData
from dsearch.store import Passages, Store
from dsearch.types import Document

ROWS = 40


@pytest.fixture
def filled(store, folder, embed) -> Path:
    """A closed collection with every kind of row: live, superseded, deleted, pending, generations, models."""
    documents = [Document(f"d{n}", f"text number {n} " * 40, metadata={"n": n}) for n in range(ROWS)]
    cut = {at: Passages(np.array([[0, 9], [5, 20], [20, 40]]), embed(f"{at}b", f"{at}c")) for at in (3, 4, 5)}
    store.upsert(documents, embed(*[document.content for document in documents]), passages=cut)
    store.upsert([Document("d0", "another text")])
    store.delete(["d1", "d2"])
    store.add_generation(1, manifest_digest="ab" * 32, rows=ROWS, snapshot=1, record={"kind": "flat"})
    store.publish_generation(1)
    store.add_model("v1", "v0", {"gate": 0.5})
    store.promote("v1")
    assert store.verify().damage == ()
    store.close()
    return folder


def damage_of(folder: Path) -> tuple[str, ...]:
    with Store.open(folder, readonly=True) as store:
        return store.verify().damage


def test_a_flip_in_a_text_is_named(filled):
    place = (filled / "documents.db").read_bytes().index(b"text number 17 ")
    flip(filled, place + 3)
    assert damage_of(filled)[0] == "row 18 (id 'd17'): text or metadata are not what was written"
    with Store.open(filled) as store, pytest.raises(CorruptData, match="row 18"):
        store.get("d17")


def test_a_flip_that_leaves_no_utf8_is_named(filled):
    place = (filled / "documents.db").read_bytes().index(b"text number 17 ")
    flip(filled, place + 3, bit=7)
    assert damage_of(filled)[0] == "row 18 (id 'd17'): text or metadata are not what was written"
    with Store.open(filled) as store, pytest.raises(CorruptData):
        store.get("d17")


def test_a_flip_in_an_embedding_is_named(filled, embed):
    vector = embed(("text number 17 " * 40).strip()).tobytes()
    place = (filled / "documents.db").read_bytes().index(vector)
    flip(filled, place + 5)
    assert damage_of(filled)[0] == "row 18: its embedding is not what was written"
    with Store.open(filled) as store, pytest.raises(CorruptData, match="row 18: its embedding"):
        store.embeddings(store.rows())


CHANGES = {
    "a row lost": "DELETE FROM document WHERE row = 9",
    "an embedding lost": "DELETE FROM embedding WHERE row = 9",
    "a deleted document revived": "UPDATE document SET deleted = NULL WHERE row = 2",
    "a document deleted": "UPDATE document SET deleted = 2 WHERE row = 9",
    "an operation number": "UPDATE document SET written = 2 WHERE row = 9",
    "a negative number": "UPDATE document SET written = -2 WHERE row = 9",
    "an embedding's operation number": "UPDATE embedding SET written = 2 WHERE row = 9",
    "two embeddings exchanged": "UPDATE embedding SET row = row - 19 WHERE row IN (9, 10);"
    "UPDATE embedding SET row = -row WHERE row < 0",
    "digest and text changed together": "UPDATE document SET text = 'x', digest = zeroblob(32) WHERE row = 9",
    "a document forgotten to encode": "DELETE FROM pending",
    "a document to encode twice": "INSERT INTO pending VALUES (9, 10)",
    "a count": "UPDATE state SET documents = documents + 1",
    "a count of tombstones": "UPDATE state SET tombstones = 0",
    "a text's type": "UPDATE document SET text = CAST(text AS BLOB) WHERE row = 9",
    "a value's type": "UPDATE document SET value = CAST('1' AS BLOB) WHERE row = 9",
    "the live model": "DELETE FROM live WHERE kind = 'model'",
    "a model's record": "UPDATE model SET record = '{}'",
    "a generation's manifest": "UPDATE generation SET manifest_digest = 'cd'",
    "a generation's rows": "UPDATE generation SET rows = 41",
    "the encoder": "UPDATE meta SET value = '{}' WHERE key = 'encoder'",
    "the set digest": "UPDATE state SET digest = zeroblob(32)",
}


def test_a_text_that_has_become_a_blob_of_the_same_bytes_is_not_read(filled):
    """One flipped bit in the header of SQLite's record does that."""
    connection = sqlite3.connect(filled / "documents.db")
    connection.executescript(CHANGES["a text's type"])
    connection.close()
    with Store.open(filled) as store, pytest.raises(CorruptData, match="row 9"):
        store.get("d8")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE state SET sequence = 'x'",
        "UPDATE state SET previous_sequence = 'x'",
        "UPDATE state SET digest = 'x'",
        "DELETE FROM state",
        "UPDATE generation SET record = '{'",
        "UPDATE model SET record = CAST('{' AS BLOB)",
        "UPDATE model SET record = x'ff'",
    ],
)
@pytest.mark.parametrize("readonly", [True, False])
def test_a_record_that_is_none_is_refused_in_words(filled, change, readonly):
    """One flipped bit in the header of SQLite's record makes a number a text, or nothing."""
    connection = sqlite3.connect(filled / "documents.db")
    connection.executescript(change)
    connection.close()

    def read() -> None:
        with Store.open(filled, readonly=readonly) as store:
            store.live_generation()
            store.models()

    with pytest.raises(CorruptData, match="restore a backup"):
        read()


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_single_row_can_tell_is_found(filled, change):
    connection = sqlite3.connect(filled / "documents.db")
    connection.executescript(CHANGES[change])
    connection.commit()
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)  # SQLite sees nothing wrong
    connection.close()
    if change == "the set digest":
        with pytest.raises(CorruptData, match="other rows than its watermark acknowledged"):
            Store.open(filled)
    else:
        assert damage_of(filled)


def test_flips_anywhere_change_no_answer_unnoticed(filled, tmp_path):
    """Each flip is refused at opening, named by `verify`, or changes nothing that can be read."""
    seen = flips(filled, tmp_path, 200, rows=ROWS)
    assert seen["found"] > 40
    assert seen["SQLite found"] < seen["found"] / 2  # without our digests most would have gone unnoticed
