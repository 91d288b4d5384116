"""Verdicts of the gate in the store: durable, checked, kept when a version goes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import CorruptData
from dsearch.store import MemoryRow, Store, StoredVerdict

QUERIES = np.array([-5, 3, 2**62], np.int64)
VERDICT = StoredVerdict("train", QUERIES, 0.05, passed=False, version="v1", judged_at=1_790_000_000)


def test_verdicts_are_read_back_in_their_order(store: Store, folder: Path) -> None:
    assert list(store.verdicts()) == []
    store.add_verdict(VERDICT)
    store.add_verdict(StoredVerdict("tune", QUERIES[:1], 0.01, passed=True))
    store.close()
    with Store.open(folder) as again:
        first, second = again.verdicts()
        assert again.verify().ok
    assert np.array_equal(first.queries, QUERIES)
    assert (first.kind, first.alpha, first.passed, first.version) == ("train", 0.05, False, "v1")
    assert (first.judged_at, second.passed, second.version) == (1_790_000_000, True, None)


def test_a_version_that_is_deleted_leaves_its_verdict(store: Store) -> None:
    store.add_model("v1", "v0", {})
    store.add_verdict(VERDICT)
    store.delete_model("v1")
    assert [verdict.version for verdict in store.verdicts()] == ["v1"]


def test_rows_of_the_query_memory_follow_verdicts_and_a_backup_has_both(store: Store, tmp_path: Path) -> None:
    store.add_verdict(VERDICT)
    store.add_judged([MemoryRow("one", np.zeros(store.dimension, np.float32), {3: 1.0})])
    store.backup(tmp_path / "copy")
    with Store.open(tmp_path / "copy", readonly=True) as copy:
        assert (len(copy.verdicts()), len(copy.judged())) == (1, 1)
        assert copy.verify().ok


@pytest.mark.parametrize("change", ["UPDATE verdict SET passed = 1", "DELETE FROM verdict"])
def test_a_changed_or_lost_verdict_is_damage(store: Store, folder: Path, change: str) -> None:
    store.add_verdict(VERDICT)
    store.close()
    with sqlite3.connect(folder / "documents.db") as connection:
        connection.execute(change)
    with Store.open(folder) as again:
        assert not again.verify().ok


def test_digests_that_cannot_be_read_are_refused(store: Store, folder: Path) -> None:
    store.add_verdict(VERDICT)
    store.close()
    with sqlite3.connect(folder / "documents.db") as connection:
        connection.execute("UPDATE verdict SET queries = 'x'")
    with Store.open(folder) as again, pytest.raises(CorruptData, match="verdict 1"):
        again.verdicts()
