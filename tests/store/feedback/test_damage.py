"""Feedback on disk outlives kills and failing disks, and damage to it is noticed."""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.paths import SUPPORT
from support.store.feedback_rows import PAGE, click
from support.store.feedback_trials import (
    events_of,
    faults,
    flips_in_the_log,
    forks,
    kills,
    make_format_1,
)

from dsearch.errors import CorruptData, InsufficientStorage, Unavailable, UnsupportedFormat
from dsearch.store import FeedbackStore, Impression, feedback
from dsearch.store.feedback import FEEDBACK, copy_feedback
from dsearch.store.sqlite import journal, watermark
from dsearch.store.sqlite.watermark import read_watermark

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace chooses the call to die in")


def damaged(folder: Path, statement: str, *values: object) -> FeedbackStore:
    with sqlite3.connect(folder / "feedback.db") as connection:
        connection.execute(statement, values)
    connection.close()
    return FeedbackStore(folder)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event SET content = replace(content, '\"b\"', '\"a\"') WHERE event_id = 'e1'",
        "UPDATE event SET received_s = 0 WHERE event_id = 'e1'",
        "UPDATE event SET received_s = 'x' WHERE event_id = 'e1'",
        "UPDATE event SET key = 'x' WHERE event_id = 'e1'",
        "UPDATE event SET client_id = 'x' WHERE event_id = 'e1'",
        "UPDATE event SET content = CAST(x'ff' AS TEXT) WHERE event_id = 'e1'",
        "UPDATE impression SET content = replace(content, 'wing', 'king') WHERE query_id = 'q1'",
        "UPDATE impression SET query_id = 'q3' WHERE query_id = 'q1'",
        "DELETE FROM event WHERE event_id = 'e1'",
        "DELETE FROM impression WHERE query_id = 'q1'",
    ],
)
def test_damage_is_noticed_and_the_rest_can_be_kept(tmp_path: Path, statement: str) -> None:
    store = FeedbackStore(tmp_path)
    other = Impression("q2", "boundary layer", 0.0)
    store.record([PAGE, other], [click(), click("e2", "q2")])
    store.close()
    store = damaged(tmp_path, statement)
    with pytest.raises(CorruptData, match="feedback clear --damaged"):
        list(store.pages())
    store.clear(damaged=True)
    assert [page.impression for page in store.pages()] == [other]
    assert events_of(store) == ["e2"]


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("DELETE FROM impression WHERE query_id = 'q1'", 2),  # both events of it
        ("UPDATE impression SET digest = x'00' WHERE query_id = 'q1'", 3),
        ("UPDATE event SET digest = x'00' WHERE event_id = 'e1'", 1),
    ],
)
def test_damaged_rows_are_counted_with_the_events_of_a_lost_page(
    tmp_path: Path, statement: str, rows: int
) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE, Impression("q2", "other", 0.0)], [click(), click("e2"), click("e3", "q2")])
    store.close()
    store = damaged(tmp_path, statement)
    assert store.clear(damaged=True) == rows
    assert events_of(store) == ["e1", "e2", "e3"][-(3 - min(rows, 2)) :]


def test_a_count_that_damage_made_none_is_noticed(tmp_path: Path) -> None:
    """SQLite reads as NULL what a flipped bit or a cut end left of a number, whatever the table allows."""
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    with sqlite3.connect(tmp_path / "feedback.db") as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
    connection.close()
    store = damaged(tmp_path, "UPDATE contributor SET events = NULL")
    for act in (lambda: list(store.pages()), lambda: store.record([PAGE], [click("e2")])):
        with pytest.raises(CorruptData, match="feedback clear --damaged"):
            act()
    store.clear(damaged=True)
    assert events_of(store) == ["e1"]


def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "feedback.db").write_bytes(b"nonsense" * 1000)
    store = FeedbackStore(tmp_path)
    for act in (store.stats, lambda: store.record([PAGE], [click()])):
        with pytest.raises(CorruptData, match=r"feedback.db is damaged .*feedback clear --damaged"):
            act()


def test_a_schema_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    """SQLite quotes it in its message, which Python cannot decode then."""
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    file = tmp_path / "feedback.db"
    file.write_bytes(file.read_bytes().replace(b"contributor (key", b"contributor \xa8key", 1))
    store = FeedbackStore(tmp_path)
    for act in (store.stats, lambda: store.record([PAGE], [click("e2")])):
        with pytest.raises(CorruptData, match=r"feedback.db is damaged .*feedback clear --damaged"):
            act()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    store = damaged(tmp_path, "UPDATE meta SET value = '3'")
    for act in (store.stats, lambda: store.record([PAGE], [click()])):
        with pytest.raises(UnsupportedFormat, match="format 3; this release reads 1 to 2"):
            act()


