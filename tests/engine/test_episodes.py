"""Episodes: which events an outcome becomes, what is remembered, and what is refused."""

from __future__ import annotations

import pytest

from dsearch.engine.episodes import Episodes, TaskOutcome, UnknownEpisode
from dsearch.errors import InvalidRequest
from dsearch.store import Event, Impression


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
