"""Group commit: writers that wait in line share one commit and one mark, and each is told the truth."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.guarded import guarded
from support.patience import LATEST_S

import dsearch.store.sqlite.journal as journal
from dsearch.errors import CorruptData, InsufficientStorage, InvalidDocument, Unavailable
from dsearch.store import Store
from dsearch.store.sqlite.watermark import Watermark, WatermarkEntry, create_watermark, read_watermark
from dsearch.types import Document

checked = guarded(journal.Journal, "_group", "_closed")

FOREVER_S = 10.0**6


@pytest.fixture
def marks(monkeypatch) -> list[int]:
    """The operations that were marked, in order."""
    written: list[int] = []
    original = Watermark.write

    def note(self: Watermark, mark: WatermarkEntry) -> None:
        original(self, mark)
        written.append(mark.sequence)

    monkeypatch.setattr(Watermark, "write", note)
    return written


@contextmanager
def in_line(store: Store, *writes: Callable[[], object]) -> Iterator[list[Future[object]]]:
    """All writes wait in line when the block is entered; they run when it is left."""
    with ThreadPoolExecutor(len(writes)) as pool, store._journal._turn():
        futures = [pool.submit(write) for write in writes]
        while store._journal._waiting < len(writes):
            time.sleep(0.001)
        yield futures


def upsert(store: Store, id: str) -> Callable[[], object]:
    return lambda: store.upsert([Document(id, id)])


def test_those_in_line_share_one_commit_and_one_mark(store, marks, monkeypatch):
    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)
    with in_line(store, *[upsert(store, f"d{n}") for n in range(6)]) as futures:
        pass
    assert sorted(future.result().sequence for future in futures) == [1, 2, 3, 4, 5, 6]
    assert marks == [6]
    assert store.count().documents == 6
    assert store.verify().ok


def test_a_single_writer_waits_for_nobody(store, marks, monkeypatch):
    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)  # it would wait for ever
    for n in range(3):
        store.upsert([Document(f"d{n}", "x")])
    store.delete(["nobody"])
    assert marks == [1, 2, 3]


def test_nobody_is_acknowledged_before_the_mark(store, monkeypatch):
    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)
    seen: list[bool] = []
    original = Watermark.write

    def look(self: Watermark, mark: WatermarkEntry) -> None:
        time.sleep(0.02)
        seen.extend(future.done() for future in futures)
        original(self, mark)

    monkeypatch.setattr(Watermark, "write", look)
    unchanged = upsert(store, "d0")  # the second of these two changes nothing, but is promised the first
    with in_line(store, unchanged, unchanged, upsert(store, "d1")) as futures:
        pass
    assert seen == [False] * 3
    assert {future.result().sequence for future in futures} <= {1, 2}


def test_a_long_line_is_cut_at_the_window(store, marks, monkeypatch):
    monkeypatch.setattr(journal, "_WINDOW_S", 0.0)
    with in_line(store, *[upsert(store, f"d{n}") for n in range(4)]):
        pass
    assert marks == [1, 2, 3, 4]


def test_those_who_were_waited_for_and_never_came_are_not_waited_for(store, marks):
    store._journal._waiting += 1  # as one whose wait was interrupted
    store.upsert([Document("a", "x")])
    assert marks == [1]


def test_one_that_fails_is_undone_alone(store, marks, monkeypatch):
    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)
    store.upsert([Document("a", "x", metadata={"n": 1})])

    def fail() -> None:
        with store._journal.operation() as operation:
            operation.connection.execute("UPDATE document SET text = 'torn'")
            operation.counters["last_row"] += 7
            operation.add_fact(1)
            raise RuntimeError("in the middle")

    writes = [
        upsert(store, "b"),
        fail,
        fail,
        upsert(store, "c"),
        lambda: store.update_metadata("a", {"n": {1}}),
    ]
    with in_line(store, *writes) as futures:
        pass
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [
        type(None),
        RuntimeError,
        RuntimeError,
        type(None),
        InvalidDocument,
    ]
    assert [document.text for document in store.list()] == ["x", "b", "c"]
    assert store.sequence == 3
    assert store.verify().ok


@pytest.mark.parametrize("failure", ["sync", "commit"])
def test_a_failed_sync_acknowledges_none_of_them(store, folder, failure, monkeypatch):
    import dsearch.store.sqlite.watermark as watermark

    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)
    store.upsert([Document("a", "a")])
    if failure == "sync":
        monkeypatch.setattr(watermark, "sync_file", broken)
    else:
        monkeypatch.setattr(journal, "write_state", broken)
    with in_line(store, upsert(store, "b"), upsert(store, "c"), upsert(store, "d")) as futures:
        pass
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [Unavailable] * 3
    assert all("not acknowledged" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == 3
    monkeypatch.undo()
    if failure == "sync":  # the medium is not to be trusted any more
        with pytest.raises(Unavailable, match="no more are taken"):
            store.upsert([Document("e", "e")])
    assert store.get("a").text == "a"
    store.close()
    with Store.open(folder) as again:
        assert {document.id for document in again.list()} in ({"a"}, {"a", "b", "c", "d"})
        assert again.verify().ok


def broken(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_killed_between_the_commit_of_a_group_and_its_mark_all_of_it_stays(
    store, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)
    store.upsert([Document("a", "a")])
    original = Watermark.write

    def copy_first(self: Watermark, mark: WatermarkEntry) -> None:
        shutil.copytree(folder, tmp_path / "killed", dirs_exist_ok=True)
        original(self, mark)

    monkeypatch.setattr(Watermark, "write", copy_first)
    with in_line(store, *[upsert(store, f"d{n}") for n in range(3)]):
        pass
    assert read_watermark(tmp_path / "killed").newest.sequence == 1
    with Store.open(tmp_path / "killed") as killed:
        assert killed.sequence == killed.count().documents == 4
        assert killed.verify().ok
    for between in (2, 3):  # no commit ended there
        (tmp_path / "killed" / "watermark").unlink()
        create_watermark(tmp_path / "killed", WatermarkEntry(between, bytes(32)))
        # The last commit of `killed` is that of operations 2 to 4.
        with pytest.raises(
            CorruptData, match=r"from operation 1 to 4 in one commit.* not of the same history"
        ):
            Store.open(tmp_path / "killed")


def test_a_full_disk_refuses_writes_and_lets_them_in_again(store, folder):
    store.upsert([Document("a", "a")])
    connection = store._journal._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(2):
        with pytest.raises(
            InsufficientStorage, match="disk is full; nothing of this write was kept"
        ) as caught:
            store.upsert([Document("b", "b" * 100_000)])
        assert (caught.value.status, caught.value.code) == (507, "insufficient_storage")
    assert store.get("a").text == "a"
    assert store.sequence == 1
    connection.execute("PRAGMA max_page_count = 100000")
    assert store.upsert([Document("b", "b" * 100_000)]).sequence == 2
    assert store.verify().ok


def test_a_full_disk_in_a_group_acknowledges_only_what_is_there(store, folder, monkeypatch):
    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)
    connection = store._journal._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    big = [Document("big", "b" * 100_000)]
    with in_line(store, upsert(store, "a"), lambda: store.upsert(big), upsert(store, "c")) as futures:
        pass
    assert isinstance(futures[1].exception(), InsufficientStorage)
    acknowledged = {
        id for id, future in zip(("a", "big", "c"), futures, strict=True) if not future.exception()
    }
    assert acknowledged <= {document.id for document in store.list()}
    store.close()
    with Store.open(folder) as again:
        assert acknowledged <= {document.id for document in again.list()}
        assert again.verify().ok


def test_no_room_for_the_mark_acknowledges_nothing_and_is_made_up_for(store, folder, marks, monkeypatch):
    original = os.pwrite
    calls: list[int] = []

    def full(file: int, content: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) % 2:
            return original(file, content[:50], at)  # a short write, then the reason for it
        raise OSError(errno.ENOSPC, "No space left on device")

    store.upsert([Document("a", "a")])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        for id in "bb":
            with pytest.raises(InsufficientStorage, match="full; this write is not acknowledged"):
                store.upsert([Document(id, id)])
        assert read_watermark(folder).newest.sequence == 1  # the slot of the newest mark was not touched
    assert store.get("a").text == "a"
    assert store.upsert([Document("c", "c")]).sequence == 3
    assert marks == [1, 2, 3]
    assert store.verify().ok


def test_a_short_write_of_the_mark_is_completed(store, folder, monkeypatch):
    original = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: original(file, content[:1000], at))
    store.upsert([Document("a", "a")])
    marks = read_watermark(folder)
    assert (marks.newest.sequence, marks.other_is_whole) == (1, True)


def test_closing_waits_for_the_turn_and_commits_what_is_open(store, folder, monkeypatch):
    monkeypatch.setattr(journal, "_WINDOW_S", FOREVER_S)
    store._journal._waiting += 1  # leaves the group open
    writer = threading.Thread(target=upsert(store, "a"))
    writer.start()
    while store._journal._group is None or store._journal._group.members == 0:
        time.sleep(0.001)
    store.close()
    writer.join(LATEST_S)
    assert not writer.is_alive()
    with Store.open(folder) as again:
        assert again.get("a").text == "a"


def test_a_sync_that_fails_before_the_commit_ends_writing_too(store):
    """A large transaction begins a new log while its statements run, and syncs that log's head."""
    store.upsert([Document("a", "a")])
    failed = sqlite3.OperationalError("disk I/O error")
    failed.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    with pytest.raises(Unavailable, match="cannot be read or written"), store._journal.operation():
        raise failed
    with pytest.raises(Unavailable, match=r"the disk failed .* no more are taken"):
        store.upsert([Document("b", "b")])
    assert store.get("a").text == "a"