def copied(folder: Path, to: Path) -> Path:
    """As a kill would leave it."""
    return Path(shutil.copytree(folder, to))


def test_flips_in_the_log_never_drop_an_event_unnoticed(tmp_path: Path) -> None:
    assert flips_in_the_log(tmp_path, 40)["found"] > 20


def test_lost_events_are_missed_and_what_is_there_can_be_kept(tmp_path: Path) -> None:
    folder = tmp_path / "now"
    folder.mkdir()
    store = FeedbackStore(folder)
    store.record([PAGE], [click()])
    before = copied(folder, tmp_path / "before")
    store.record([PAGE], [click("e2")])
    shutil.copy(folder / "feedback.watermark", before / "watermark-of-later")
    (before / "watermark-of-later").rename(before / "feedback.watermark")
    old = FeedbackStore(before)
    assert old.loss() is not None
    assert str(old.problem()) == old.loss()
    for act in (
        lambda: list(old.pages()),
        lambda: old.record([PAGE], [click("e3")]),
        lambda: old.clear(key="site"),
    ):
        with pytest.raises(CorruptData, match=r"acknowledged clicks and judgements are missing.*--damaged"):
            act()
    assert old.clear(damaged=True) == 0
    assert old.loss() is None
    assert events_of(old) == ["e1"]
    old.record([PAGE], [click("e3")])
    assert FeedbackStore(before).problem() is None
    assert store.problem() is None


@pytest.mark.parametrize("gone", ["feedback.db", "feedback.watermark"])
def test_a_file_that_is_gone_is_missed(tmp_path: Path, gone: str) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    (tmp_path / gone).unlink()
    store = FeedbackStore(tmp_path)
    for act in (lambda: list(store.pages()), lambda: store.record([PAGE], [click("e2")])):
        with pytest.raises(CorruptData, match="feedback clear --damaged"):
            act()
    store.clear(damaged=True)
    assert events_of(store) == (["e1"] if gone == "feedback.watermark" else [])
    store.record([PAGE], [click("e2")])
    assert FeedbackStore(tmp_path).problem() is None


def test_clearing_all_accepts_what_is_lost(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    store = damaged(tmp_path, "UPDATE event SET digest = 'none'")
    assert store.problem()
    assert store.clear() == 1
    assert store.problem() is None


def test_rows_that_vanish_with_their_counts_are_missed(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE, Impression("q2", "other", 0.0)], [click(), click("e2", "q2", key="b")])
    store.close()
    damaged(tmp_path, "DELETE FROM event WHERE key = 'b'").close()
    damaged(tmp_path, "DELETE FROM contributor WHERE key = 'b'").close()
    store = damaged(tmp_path, "DELETE FROM impression WHERE query_id = 'q2'")
    with pytest.raises(CorruptData, match="does not hold the rows that were acknowledged"):
        list(store.pages())
    some: list[dict[str, Any]] = [{"client_id": "nobody"}, {"key": "nobody"}, {"before_s": -1.0}]
    for named in some:  # which is no acceptance
        assert store.clear(**named) == 0
        assert store.problem(), named
    store.clear(damaged=True)
    assert events_of(store) == ["e1"]


def test_a_file_without_a_watermark_gets_one(tmp_path: Path) -> None:
    make_format_1(tmp_path)
    store = FeedbackStore(tmp_path)
    assert events_of(store) == ["e9-0", "e9-1", "e9-2"]
    assert store.problem() is None
    assert not (tmp_path / "feedback.watermark").exists()  # reading makes no file
    store.record([PAGE], [click()])
    assert read_watermark(tmp_path, FEEDBACK).newest.sequence == 1
    store.clear(key="key0")
    assert FeedbackStore(tmp_path).problem() is None
    assert events_of(FeedbackStore(tmp_path)) == ["e1", "e9-1", "e9-2"]


