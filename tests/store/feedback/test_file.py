"""`feedback.db` as a file: what is synced, what is refused, and what is read of a file that was cut off."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.store.feedback_rows import PAGE, click

from dsearch.errors import CorruptData, Unavailable
from dsearch.store import FeedbackStore, Store
from dsearch.store.feedback import FEEDBACK
from dsearch.store.sqlite import journal as module
from dsearch.store.sqlite.journal import Journal
from dsearch.store.sqlite.watermark import read_watermark
from dsearch.types import Document


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names in the folder at each time that it is synced."""
    seen: list[list[str]] = []
    monkeypatch.setattr(
        module, "sync_folder", lambda folder: seen.append(sorted(x.name for x in folder.iterdir()))
    )
    return seen


def test_the_names_of_new_files_are_synced_once(tmp_path: Path, synced: list[list[str]]) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    assert len(synced) == 1
    assert {"feedback.db", "feedback.watermark"} <= {*synced[0]}
    store.record([], [click("e2")])
    assert len(synced) == 1


def test_a_folder_that_cannot_be_synced_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    store = FeedbackStore(tmp_path)
    monkeypatch.setattr(module, "sync_folder", failing)
    with pytest.raises(Unavailable, match="Input/output error"):
        store.record([PAGE], [click()])
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="feedback is refused until this process is started again"):
        store.record([PAGE], [click()])
    again = FeedbackStore(tmp_path)
    assert list(again.pages()) == []
    assert again.record([PAGE], [click()]).events == 1


def test_a_transaction_that_raises_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> None:
        with Journal(tmp_path, FEEDBACK).operation() as operation:
            operation.connection.execute("DELETE FROM event")
            raise KeyError

    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    with pytest.raises(KeyError):
        failing()
    assert len(next(iter(store.pages())).events) == 1
    assert store.record([], [click("e2")]).events == 1


def test_a_file_without_tables_was_never_written(tmp_path: Path) -> None:
    """A first write that was cut off leaves an empty database."""
    sqlite3.connect(tmp_path / "feedback.db").close()
    (tmp_path / "feedback.db").touch()
    with FeedbackStore(tmp_path).reading() as connection:
        assert connection is None
    assert list(FeedbackStore(tmp_path).pages()) == []


@pytest.mark.parametrize("emptied", [False, True], ids=["gone", "emptied"])
def test_a_file_that_lost_all_it_had_is_damaged(tmp_path: Path, emptied: bool) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    for path in tmp_path.glob("feedback.db*"):
        path.unlink()
    if emptied:
        (tmp_path / "feedback.db").touch()
    with pytest.raises(CorruptData, match="its watermark shows 1 writes"):
        list(FeedbackStore(tmp_path).pages())


def test_a_file_that_was_replaced_takes_no_more(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    with store.replacement(), pytest.raises(Unavailable):
        store.record([], [click("e2")])
    with pytest.raises(Unavailable, match="its collection was replaced by another; open that one"):
        store.record([], [click("e2")])
    assert len(next(iter(store.pages())).events) == 1
    store.close()
    store.close()


def test_a_file_that_could_not_be_copied_takes_more_unless_its_disk_failed_before(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    with pytest.raises(KeyError), store.replacement():
        raise KeyError
    assert store.record([PAGE], [click()]).events == 1
    store._journal._fail("the disk failed")
    with pytest.raises(KeyError), store.replacement():
        raise KeyError
    with pytest.raises(Unavailable, match="the disk failed"):
        store.record([], [click("e2")])


def test_what_was_cleared_is_not_in_the_file_any_more(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    assert store.clear() == 1
    store.close()
    assert PAGE.query.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_write_that_changes_nothing_is_no_operation(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])

    def sequence() -> int:
        return read_watermark(tmp_path, FEEDBACK).newest.sequence

    before = sequence()
    store.record([PAGE], [click()])
    assert sequence() == before
    store.record([], [click("e2")])
    assert sequence() == before + 1


def test_feedback_has_a_counter_of_its_own(tmp_path: Path) -> None:
    """Answers, cursors and gradients are pinned to the sequence of the documents."""
    with Store.create(tmp_path / "papers", name="papers", encoder={}, dimension=2) as documents:
        documents.upsert([Document("d1", "text")])
        before = documents.sequence
        for name in ("e1", "e2", "e3"):
            FeedbackStore(documents.path).record([PAGE], [click(name)])
        assert read_watermark(documents.path, FEEDBACK).newest.sequence == 3
        assert documents.sequence == read_watermark(documents.path).newest.sequence == before


def test_clicks_that_come_at_once_are_all_there(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        recorded = threads.map(lambda n: store.record([PAGE], [click(f"e{n}")]), range(64))
        assert sum(one.events for one in recorded) == 64
    store.close()
    opened = FeedbackStore(tmp_path)
    assert opened.problem() is None
    assert len(next(iter(opened.pages())).events) == 64
