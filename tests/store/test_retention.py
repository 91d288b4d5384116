"""Generations that are retired, and deletions that are purged: gone from every file, and nothing else."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import Conflict, Gone, InvalidRequest, NotFound, Unavailable
from dsearch.store import DocumentCounts, Store
from dsearch.types import Document


def build(store: Store, *, live: bool = True) -> int:
    """Register a generation of the present rows, without files."""
    number, snapshot = store.next_generation_number(), store.snapshot()
    store.add_generation(
        number, manifest_digest="ab" * 32, rows=len(snapshot.rows), snapshot=snapshot.sequence
    )
    if live:
        store.publish_generation(number)
    return number


def test_the_newest_generations_and_the_live_one_stay(store, folder):
    for _ in range(6):
        build(store)
    assert store.retirable_generations() == [1, 2, 3]
    store.publish_generation(2)  # rolled back
    assert store.retirable_generations() == [1, 3]
    assert store.retirable_generations(keep=1) == [1, 3, 4, 5]
    assert store.retirable_generations(keep=9) == []
    with pytest.raises(InvalidRequest, match="keep=0; use 1 or more"):
        store.retirable_generations(keep=0)
    with pytest.raises(Conflict, match="generation 2 is live; publish another one first"):
        store.retire_generation(2)
    for number in (1, 3, 6):
        store.retire_generation(number)
    with pytest.raises(NotFound, match="generation 3 is not registered"):
        store.retire_generation(3)
    assert [generation.number for generation in store.generations()] == [2, 4, 5]
    assert store.next_generation_number() == 7  # 6 was live once: its name is not given again
    with pytest.raises(NotFound, match="generation 6 is not registered"):
        store.publish_generation(6)
    assert store.verify().ok
    store.close()
    with Store.open(folder) as again:
        assert [generation.number for generation in again.generations()] == [2, 4, 5]
        assert again.verify().ok


def content_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_what_was_purged_is_in_no_file_any_more(store, folder, embed):
    documents = [
        Document(f"d{n}", f"secret-{n} " * (1 + 70 * n), f"title-{n}", {"m": f"meta-{n}"}) for n in range(40)
    ]
    vectors = embed(*[document.content for document in documents])
    store.upsert(documents, vectors)
    store.update_metadata("d1", {"m": "changed"})
    store.delete([f"d{n}" for n in range(2, 40, 2)])
    assert b"secret-38 " in content_of(folder)
    report = store.purge()
    assert (report.sequence, report.rows, report.kept, report.overwritten) == (4, 20, 0, True)
    connection = sqlite3.connect(folder / "documents.db")
    assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)  # the space is given back
    connection.close()
    content = content_of(folder)
    for n in range(2, 40, 2):
        for left in (
            f"secret-{n} ".encode(),
            f"title-{n}\0".encode(),
            f'meta-{n}"'.encode(),
            vectors[n].tobytes(),
        ):
            assert left not in content
    assert b'meta-1"' not in content  # the replaced version, too
    assert b"secret-3 " in content
    assert store.count() == DocumentCounts(21, 0, 0)
    assert store.get("d1").metadata == {"m": "changed"}
    kept = store.rows()
    np.testing.assert_array_equal(store.embeddings(kept), embed(*store.contents(kept)))
    assert store.verify().ok
    assert store.upsert([Document("new", "x")]).rows == (42,)  # no row number is given twice
    with pytest.raises(NotFound, match="row 3 is not in this collection"):
        store.documents([3])
    store.close()
    with Store.open(folder) as again:
        assert again.verify().ok
        report = again.purge()
        assert (report.rows, report.sequence) == (0, again.sequence)


def test_a_purge_keeps_what_a_generation_needs(store, embed):
    store.upsert([Document(id, id) for id in "abc"], embed("a", "b", "c"))
    store.delete(["a"])
    build(store)  # as of 2
    store.delete(["b"])  # 5
    snapshot = store.live_generation().snapshot
    assert store.changes_since(snapshot).removed.tolist() == [2]
    report = store.purge()
    assert (report.rows, report.kept) == (1, 1)
    assert store.changes_since(snapshot).removed.tolist() == [2]  # or searches would bring b back
    assert store.documents([2])[0].id == "b"
    build(store)
    assert store.purge().kept == 1  # the older one is there still
    store.retire_generation(1)
    assert (store.purge().rows, store.count().tombstones) == (1, 0)
    assert store.changes_since(store.live_generation().snapshot).removed.tolist() == []
    assert store.verify().ok


def test_what_a_purge_forgot_is_not_taken_for_nothing(store, embed):
    store.upsert([Document("a", "a"), Document("b", "b")], embed("a", "b"))
    before = store.snapshot()
    store.delete(["a"])
    store.purge()
    with pytest.raises(Gone, match=r"changes since operation 1 .* deletions up to operation 2 were purged"):
        store.changes_since(before.sequence)
    # A build that began before the purge would serve a for ever.
    with pytest.raises(Conflict, match=r"generation 1 is as of operation 1, but .* build it again"):
        store.add_generation(1, manifest_digest="ab" * 32, rows=2, snapshot=before.sequence)
    assert build(store) == 1
    assert store.changes_since(2).removed.tolist() == []


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_last_of_the_deletions_that_a_purge_forgot_counts(store, embed, order):
    store.upsert([Document(id, id) for id in "abc"], embed("a", "b", "c"))
    store.delete([order[0]])
    between = store.snapshot()
    store.delete([order[1]])
    assert store.purge().rows == 2
    with pytest.raises(Gone, match="deletions up to operation 3 were purged"):
        store.changes_since(between.sequence)


def test_a_reader_that_holds_an_old_state_keeps_it_and_the_report_says_so(store, folder, monkeypatch):
    import dsearch.store.sqlite.connection as connect

    monkeypatch.setattr(connect, "_BUSY_TIMEOUT_S", 0.1)
    store.close()
    with Store.open(folder) as again:
        again.upsert([Document(id, f"{id} secret") for id in "abc"])
        reading = again.export()
        next(reading)
        again.delete(["b"])
        assert not again.purge().overwritten
        assert [document.text for document in reading] == ["b secret", "c secret"]
        assert again.purge().overwritten
        assert b"b secret" not in content_of(folder)


def test_a_closed_store_is_not_purged(store):
    store.close()
    with pytest.raises(Unavailable, match="was closed"):
        store.purge()
