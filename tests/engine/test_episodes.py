"""Episodes: which events an outcome becomes, what is remembered, and what is refused."""

from __future__ import annotations

import pytest
from support.guarded import guarded

from dsearch.engine import feedback as module
from dsearch.engine.feedback import Episodes, TaskOutcome, UnknownEpisode
from dsearch.errors import InvalidRequest
from dsearch.store import Event, Impression

checked = guarded(Episodes, "_episodes", "_bytes", free=("__len__", "bytes"))


def page(name: str, *ids: str, query: str = "words") -> Impression:
    return Impression(name, query, 5.0, ids=ids, weights=(0.1,) * len(ids))


def task(*readings: str) -> Episodes:
    episodes = Episodes()
    episodes.add_page("k", "task", "papers", page("p1", "a", "b", "c"))
    episodes.add_page("k", "task", "papers", page("p2", "c", "d", query="other words"))
    for id in readings:
        episodes.add_reading("k", "task", "papers", id)
    return episodes


def events(episodes: Episodes, useful: tuple[str, ...], success: bool) -> list[Event]:
    return episodes.feedback("k", "task", "papers", TaskOutcome(useful, success), now_s=9.0)[1]


@pytest.mark.parametrize(
    ("useful", "success", "expected"),
    [
        (("c",), True, {("p1", "b"): "dismissed", ("p1", "c"): "used", ("p2", "c"): "used"}),
        ((), True, {("p1", "b"): "read", ("p1", "c"): "read", ("p2", "c"): "read"}),
        (("c",), False, {("p1", "b"): "dismissed", ("p1", "c"): "read", ("p2", "c"): "read"}),
        ((), False, {("p1", "b"): "dismissed", ("p1", "c"): "dismissed", ("p2", "c"): "dismissed"}),
    ],
)
def test_the_outcome_grades_what_was_read(
    useful: tuple[str, ...], success: bool, expected: dict[tuple[str, str], str]
) -> None:
    made = events(task("b", "c"), useful, success)
    assert {(event.query_id, event.object_id): event.action for event in made} == expected
    assert [event.position for event in made] == [2, 3, 1]
    assert {event.key for event in made} == {"k"}


def test_a_report_sent_again_is_the_same_and_a_contrary_one_is_not() -> None:
    episodes = task("b", "c")
    first, again = events(episodes, ("c",), True), events(episodes, ("c",), True)
    assert [event.content() for event in first] == [event.content() for event in again]
    contrary = events(episodes, (), False)
    assert [event.event_id for event in contrary] == [event.event_id for event in first]
    assert [event.content() for event in contrary] != [event.content() for event in first]


def test_each_document_of_each_page_is_an_event_of_its_own() -> None:
    """Another episode, page or document: events of one id would be one event, or contradict each other."""
    made = events(task("a", "b", "c", "d"), (), True)
    ids = {(event.query_id, event.object_id): event.event_id for event in made}
    assert len({*ids.values()}) == len(ids) == 5
    other = Episodes()
    other.add_page("k", "another task", "papers", page("p1", "a", "b", "c"))
    other.add_reading("k", "another task", "papers", "a")
    (event,) = other.feedback("k", "another task", "papers", TaskOutcome((), True), now_s=9.0)[1]
    assert event.event_id != ids["p1", "a"]


def test_only_pages_with_a_reading_are_stored() -> None:
    pages, _ = task("b").feedback("k", "task", "papers", TaskOutcome((), True), now_s=9.0)
    assert [one.query_id for one in pages] == ["p1"]


def test_an_episode_is_of_one_key_and_of_what_it_searched() -> None:
    episodes = task("b")
    assert episodes.collections("k", "task") == ["papers"]
    for key, name, collection in (
        ("other", "task", "papers"),
        ("k", "none", "papers"),
        ("k", "task", "notes"),
    ):
        with pytest.raises(UnknownEpisode, match=r"remembered|has not searched in"):
            episodes.feedback(key, name, collection, TaskOutcome((), True), now_s=9.0)
    with pytest.raises(InvalidRequest, match="useful_ids has 'z', which no search of this episode showed"):
        events(episodes, ("z",), True)
    episodes.add_reading("k", "none", "papers", "a")  # begins no episode
    assert len(episodes) == 1