def test_a_copy_knows_what_was_lost(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("now", "whole", "lost")]
    for place in places:
        place.mkdir()
    now, whole, lost = places
    copy_feedback(now, whole)
    assert list(whole.iterdir()) == []
    store = FeedbackStore(now)
    store.record([PAGE], [click()])
    copy_feedback(now, whole)
    assert FeedbackStore(whole).problem() is None
    store.record([PAGE], [click("e2")])
    assert events_of(FeedbackStore(whole)) == ["e1"]
    shutil.copy(now / "feedback.watermark", whole / "feedback.watermark")
    copy_feedback(whole, lost)
    assert FeedbackStore(lost).loss() == (FeedbackStore(whole).loss() or "").replace("whole:", "lost:")


def test_a_failed_mark_is_not_acknowledged_and_ends_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(watermark, "sync_file", fail)
        with pytest.raises(Unavailable, match=r"a write failed .*searches go on"):
            store.record([], [click("e2")])
    with pytest.raises(Unavailable, match="a write failed"):
        store.record([], [click("e3")])
    assert events_of(store) == ["e1", "e2"]  # an unacknowledged write may stay, whole
    FeedbackStore(tmp_path).record([], [click("e3")])
    assert FeedbackStore(tmp_path).problem() is None


def test_a_full_disk_refuses_a_mark_and_the_next_write_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dsearch.store.sqlite.watermark.os.pwrite", full)
        with pytest.raises(InsufficientStorage, match="not acknowledged"):
            store.record([], [click("e2")])
    assert store.record([], [click("e2")]).repeated == 1
    assert read_watermark(tmp_path, FEEDBACK).newest.sequence == 2  # what was acknowledged now is marked
    assert store.problem() is None


@pytest.mark.crash
@needs_strace
@pytest.mark.parametrize("old", [False, True])
def test_killed_on_entry_to_calls_that_change_files(tmp_path: Path, old: bool) -> None:
    with forks() as ready:
        assert kills(ready, tmp_path, 16, old=old)["calls"] > 50


@pytest.mark.crash
@needs_strace
def test_a_failing_disk_takes_no_more_feedback_and_a_full_one_does_when_it_has_space(tmp_path: Path) -> None:
    with forks() as ready:
        seen = faults(ready, tmp_path, 24)
    assert seen["refused for good"] > 0
    assert seen["recovered"] > 0
    assert seen["short writes"] > 0


def test_a_folder_that_cannot_be_written_is_said_and_hinders_no_later_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing was begun, the next write may try; after a failed sync none of this process does."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = FeedbackStore(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(watermark.os, "open", refused)
        with pytest.raises(InsufficientStorage, match="the disk is full; this write is not acknowledged"):
            store.record([PAGE], [click()])
    with monkeypatch.context() as failing:
        failing.setattr(journal, "sync_folder", refused)
        with pytest.raises(Unavailable, match="feedback is refused until this process is started again"):
            store.record([PAGE], [click()])
    with pytest.raises(Unavailable, match="a write failed"):
        store.record([PAGE], [click()])
    again = FeedbackStore(tmp_path)
    again.record([PAGE], [click()])
    assert events_of(again) == ["e1"]


@pytest.mark.crash
def test_acknowledged_events_survive_a_kill(tmp_path: Path) -> None:
    generator = random.Random(0)
    writer = SUPPORT / "store" / "feedback_writer.py"
    for trial in range(4):
        folder = tmp_path / str(trial)
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, str(writer), str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.3))
        process.kill()
        acknowledged = (first + process.stdout.read()).split()
        process.stdout.close()
        process.wait()
        found = events_of(FeedbackStore(folder))
        assert set(acknowledged) <= set(found)
        assert len(found) % 3 == 0  # a batch is there whole or not at all
        assert 0 <= len(found) - len(acknowledged) <= 3  # the kill may fall between two printed ids


def test_an_event_whose_page_is_gone_is_damage(tmp_path: Path) -> None:
    """Its count is right, and what it is about is not there any more."""
    connection = sqlite3.connect(tmp_path / "feedback.db")
    connection.executescript(feedback.TABLES)
    feedback.insert_impression(connection, PAGE)
    feedback.insert_event(connection, click())
    connection.execute("INSERT INTO contributor VALUES ('site', 1)")
    feedback.require_complete(connection)
    connection.execute("DELETE FROM impression")
    with pytest.raises(CorruptData, match="holds 1 event where 1 were written, 1 of them without their page"):
        feedback.require_complete(connection)
    feedback.insert_impression(connection, PAGE)
    connection.execute("UPDATE contributor SET events = 2")
    with pytest.raises(CorruptData, match="holds 1 event where 2 were written, 0 of them without their page"):
        feedback.require_complete(connection)
    assert feedback.count_again(connection) == 0
    feedback.require_complete(connection)
    connection.close()
