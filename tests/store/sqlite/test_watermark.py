"""Every row of the table of crash windows, and what must never occur."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial

import pytest
from support.store.store_trials import flips_in_the_log

from dsearch.errors import CorruptData, InsufficientStorage, Unavailable
from dsearch.store import Store
from dsearch.store.sqlite import watermark
from dsearch.store.sqlite.watermark import (
    SLOT_BYTES,
    Watermark,
    WatermarkEntry,
    WatermarkSlots,
    check_database,
    create_watermark,
    read_watermark,
    unwritable,
)
from dsearch.types import Document


def write(store: Store, *ids: str) -> None:
    for id in ids:
        store.upsert([Document(id, id)])


@pytest.fixture
def history(store, folder, tmp_path):
    """Copies of the collection after operations 0 to 4, as a kill would leave them, with the log."""
    copies = []
    for operation in range(5):
        if operation:
            write(store, f"d{operation}")
        copies.append(shutil.copytree(folder, tmp_path / f"after-{operation}"))
    store.close()
    return copies


def put_watermark(folder, source) -> None:
    shutil.copy(source / "watermark", folder / "watermark")


def tear(folder, *, newest: bool) -> None:
    """Damage one slot of the watermark."""
    slot = read_watermark(folder).slot
    slot = slot if newest else 1 - slot
    content = bytearray((folder / "watermark").read_bytes())
    content[slot * SLOT_BYTES + 20] ^= 1
    (folder / "watermark").write_bytes(content)


def test_killed_after_the_mark_everything_is_there(history):
    for operation, folder in enumerate(history):
        with Store.open(folder) as store:
            assert store.sequence == store.count().documents == operation
            assert store.verify().ok


@pytest.mark.parametrize("torn", [False, True])
def test_killed_between_commit_and_mark_the_operation_stays_and_is_marked(history, torn):
    folder = history[3]
    put_watermark(folder, history[2])
    if torn:
        tear(folder, newest=False)
    with Store.open(folder, readonly=True) as store:
        assert store.sequence == 3
    assert read_watermark(folder).newest.sequence == 2  # a reader changes nothing
    with Store.open(folder) as store:
        assert read_watermark(folder).newest.sequence == 3
        write(store, "d4")
    with Store.open(folder) as store:
        assert store.count().documents == 4


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("behind", [1, 2, 3])
def test_a_database_behind_its_watermark_lost_acknowledged_writes(history, readonly, behind):
    folder = history[3 - behind]
    put_watermark(folder, history[3])
    with pytest.raises(CorruptData, match=rf"writes are missing.*at operation {3 - behind}, .* 3 was"):
        Store.open(folder, readonly=readonly)


def test_a_removed_write_ahead_log_is_noticed(history):
    folder = history[3]
    assert (folder / "documents.db-wal").stat().st_size > 0
    (folder / "documents.db-wal").unlink()
    with pytest.raises(CorruptData, match="acknowledged writes are missing"):
        Store.open(folder)


def test_a_mark_that_was_begun_proves_its_operation_committed(history):
    folder = history[2]
    tear(folder, newest=False)
    with pytest.raises(CorruptData, match=r"ends at operation 2, .* 3 was committed"):
        Store.open(folder)


def test_a_watermark_of_another_time_or_another_history_is_noticed(history, tmp_path):
    put_watermark(history[4], history[1])
    with pytest.raises(CorruptData, match="at operation 4, its watermark at 1"):
        Store.open(history[4])
    other = tmp_path / "other"
    with Store.create(other, name="papers", encoder={}, dimension=8) as store:
        write(store, "x", "y", "z")
    for operation in (3, 4):  # equal, and one ahead
        put_watermark(history[operation], other)
        with pytest.raises(CorruptData, match=r"at operation 3 .*other rows"):
            Store.open(history[operation])


def test_a_missing_or_destroyed_watermark_is_noticed(history):
    tear(history[2], newest=True)
    tear(history[3], newest=True)
    content = (history[3] / "watermark").read_bytes()
    (history[3] / "watermark").write_bytes(bytes(len(content)))
    (history[4] / "watermark").unlink()
    for readonly in (True, False):
        with pytest.raises(CorruptData, match="damaged in both slots"):
            Store.open(history[3], readonly=readonly)
        with pytest.raises(CorruptData, match="watermark is missing"):
            Store.open(history[4], readonly=readonly)
    assert not (history[4] / "watermark").exists()


@pytest.mark.parametrize("damage", ["behind", "missing", "zeros", "torn", "ahead"])
def test_accepting_the_loss_goes_on_without_using_a_number_twice(history, damage):
    folder = history[2]
    if damage == "behind":
        put_watermark(folder, history[4])
    elif damage == "missing":
        (folder / "watermark").unlink()
    elif damage == "zeros":
        (folder / "watermark").write_bytes(bytes(100))
    elif damage == "torn":
        tear(folder, newest=False)
    else:
        put_watermark(folder, history[0])
    with pytest.raises(CorruptData, match="dsearch recover COLLECTION"):
        Store.open(folder)
    with Store.open(
        folder, readonly=True, accept_loss=True
    ) as store:  # to read what is left, changing nothing
        assert store.count().documents == 2
    with Store.open(folder, accept_loss=True) as store:
        assert store.count().documents == 2
        assert store.sequence == (5 if damage == "behind" else 3)
        write(store, "again")
        assert store.verify().ok
    with Store.open(folder) as store:
        assert store.count().documents == 3
    with Store.open(folder, accept_loss=True) as store:
        assert store.sequence == (6 if damage == "behind" else 4)  # nothing to accept, nothing changed


@pytest.mark.parametrize("damage", ["behind", "missing"])
def test_what_was_accepted_is_whole_without_a_further_write(history, damage):
    folder = history[2]
    if damage == "behind":
        put_watermark(folder, history[4])
    else:
        (folder / "watermark").unlink()
    Store.open(folder, accept_loss=True).close()
    marks = read_watermark(folder)
    assert (marks.newest.sequence, marks.other_is_whole) == (5 if damage == "behind" else 3, True)
    for readonly in (True, False):
        with Store.open(folder, readonly=readonly) as store:
            assert store.count().documents == 2


def test_a_mark_that_is_written_while_the_database_is_read_is_looked_at_too(tmp_path):
    """Two operations of one commit have one mark: one between them is of another history."""
    entry = [WatermarkEntry(number, bytes([number]) * 32) for number in range(7)]
    before = WatermarkSlots(entry[3], 0, other_is_whole=True)
    for number in (3, 6):
        after = WatermarkSlots(entry[number], 1, other_is_whole=True)
        check_database(tmp_path, (entry[6], entry[3]), before=before, after=after)
    for number in (4, 5):
        after = WatermarkSlots(entry[number], 1, other_is_whole=True)
        with pytest.raises(CorruptData, match="from operation 3 to 6 in one commit, but its watermark has"):
            check_database(tmp_path, (entry[6], entry[3]), before=before, after=after)


def test_flips_in_the_write_ahead_log_never_drop_a_write_unnoticed(history, tmp_path):
    """One bit at a time; without the watermark most of these lose rows in silence."""
    seen = flips_in_the_log(history[4], tmp_path, 100)
    # The test is not vacuous: in most cases SQLite itself saw nothing wrong.
    assert seen["found"] - seen["SQLite found"] > 50


def test_an_interrupt_between_commit_and_mark_is_made_up_for_by_the_next_write(store, folder, monkeypatch):
    original = Watermark.write

    def interrupt(self: Watermark, mark: WatermarkEntry) -> None:
        raise KeyboardInterrupt

    write(store, "a")
    monkeypatch.setattr(Watermark, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(store, "b")
    marks: list[int] = []

    def note(self: Watermark, mark: WatermarkEntry) -> None:
        marks.append(mark.sequence)
        original(self, mark)

    monkeypatch.setattr(Watermark, "write", note)
    write(store, "c")
    assert marks == [2, 3]


def test_a_failed_sync_is_never_acknowledged_and_stops_writing_but_not_reading(store, folder, monkeypatch):
    import dsearch.store.sqlite.watermark as watermark

    write(store, "a")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(watermark, "sync_file", fail)
        with pytest.raises(Unavailable, match=r"watermark could not be written.*not acknowledged"):
            write(store, "b")
    with pytest.raises(Unavailable, match="no more are taken"):  # though the disk would take it again
        write(store, "c")
    assert store.get("a").text == "a"
    store.close()
    with Store.open(folder) as store:
        assert [document.id for document in store.list()] == [
            "a",
            "b",
        ]  # an unacknowledged write may stay, whole
        write(store, "c")
        assert store.verify().ok


@pytest.mark.parametrize("buffered", [4096, 1 << 17])
def test_a_new_file_is_whole_when_it_is_synced(tmp_path, monkeypatch, buffered):
    """Python's own buffer is larger than the file in some of its versions, and on some disks."""
    synced: list[int] = []
    monkeypatch.setattr(watermark, "open", partial(open, buffering=buffered), raising=False)
    monkeypatch.setattr(watermark, "sync_file", lambda file: synced.append(os.fstat(file).st_size))
    create_watermark(tmp_path, WatermarkEntry(0, bytes(32)))
    assert synced == [2 * SLOT_BYTES]