def test_what_was_read_in_another_collection_says_nothing_about_a_document_of_the_same_id() -> None:
    episodes = task("b")
    episodes.add_page("k", "task", "notes", page("p3", "a", "b"))
    episodes.add_reading("k", "task", "notes", "a")
    assert {event.object_id for event in events(episodes, (), True)} == {"b"}
    made = episodes.feedback("k", "task", "notes", TaskOutcome((), True), now_s=9.0)[1]
    assert [(event.query_id, event.object_id) for event in made] == [("p3", "a")]


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    episodes = Episodes(max_bytes=100_000)
    for number in range(500):
        episodes.add_page("k", f"task{number}", "papers", page(f"p{number}", *"abcdefgh"))
    assert episodes.bytes <= 100_000
    assert 10 < len(episodes) < 100
    assert episodes.collections("k", "task499") == ["papers"]
    with pytest.raises(UnknownEpisode):
        episodes.collections("k", "task0")
    for number in range(2000):
        episodes.add_page("k", "long", "papers", page(f"q{number}", "a"))
        episodes.add_reading("k", "long", "papers", f"d{number}")
    assert episodes.bytes <= 1_000_000


def test_the_episode_that_was_used_last_stays() -> None:
    """A page or a reading of an old episode does not make it the oldest; only pages make it the newest."""
    episodes = Episodes(max_bytes=2000)
    for name in ("first", "second", "third"):
        episodes.add_page("k", name, "papers", page(f"p-{name}", "a"))
    episodes.add_page("k", "first", "papers", page("again", "b"))
    assert {name for name in ("first", "second", "third") if remembered(episodes, name)} == {"first", "third"}


def remembered(episodes: Episodes, name: str) -> bool:
    try:
        return bool(episodes.collections("k", name))
    except UnknownEpisode:
        return False


def test_one_episode_stays_however_large_and_its_bytes_are_those_of_its_pages() -> None:
    episodes = Episodes(max_bytes=10)
    episodes.add_page("k", "task", "papers", page("p1", "a", "bc", query="words"))
    assert episodes.bytes == 400 + 130 * 2 + 4 * (5 + 3)
    episodes.add_reading("k", "task", "papers", "abc")
    episodes.add_reading("k", "task", "papers", "abc")
    assert episodes.bytes == 400 + 130 * 2 + 4 * 8 + 400 + 4 * 3
    assert remembered(episodes, "task")
    episodes.add_page("k", "other", "papers", page("p2", "a", query=""))
    assert not remembered(episodes, "task")
    assert episodes.bytes == 400 + 130 + 4


def test_pages_and_readings_beyond_the_most_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGES", 2)
    monkeypatch.setattr(module, "MAX_READ", 2)
    episodes = Episodes()
    for number in range(3):
        episodes.add_page("k", "task", f"c{number}", page(f"p{number}", f"d{number}"))
        episodes.add_reading("k", "task", "c0", f"d{number}")
    assert episodes.collections("k", "task") == ["c0", "c1"]
    pages, made = episodes.feedback("k", "task", "c0", TaskOutcome((), True), now_s=9.0)
    assert [one.query_id for one in pages] == ["p0"]
    with pytest.raises(InvalidRequest, match="useful_ids has 'd2'"):
        episodes.feedback("k", "task", "c0", TaskOutcome(("d2",), True), now_s=9.0)
    assert [(one.object_id, one.received_s, one.time_s) for one in made] == [("d0", 9.0, 5.0)]


def test_events_bear_the_key_or_else_the_client() -> None:
    episodes = Episodes()
    episodes.add_page("", "task", "papers", page("p1", "a"))
    for client, expected in (("browser", "client:browser"), ("", "")):
        made = episodes.feedback(
            "", "task", "papers", TaskOutcome(("a",), True), client_id=client, now_s=9.0
        )[1]
        assert [(one.key, one.client_id) for one in made] == [(expected, client)]


def test_an_outcome_of_an_episode_that_others_push_out_meanwhile_is_of_what_it_had() -> None:
    episodes = task("b")

    class Contended:  # whenever it is released others come and push everything out
        def __enter__(self) -> None: ...

        def locked(self) -> bool:
            return True

        def __exit__(self, *_: object) -> None:
            episodes._episodes.clear()

    episodes._lock = Contended()  # pyright: ignore
    pages, made = episodes.feedback("k", "task", "papers", TaskOutcome((), True), now_s=9.0)
    assert ([one.query_id for one in pages], [event.object_id for event in made]) == (["p1"], ["b"])
