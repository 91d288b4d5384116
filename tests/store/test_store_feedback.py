"""Feedback on disk: durable when acknowledged, idempotent, bounded, clearable, and damage is noticed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsearch.errors import Conflict, CorruptData, Unavailable, UnsupportedFormat
from dsearch.store import Event, FeedbackFull, FeedbackStore, Impression, Page

PAGE = Impression("q1", "wing flutter", 100.5, 3, "v2", 17, "site", ("a", "b"), (0.7, 0.3), 1, (1, 2), True)


def click(name: str = "e1", query_id: str = "q1", **more: object) -> Event:
    fields = {"key": "site", "client_id": "browser", "action": "click", "object_id": "b", "position": 2}
    times = {"time_s": 100.0, "received_s": 101.25}
    return Event(name, query_id, **{**fields, **times, **more})  # type: ignore[arg-type]


def events_of(store: FeedbackStore) -> list[str]:
    return sorted(event.event_id for page in store.pages() for event in page.events)


def test_what_was_recorded_is_read_by_another(tmp_path: Path) -> None:
    writer = FeedbackStore(tmp_path)
    assert list(writer.pages()) == []
    assert not (tmp_path / "feedback.db").exists()  # reading makes no file
    recorded = writer.record([PAGE], [click(), click("e2", action="thumbs_up")])
    assert (recorded.events, recorded.repeated) == (2, 0)
    reader = FeedbackStore(tmp_path)
    assert list(reader.pages()) == [Page(PAGE, (click(), click("e2", action="thumbs_up")))]
    assert reader.impression("q1") == PAGE
    assert reader.impression("q2") is None
    assert reader.stats()["actions"] == {"click": 1, "thumbs_up": 1}
    assert reader.stats()["randomised"] == 1


TEXT = st.text(max_size=20)


@settings(deadline=None, max_examples=50)
@given(
    impression=st.builds(
        Impression,
        query_id=TEXT,
        query=TEXT,
        shown_s=st.floats(0, 1e10),
        ids=st.lists(TEXT, max_size=3).map(tuple),
        weights=st.lists(st.floats(0, 1), max_size=3).map(tuple),
        pair=st.none() | st.tuples(st.integers(1, 10), st.integers(1, 10)),
        swapped=st.booleans(),
    ),
    position=st.none() | st.integers(1, 100),
    texts=st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT),
)
def test_records_come_back_from_their_content(
    impression: Impression, position: int | None, texts: tuple[str, ...]
) -> None:
    assert Impression.from_content(impression.content()) == impression
    a, b, c, d, e = texts
    event = Event(a, b, c, d, e, "x", position, 1.5, 2.5)
    assert Event.from_content(event.content(), 2.5) == event


def test_an_event_that_is_sent_again_is_counted_once(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    again = store.record([PAGE], [click(received_s=999.0), click("e2")])
    assert (again.events, again.repeated) == (1, 1)
    assert events_of(store) == ["e1", "e2"]
    with pytest.raises(Conflict, match="event_id='e1' names another event"):
        store.record([], [click("e3"), click(object_id="a")])
    assert events_of(store) == ["e1", "e2"]  # all or none
    store.record([], [click(key="another site")])  # ids are those of a key: nobody takes another's
    with pytest.raises(Conflict, match="query_id='q1' names another query"):
        store.record([Impression("q1", "other words", 0.0)], [click("e4")])


def test_one_key_is_bounded_and_others_are_not_shut_out(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path, max_events_of_key=3)
    store.record([PAGE], [click("e1"), click("e2")])
    with pytest.raises(FeedbackFull, match="may have 3; make room with: dsearch feedback clear"):
        store.record([], [click("e3"), click("e4")])
    store.record([], [click("e3")])
    assert store.record([], [click("e3")]).repeated == 1  # nothing new is no excess
    store.record([], [click("e5", key="other")])
    assert events_of(store) == ["e1", "e2", "e3", "e5"]


def test_the_file_is_bounded(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path, max_bytes=200_000)

    def fill() -> None:
        for n in range(1000):
            store.record([Impression(f"q{n}", "x" * 5000, 0.0)], [click(f"e{n}", f"q{n}")])

    with pytest.raises(FeedbackFull, match="200000 bytes"):
        fill()
    kept = len(events_of(store))
    assert 10 < kept < 50
    assert (tmp_path / "feedback.db").stat().st_size < 400_000
    store.clear(key="site")
    assert (tmp_path / "feedback.db").stat().st_size < 100_000  # the room is given back
    store.record([PAGE], [click()])


def test_cleared_is_gone_from_the_medium(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    secret = Impression("q2", "a very private matter", 0.0)
    store.record([PAGE, secret], [click(), click("e2", "q2", client_id="other", received_s=500.0)])
    assert store.clear(client_id="nobody") == 0
    assert store.clear(client_id="other") == 1
    assert [page.impression.query_id for page in store.pages()] == ["q1"]
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"private" not in files
    assert b"flutter" in files
    assert store.clear(before_s=50.0) == 0
    assert store.clear(before_s=200.0, key="site") == 1
    assert store.stats()["impressions"] == 0
    assert FeedbackStore(tmp_path / "nowhere").clear() == 0


def test_another_process_may_clear_meanwhile(tmp_path: Path) -> None:
    serving = FeedbackStore(tmp_path)
    serving.record([PAGE], [click()])
    assert FeedbackStore(tmp_path).clear() == 1
    serving.record([PAGE], [click()])
    assert events_of(serving) == ["e1"]


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
        with pytest.raises(CorruptData, match=r"feedback.db is damaged .*documents are not in it"):
            act()


def test_a_schema_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    """SQLite quotes it in its message, which Python cannot decode then."""
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    file = tmp_path / "feedback.db"
    file.write_bytes(file.read_bytes().replace(b"contributor (key", b"contributor \xa8key", 1))
    for act in (store.stats, lambda: store.record([PAGE], [click("e2")])):
        with pytest.raises(CorruptData, match=r"feedback.db is damaged .*documents are not in it"):
            act()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    store = damaged(tmp_path, "UPDATE meta SET value = '2'")
    for act in (store.stats, lambda: store.record([PAGE], [click()])):
        with pytest.raises(UnsupportedFormat, match="format 2; this release reads 1"):
            act()


def test_many_threads_write(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)

    def write(number: int) -> None:
        for n in range(10):
            store.record([PAGE], [click(f"e{number}-{n}")])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events_of(store)) == 40


def test_a_failed_commit_ends_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of the medium nobody knows what is on it: no later success may hide that."""
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click()])
    store.close()
    broken = True

    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if statement == "COMMIT" and broken:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(statement, *values)  # type: ignore[arg-type]

    path = tmp_path / "feedback.db"
    failing = sqlite3.connect(path, factory=Failing, isolation_level=None)
    monkeypatch.setattr(store, "_writer", failing)
    with pytest.raises(CorruptData):
        store.record([], [click("e2")])
    broken = False
    with pytest.raises(Unavailable, match="a write failed"):
        store.record([], [click("e3")])
    assert events_of(store) == ["e1"]


@pytest.mark.crash
def test_acknowledged_events_survive_a_kill(tmp_path: Path) -> None:
    generator = random.Random(0)
    writer = Path(__file__).with_name("feedback_writer.py")
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
