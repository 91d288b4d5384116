"""Documents that were shown are kept within bounds, and what was written since is shown all the same."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from support.fakes import HashingEncoder
from support.guarded import guarded

from dsearch.engine import SearchEngine
from dsearch.engine.state.caches import DocumentCache
from dsearch.errors import CorruptData, NotFound
from dsearch.lru_cache import LruCache
from dsearch.types import Document

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


@pytest.fixture
def collection(tmp_path):
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        collection = engine.create("notes")
        collection.ingest(
            [Document(f"d{n}", f"honey number {n}", metadata={"tags": ["a", {"n": n}]}) for n in range(20)]
        )
        yield collection


def shown(collection, limit=20):
    return {hit.id: hit for hit in collection.search("honey", limit=limit).hits}


def damage(collection):
    with sqlite3.connect(collection.store.path / "documents.db") as connection:
        connection.execute("UPDATE document SET text = replace(text, 'honey', 'money')")
    connection.close()


def test_a_document_is_read_and_held_against_its_digest_once(collection):
    before = shown(collection)
    damage(collection)
    assert shown(collection) == before
    collection.document_cache.clear()
    with pytest.raises(CorruptData):
        shown(collection)


def test_what_was_never_shown_is_held_against_its_digest(collection):
    damage(collection)
    with pytest.raises(CorruptData):
        shown(collection)
    assert len(collection.document_cache) == 0


def test_updates_and_deletions_are_seen_at_once(collection):
    shown(collection)
    collection.upsert([Document("d3", "honey and bread")])
    collection.update_metadata("d4", {"tags": None, "year": 2000})
    collection.delete(["d5"])
    after = shown(collection)
    assert after["d3"].text == "honey and bread"
    assert after["d3"].metadata == {}
    assert after["d4"].metadata == {"year": 2000}
    assert "d5" not in after


def test_a_cursor_goes_on_in_the_documents_of_its_state(collection):
    first = collection.search("honey", limit=10)
    rest = {hit.id: hit for hit in collection.search("honey", limit=10, cursor=first.next_cursor).hits}
    changed = next(iter(rest))
    collection.upsert([Document(changed, "honey and bread")])
    shown(collection)
    again = collection.search("honey", limit=10, cursor=first.next_cursor).hits
    assert {hit.id: hit.text for hit in again} == {id: hit.text for id, hit in rest.items()}


def test_a_reader_may_change_what_it_got(collection):
    hits = shown(collection)
    hits["d7"].metadata["tags"][1]["n"] = "changed"
    hits["d7"].metadata["more"] = 1
    assert shown(collection)["d7"].metadata == {"tags": ["a", {"n": 7}]}


def test_nothing_is_kept_of_a_collection_that_was_closed(collection):
    shown(collection)
    assert len(collection.document_cache) == 20
    collection.close()
    assert len(collection.document_cache) == collection.document_cache.bytes == 0


def test_the_least_recently_shown_go_first_and_the_bound_holds(collection):
    one = DocumentCache(collection.store)
    one.of(np.array([1]))
    kept = DocumentCache(collection.store, max_bytes=4 * one.bytes)
    for row in (1, 2, 3, 1, 4, 5):
        assert kept.of(np.array([row]))[row].id == f"d{row - 1}"
        assert kept.bytes <= 4 * one.bytes
    assert len(kept) == 4
    damage(collection)
    kept.of(np.array([1, 5]))  # there still
    with pytest.raises(CorruptData):
        kept.of(np.array([2]))


def test_a_document_larger_than_the_bound_is_not_kept(collection):
    kept = DocumentCache(collection.store, max_bytes=100)
    assert kept.of(np.array([1, -1]))[1].id == "d0"
    assert (len(kept), kept.bytes) == (0, 0)


def test_a_row_that_is_not_there_is_an_error(collection):
    with pytest.raises(NotFound):
        collection.document_cache.of(np.array([1, 99]))


def test_a_document_that_two_threads_read_is_counted_once(collection, monkeypatch):
    alone, kept = DocumentCache(collection.store), DocumentCache(collection.store)
    alone.of(np.array([1]))
    read, others = collection.store.documents, [kept.of]

    def first_is_another(rows):
        if others:
            others.pop()(np.array([1]))
        return read(rows)

    monkeypatch.setattr(collection.store, "documents", first_is_another)
    assert kept.of(np.array([1]))[1].id == "d0"
    assert others == []
    assert (len(kept), kept.bytes) == (1, alone.bytes)
