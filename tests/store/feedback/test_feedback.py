"""Feedback on disk: recorded once, bounded, clearable, and refused after a failed write."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.store.feedback_rows import PAGE, click
from support.store.feedback_trials import events_of

from dsearch.errors import Conflict, CorruptData, Unavailable
from dsearch.store import Event, FeedbackFull, FeedbackStore, Impression, Page


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
    writer.record([replace(PAGE, query_id="q2", swapped=False)], [replace(click("e3"), query_id="q2")])
    writer.record(
        [replace(PAGE, query_id="q3", pair=None, swapped=False)], [replace(click("e4"), query_id="q3")]
    )
    assert (reader.stats()["impressions"], reader.stats()["randomised"]) == (
        3,
        2,
    )  # of a pair, swapped or not


TEXT = st.text(max_size=20)


@given(
    # Made in the test: whoever checks its types draws from `random`, which no strategy may.
    fields=st.fixed_dictionaries(
        {
            "query_id": TEXT,
            "query": TEXT,
            "shown_s": st.floats(0, 1e10),
            "ids": st.lists(TEXT, max_size=3).map(tuple),
            "weights": st.lists(st.floats(0, 1), max_size=3).map(tuple),
            "pair": st.none() | st.tuples(st.integers(1, 10), st.integers(1, 10)),
            "swapped": st.booleans(),
        }
    ),
    position=st.none() | st.integers(1, 100),
    texts=st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT),
)
def test_records_come_back_from_their_content(
    fields: dict[str, Any], position: int | None, texts: tuple[str, ...]
) -> None:
    impression = Impression(**fields)
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
    broken = True

    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if statement == "COMMIT" and broken:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(statement, *values)  # type: ignore[arg-type]

    path = tmp_path / "feedback.db"
    failing = sqlite3.connect(path, factory=Failing, isolation_level=None)
    monkeypatch.setattr(store._journal, "_connection", failing)
    with pytest.raises(CorruptData):
        store.record([], [click("e2")])
    broken = False
    with pytest.raises(Unavailable, match="a write failed"):
        store.record([], [click("e3")])
    assert events_of(store) == ["e1"]


def test_two_processes_write_in_turn(tmp_path: Path) -> None:
    one, other = FeedbackStore(tmp_path), FeedbackStore(tmp_path)
    one.record([PAGE], [click()])

    def write(store: FeedbackStore, name: str) -> None:
        for n in range(15):
            store.record([], [click(f"{name}{n}")])

    threads = [threading.Thread(target=write, args=given) for given in ((one, "a"), (other, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events_of(one)) == 31
    assert one.problem() is other.problem() is None


def test_clearing_names_events_by_all_that_is_given(tmp_path: Path) -> None:
    """Those received before a time, not at it; and pages without an event go with them."""
    store = FeedbackStore(tmp_path)
    store.record(
        [PAGE],
        [click("e1", received_s=10.0), click("e2", received_s=20.0), click("e3", key="k", received_s=5.0)],
    )
    assert store.clear(before_s=10.0, key="site") == 0
    assert store.clear(before_s=20.0, key="site") == 1
    assert [event.event_id for page in store.pages() for event in page.events] == ["e2", "e3"]
    assert store.clear(client_id="browser", key="k") == 1
    assert store.clear(client_id="other", key="site") == 0
    assert store.impression("q1") == PAGE
    assert store.clear(client_id="browser") == 1
    assert store.impression("q1") is None


def test_an_empty_name_and_time_zero_are_conditions_too(tmp_path: Path) -> None:
    """Events of nobody known are of the client ""."""
    store = FeedbackStore(tmp_path)
    store.record([PAGE], [click("e1"), click("e2", client_id=""), click("e3", key="")])
    assert store.clear(before_s=0.0) == 0
    assert store.clear(client_id="") == 1
    assert events_of(store) == ["e1", "e3"]
    assert store.clear(key="") == 1
    assert events_of(store) == ["e1"]


def test_events_are_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    for name in ("e2", "e3", "e1"):
        store.record([PAGE], [click(name)])
    assert [event.event_id for page in store.pages() for event in page.events] == ["e2", "e3", "e1"]


def test_what_was_sent_before_is_taken_by_a_full_file(tmp_path: Path) -> None:
    """Who got no answer sends it again."""
    FeedbackStore(tmp_path).record([PAGE], [click()])
    full = FeedbackStore(tmp_path, max_bytes=1)
    assert full.record([PAGE], [click()]).repeated == 1
    with pytest.raises(FeedbackFull, match="has reached 1 bytes"):
        full.record([PAGE], [click(), click("e2")])


def test_statistics_are_by_key_and_time(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path)
    assert (store.stats()["largest_key"], store.stats()["first_s"], store.stats()["bytes"]) == (0, None, 0)
    store.record(
        [PAGE],
        [click("e1", received_s=20.0), click("e2", received_s=10.0), click("e3", key="k", received_s=30.0)],
    )
    counts = store.stats()
    assert (counts["events"], counts["keys"], counts["largest_key"]) == (3, 2, 2)
    assert (counts["first_s"], counts["last_s"]) == (10.0, 30.0)
    assert counts["bytes"] == (tmp_path / "feedback.db").stat().st_size > 0
