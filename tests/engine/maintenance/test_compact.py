"""Verifying, compacting, purging, exporting, counting."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine.bare_generation import add_bare_generation
from support.fakes import HashingEncoder

from dsearch.corpus import read_sources
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.calls import statistics
from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.maintenance import compact as module
from dsearch.engine.maintenance.backup import export_beir, export_lines
from dsearch.engine.maintenance.compact import Compaction, compact
from dsearch.errors import Cancelled, CollectionNotFound
from dsearch.index import Generation
from dsearch.store.sqlite import connection
from dsearch.types import Document, Progress

SECRET = "zanzibarquux"


FIND = """
import sys
from pathlib import Path

needles = [sys.argv[2].encode(coding) for coding in ("utf-8", "utf-16-le", "utf-32-le")]
for path in sorted(Path(sys.argv[1]).rglob("*")):
    if path.is_file() and any(one in path.read_bytes() for one in needles):
        print(path.name)
"""


def holding(folder: Path, word: str) -> list[str]:
    """The files in whose bytes a word stands, in any of the ways a text is stored.

    Another process looks: closing a file of SQLite's here would drop the locks of its connections.
    """
    command = [sys.executable, "-S", "-c", FIND, str(folder), word]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_what_is_whole_verifies(engine: SearchEngine, collection: Collection) -> None:
    collection.upsert([Document(id="new", text="apple")])
    collection.delete(["d1"])
    collection.add_model(collection.head("v0"), {})
    report = engine.verify("food")
    assert report.ok
    assert (report.name, report.documents, report.embeddings) == ("food", 16, 17)
    assert report.generations == (1, 2)
    assert report.models == ("v1",)
    engine.set_alias("live", "food")
    assert engine.verify("live").name == "food"
    with pytest.raises(CollectionNotFound):
        engine.verify("none")


def test_a_flipped_bit_in_any_file_is_found(engine: SearchEngine, collection: Collection) -> None:
    collection.add_model(collection.head("v0"), {})
    folder = collection.store.path
    engine.close()
    kinds = {path.name: path for path in folder.rglob("*") if path.is_file()}
    kinds.pop("model.json")  # its content is in the register; the file is for people
    assert {"documents.db", "keys.faiss", "embeddings.npy", "rows.npy", "head.safetensors"} <= set(kinds)
    for name, path in kinds.items():
        whole = path.read_bytes()
        damaged = bytearray(whole)
        middle = (
            whole.find(b"number3") if name == "documents.db" else len(whole) // 2
        )  # pages have free space
        for position in (20, 4096 + 20) if name == "watermark" else (middle,):
            damaged[position] ^= 4
        path.write_bytes(damaged)
        with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
            assert not reader.verify("food").ok, name
        path.write_bytes(whole)
        path.with_name("documents.db-shm").unlink(missing_ok=True)
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
        assert reader.verify("food").ok


@pytest.mark.parametrize("wrong", ["embedding", "row missing", "row too much"])
def test_an_index_of_other_rows_than_the_stores_is_found(collection: Collection, wrong: str) -> None:
    """Whole by every digest, and registered, but not of what the store holds."""
    store = collection.store
    state = store.snapshot()
    rows, embeddings = state.rows, store.embeddings(state.rows)
    if wrong == "embedding":
        embeddings[3] = -embeddings[3]
    elif wrong == "row missing":
        rows, embeddings = rows[1:], embeddings[1:]
    else:
        rows, embeddings = np.append(rows, 99), np.append(embeddings, embeddings[:1], axis=0)
    number = add_bare_generation(store, rows, embeddings)
    from dsearch.engine.maintenance.verify import verify_collection

    damage = verify_collection(store.path).damage
    expected = {
        "embedding": "not those of the store: 1 embedding, the first is that of row 4",
        "row missing": f"generation {number}: 1 row of the store",
        "row too much": "1 row in it that the store did not have",
    }
    assert any(expected[wrong] in one for one in damage)


def test_passages_are_held_against_the_stores(engine: SearchEngine) -> None:
    made = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    made.ingest([Document(id=f"d{i}", text=f"word{i} " * (10 + 25 * (i % 2))) for i in range(6)])
    assert len(made.snapshot.generation.passages)
    assert engine.verify("long").ok
    engine.backup("long", engine.home.path.with_name("copy"))
    number = add_bare_generation(made.store)
    (damage,) = engine.verify("long").damage
    assert f"generation {number}: passages of rows 1 to 6 are not those of the store" in damage


def test_purged_text_is_in_no_file(engine: SearchEngine, collection: Collection) -> None:
    folder = collection.store.path
    collection.ingest(
        [Document(id="secret", title=SECRET, text="and " + SECRET * 3, metadata={SECRET: SECRET})]
    )
    collection.ingest([Document(id="other", text=f"kept {SECRET}")])
    collection.upsert([Document(id="other", text="kept")])
    for _ in range(2):
        collection.refresh()
    collection.search(SECRET)
    assert holding(folder, SECRET)
    collection.delete(["secret"])
    assert holding(folder, SECRET)  # a deletion alone leaves it in indexes and in the log
    report = compact(collection)
    assert holding(folder, SECRET) == []
    assert report.complete
    assert report.rows == 2
    assert [one.number for one in collection.store.generations()] == [report.generation]
    assert collection.search("kept").hits[0].id == "other"
    assert engine.verify("food").ok


def test_a_reader_of_an_older_generation_keeps_what_was_deleted_and_that_is_told(
    engine: SearchEngine, collection: Collection
) -> None:
    collection.ingest([Document(id="secret", text=SECRET)])
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
        reading = reader.collection("food").snapshot
        collection.delete(["secret"])
        report = compact(collection)
        assert not report.complete
        assert report.held == (reading.generation.number,)
        assert report.kept == 1
        assert reader.collection("food").search(SECRET, limit=1).hits[0].id == "secret"
    del reading
    report = compact(collection)
    assert report.complete
    assert holding(collection.store.path, SECRET) == []


@pytest.mark.parametrize("left", [{"kept": 1}, {"held": (3,)}, {"models": ("v1",)}, {"overwritten": False}])
def test_whatever_may_hold_what_was_deleted_makes_it_incomplete(left: dict[str, Any]) -> None:
    report = Compaction(
        bytes_before=2, bytes_after=1, generation=4, rows=5, kept=0, held=(), models=(), overwritten=True
    )
    assert report.complete
    assert not replace(report, **left).complete


def test_searches_at_work_are_waited_for(collection: Collection) -> None:
    """As long as the patience says; what one still holds after that is all there, and that is told."""
    collection.ingest([Document(id="secret", text=SECRET)])
    held = [collection.snapshot]
    collection.delete(["secret"])
    report = compact(collection, patience_s=0.1)
    assert (report.complete, report.kept) == (False, 1)
    rows = held[0].generation.rows
    assert SECRET in "".join(one.text for one in collection.store.documents(rows.tolist()))
    ended = threading.Timer(0.3, held.clear)
    ended.start()
    report = compact(collection, patience_s=30.0)
    ended.join()
    assert report.complete
    assert holding(collection.store.path, SECRET) == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that others use is given up after a moment."""
    monkeypatch.setattr(connection, "_BUSY_TIMEOUT_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_a_reader_of_the_database_is_waited_for(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log keeps what was deleted for as long as it reads; rows are counted over all tries."""
    collection.ingest([Document(id="secret", text=SECRET)])
    reader = sqlite3.connect(collection.store.path / "documents.db")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
    collection.delete(["secret"])
    assert not compact(collection).overwritten  # without patience
    collection.delete(["d1"])
    waits: list[int] = []

    def wait(cancelled: object) -> None:
        waits.append(len(waits))
        reader.rollback()

    monkeypatch.setattr(module, "_wait", wait)
    report = compact(collection, patience_s=30.0)
    reader.close()
    assert (waits, report.overwritten, report.rows) == ([0], True, 1)
    assert holding(collection.store.path, SECRET) == []


def test_what_is_deleted_after_the_beginning_is_not_promised(collection: Collection) -> None:
    collection.delete(["d1"])
    late = iter(["d2"])

    def delete_one(step: Progress) -> None:
        if step.stage == "purge" and step.done == 0:
            collection.delete(list(late))

    report = compact(collection, delete_one)
    assert (report.complete, report.rows, report.kept) == (True, 1, 0)
    assert collection.store.count().tombstones == 1
    stopped = threading.Event()
    held = collection.snapshot
    collection.delete(["d3"])
    threading.Timer(0.2, stopped.set).start()
    with pytest.raises(Cancelled, match="may be in files as before"):
        compact(collection, patience_s=30.0, cancelled=stopped.is_set)
    assert held.generation.number < collection.snapshot.generation.number


def test_a_model_with_an_index_of_its_own_that_has_deleted_documents_is_told(collection: Collection) -> None:
    collection.ingest([Document(id="secret", text=SECRET)])
    store = collection.store
    version = collection.add_model(collection.head("v0"), {})
    state = store.snapshot()
    Generation.build(
        store.path / "models" / version / "documents" / "000001",
        number=1_000_001,
        sequence=state.sequence,
        rows=state.rows,
        embeddings=store.embeddings(state.rows),
        texts=store.contents(state.rows),
        encoder=store.encoder,
    )
    assert compact(collection).complete
    collection.delete(["secret"])
    report = compact(collection)
    assert not report.complete
    assert report.models == (version,)
    collection.delete_model(version)
    assert compact(collection).complete
    assert holding(store.path, SECRET) == []


def test_compacting_takes_less_space_and_finds_the_same(collection: Collection) -> None:
    collection.ingest([Document(id=f"n{i}", text=f"number{i} apple " + "word " * 50) for i in range(300)])
    collection.delete([f"n{i}" for i in range(0, 300, 2)])
    before = collection.search("apple number17", limit=300).hits
    report = compact(collection)
    assert report.bytes_after < report.bytes_before
    assert report.complete
    after = collection.search("apple number17", limit=300).hits
    assert after[0].id == before[0].id == "n17"
    # Rare words are counted among what is there, so that others may change places.
    assert {hit.id for hit in after} == {hit.id for hit in before}
    again = compact(collection)
    assert again.generation == report.generation  # nothing to build
    assert compact(collection, rebuild=True).generation > report.generation


def test_exports_can_be_indexed_again(engine: SearchEngine, collection: Collection, tmp_path: Path) -> None:
    collection.upsert([Document(id="v", text="värde\n\u2028x", metadata={"a": [1, None]}, value=[0.5, 1.5])])
    documents = collection.store.list(limit=100)
    lines = io.BytesIO()
    assert export_lines(collection.store, lines.write) == 17
    (tmp_path / "out.jsonl").write_bytes(lines.getvalue())
    assert list(read_sources([str(tmp_path / "out.jsonl")])) == documents
    assert export_beir(collection.store, tmp_path / "beir") == 17
    assert list(read_sources([str(tmp_path / "beir")])) == documents
    some = io.BytesIO()
    assert export_lines(collection.store, some.write, {"number": {"lt": 3}}) == 3
    assert export_beir(collection.store, tmp_path / "some", {"number": {"lt": 3}}) == 3
    assert {document.id for document in read_sources([str(tmp_path / "some")])} == {"d0", "d1", "d2"}


def test_all_of_an_index_that_nothing_was_built_for_changed(engine: SearchEngine) -> None:
    few = engine.create("few")
    assert statistics(few)["delta"] == {"documents": 0, "share": 0.0}
    few.upsert([Document(id=str(number), text="new") for number in range(3)])
    assert statistics(few)["delta"] == {"documents": 3, "share": 1.0}


def test_statistics(engine: SearchEngine, collection: Collection) -> None:
    collection.upsert([Document(id="n", text="new"), Document(id="d3", text="changed")])
    collection.delete(["d1"])
    counted = statistics(collection)
    assert counted["documents"] == 16
    assert counted["deleted"] == 2
    assert counted["delta"] == {"documents": 4, "share": 0.25}  # two added, two gone of the sixteen built
    assert counted["keys"]["kind"] == "Flat"
    assert counted["keys"]["recall_at_10"] == 1.0
    assert [(one["number"], one["live"]) for one in counted["generations"]] == [(1, False), (2, True)]
    add_bare_generation(collection.store)  # built, and not made live
    assert [one["live"] for one in statistics(collection)["generations"]] == [False, True, False]
    assert counted["bytes"] >= sum(one["bytes"] for one in counted["generations"]) > 0
    assert counted["bytes_per_document"] == round(counted["bytes"] / 16, 1)
    assert collection.describe().keys == counted["keys"]
    folder = generation_folder(collection.store, 2)
    os.rename(folder, folder.with_name("elsewhere"))
    assert statistics(collection)["generations"][1]["bytes"] == 0
