"""Verification of what lies beside embeddings: passages, files of models, and the history of a generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.indexing import ingest
from dsearch.engine.indexing.ingest import build_generation
from dsearch.engine.maintenance import verify as module
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.maintenance.verify import (
    Verification,
    accept_loss,
    damaged_model_files,
    verify_collection,
)
from dsearch.errors import CollectionNotFound, CorruptData
from dsearch.index import PassageTable
from dsearch.store import Store
from dsearch.types import Document

Change = Callable[[PassageTable], PassageTable]


@pytest.fixture
def long(engine: SearchEngine) -> Collection:
    made = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    made.ingest([Document(f"d{i}", f"word{i} " * (10 + 25 * (i % 2))) for i in range(6)])
    assert len(made.snapshot.generation.passages) > 2
    return made


def moved(name: str, by: Any) -> Change:
    def change(table: PassageTable) -> PassageTable:
        return replace(table, **{name: getattr(table, name) + by}) if len(table.owners) else table

    return change


CHANGES: dict[str, Change] = {
    "places": moved("spans", 1),
    "embeddings": lambda table: replace(table, embeddings=-table.embeddings),
    "owners": moved("owners", -1),
}


@pytest.mark.parametrize("block", [2, 8192])
@pytest.mark.parametrize("what", CHANGES)
def test_passages_that_are_not_the_stores_are_found(
    long: Collection, monkeypatch: pytest.MonkeyPatch, what: str, block: int
) -> None:
    """Whole by every digest, but built of other passages."""
    monkeypatch.setattr(module, "_AT_A_TIME", block)
    assert verify_collection(long.store.path).ok
    cut = ingest.passage_table
    monkeypatch.setattr(ingest, "passage_table", lambda *given: CHANGES[what](cut(*given)))
    number = build_generation(long.store)
    damage = verify_collection(long.store.path).damage
    rows = "1 to 6" if block > 6 else "1 to 2"
    assert damage[0] == (
        f"generation {number}: passages of rows {rows} are not those of the store; build it again"
    )


def test_an_embedding_that_differs_in_one_number_is_found(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole by every digest, but built of other numbers."""
    blocks = ingest._embedding_blocks

    def changed(store: Store, rows: np.ndarray) -> Iterator[np.ndarray]:
        for block in blocks(store, rows):
            block = block.copy()
            block[4, 7] += 1e-6
            yield block

    monkeypatch.setattr(ingest, "_embedding_blocks", changed)
    number = build_generation(collection.store)
    (damage,) = verify_collection(collection.store.path).damage
    assert damage.startswith(f"generation {number}: not those of the store: 1 embedding, ")
    assert damage.endswith("the first is that of row 5; build it again")


@pytest.mark.parametrize("what", ["digest", "size", "gone"])
def test_files_of_models_are_held_against_the_register(collection: Collection, what: str) -> None:
    version = collection.add_model(Head(32), {})
    (record,) = collection.store.models()
    path = collection.store.path
    assert list(damaged_model_files(path, record)) == []
    file = path / "models" / version / "head.safetensors"
    if what == "digest":
        file.write_bytes(file.read_bytes() + b" ")
        expected = f"model {version}: {file} has SHA-256 "
    elif what == "size":
        record.record["files"]["head.safetensors"]["bytes"] += 1
        size = file.stat().st_size
        expected = f"model {version}: {file} has {size} bytes, registered were {size + 1}"
    else:
        file.unlink()
        expected = f"model {version}: {file} cannot be read ("
    (damage,) = damaged_model_files(path, record)
    assert damage.startswith(expected)
    assert what == "size" or verify_collection(path).damage == (damage,)


def test_a_generation_is_held_against_the_rows_of_its_own_time(collection: Collection) -> None:
    """What was written and deleted since is no damage."""
    collection.upsert([Document("new", "apple")])
    collection.delete(["d0", "d7"])
    report = verify_collection(collection.store.path)
    assert report.ok
    assert (report.documents, report.embeddings) == (15, 17)
    store = collection.store
    snapshot = store.generations()[-1].snapshot
    rows = module._rows_as_of(store, snapshot)
    assert rows is not None
    assert rows.tolist() == list(range(1, 17))
    assert np.array_equal(rows, collection.snapshot.generation.rows)


def test_a_write_while_rows_are_read_is_none_of_that_time(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, snapshot = collection.store, Store.snapshot
    late = iter(["late"])

    def between(store: Store) -> Any:
        for id in late:
            collection.upsert([Document(id, "lemon")])
        return snapshot(store)

    monkeypatch.setattr(Store, "snapshot", between)
    rows = module._rows_as_of(store, store.generations()[-1].snapshot)
    assert rows is not None
    assert next(late, None) is None
    assert rows.tolist() == list(range(1, 17))


def test_rows_of_a_time_that_is_forgotten_are_not_known(collection: Collection) -> None:
    collection.delete(["d0"])
    compact(collection, rebuild=True, spawned=False)
    assert module._rows_as_of(collection.store, 1) is None
    (live,) = collection.store.generations()
    rows = module._rows_as_of(collection.store, live.snapshot)
    assert rows is not None
    assert rows.tolist() == list(range(2, 17))


def test_a_report_as_json() -> None:
    problem = CorruptData("something is damaged")
    report = Verification("food", 3, 5, (1, 2), ("v1",), (problem,))
    assert report.to_dict() == {
        "name": "food",
        "documents": 3,
        "embeddings": 5,
        "generations": (1, 2),
        "models": ("v1",),
        "damage": (str(problem),),
        "ok": False,
    }
    assert replace(report, problems=()).ok


def test_a_loss_is_accepted_once_and_nothing_else_is(tmp_path: Path) -> None:
    folder = tmp_path / "food"
    with pytest.raises(CollectionNotFound):
        accept_loss(folder)
    with Store.create(folder, name="food", encoder={}, dimension=4) as store:
        store.upsert([Document("a", "apple")])
        copies = {path.name: path.read_bytes() for path in folder.glob("documents.db*")}
        store.upsert([Document("b", "bread")])
    assert accept_loss(folder) is None
    for path in folder.glob("documents.db*"):
        path.unlink()
    for name, content in copies.items():
        (folder / name).write_bytes(content)
    loss = accept_loss(folder)
    assert loss is not None
    assert str(folder) in loss
    assert accept_loss(folder) is None
    with Store.open(folder) as store:
        assert [document.id for document in store.list()] == ["a"]
        assert store.upsert([Document("c", "cheese")]).sequence > 2  # lost numbers are not used again