@pytest.mark.parametrize("at_a_time", [1, 100, SLOT_BYTES - 1])
def test_a_mark_that_is_written_in_pieces_is_the_same(tmp_path, monkeypatch, at_a_time):
    """The system may write less than it was given."""
    create_watermark(tmp_path, WatermarkEntry(0, bytes(32)))
    watermark, whole = Watermark(tmp_path), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: whole(file, content[:at_a_time], at))
    marks = [WatermarkEntry(number, bytes([number]) * 32) for number in (1, 2, 3)]
    for mark in marks:
        watermark.write(mark)
        slots = read_watermark(tmp_path)
        assert (slots.newest, slots.other_is_whole) == (mark, True)
    watermark.close()


def test_a_write_that_writes_nothing_ends(tmp_path, monkeypatch):
    create_watermark(tmp_path, WatermarkEntry(0, bytes(32)))
    watermark = Watermark(tmp_path)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="nothing was written"):
        watermark.write(WatermarkEntry(1, bytes(32)))
    watermark.close()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, InsufficientStorage), (errno.EDQUOT, InsufficientStorage), (errno.EIO, Unavailable)],
)
def test_errors_of_the_disk_say_what_to_do(tmp_path, monkeypatch, number, kind):
    create_watermark(tmp_path, WatermarkEntry(0, bytes(32)))
    watermark = Watermark(tmp_path)

    def failing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises((kind, OSError)):
        watermark.write(WatermarkEntry(1, bytes(32)))
    assert type(unwritable(tmp_path, OSError(number, "x"))) is kind
    watermark.close()
