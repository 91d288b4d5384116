"""Readers in many threads beside the writer: they never wait for it and each sees one state."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsearch.types import Document


def test_every_read_is_of_one_state_while_writes_go_on(store, embed):
    """The writer keeps ten documents, all of one version; a reader that saw two versions saw a torn state."""
    ids = [f"d{number}" for number in range(10)]

    def write(version: int) -> None:
        text = f"version {version}"
        store.upsert([Document(id, text) for id in ids], np.repeat(embed(text), len(ids), axis=0))

    write(0)
    done = threading.Event()

    def read() -> int:
        reads = 0
        while not done.is_set() or reads == 0:
            assert len({document.text for document in store.list()}) == 1
            snapshot = store.snapshot()
            assert len(snapshot.rows) == 10
            texts = {document.text for document in store.documents(snapshot.rows)}
            assert texts == {f"version {snapshot.sequence - 1}"}
            assert len(np.unique(store.embeddings(snapshot.rows), axis=0)) == 1
            changes = store.changes_since(snapshot.sequence)
            assert len(changes.added) == (10 if changes.sequence > snapshot.sequence else 0)
            reads += 1
        return reads

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        for version in range(1, 60):
            write(version)
        done.set()
        assert all(reader.result() > 0 for reader in readers)
    assert store.verify().ok


def test_a_reader_does_not_wait_for_an_open_write(store, embed):
    store.upsert([Document("a", "x")], embed("x"))
    with store._journal.operation() as operation:
        operation.connection.execute("UPDATE document SET text = 'unfinished'")
        assert store.get("a").text == "x"
        assert store.sequence == 1


def test_writes_from_many_threads_are_taken_one_at_a_time(store):
    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda n: store.upsert([Document(f"d{n}", "x")]), range(64)))
    assert sorted(receipt.sequence for receipt in receipts) == list(range(1, 65))
    assert store.count().documents == 64
    assert store.verify().ok


def test_an_error_in_the_middle_of_an_operation_leaves_nothing_of_it(store, monkeypatch):
    import dsearch.store.store as write

    store.upsert([Document("a", "x")])
    before = store.snapshot(), store.list(), store.count()

    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patched:
        patched.setattr(write, "_insert_documents", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            store.upsert([Document("a", "y"), Document("b", "y")])
    assert repr((store.snapshot(), store.list(), store.count())) == repr(before)
    assert store.upsert([Document("b", "y")]).sequence == 2
    assert store.verify().ok
