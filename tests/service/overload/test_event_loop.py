"""The event loop under overload: what arrives is looked at in rounds."""

import asyncio
import selectors
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from dsearch.service.overload.event_loop import ROUND_S, PacedSelector, event_loop

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its event loop has no selector")


@dataclass
class Time:
    """A clock that only a sleep moves."""

    now: float = 100.0
    crowded: bool = True
    rests: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def rounds(time: Time) -> Iterator[PacedSelector]:
    with PacedSelector(lambda: time.crowded, time.sleep, lambda: time.now) as selector:
        yield selector


@pytest.fixture
def arrivals(rounds: PacedSelector) -> Iterator[socket.socket]:
    """What is written here arrives."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rounds.register(ours, selectors.EVENT_READ)
        yield theirs


def test_what_arrives_one_after_the_other_is_found_once_a_round(
    rounds: PacedSelector, arrivals: socket.socket, time: Time
) -> None:
    arrivals.send(b"1")
    assert len(rounds.select(None)) == 1  # nobody looked of late
    assert time.rests == []
    time.now += 0.003
    assert len(rounds.select(None)) == 1
    assert len(rounds.select(None)) == 1
    assert time.rests == pytest.approx([ROUND_S - 0.003, ROUND_S])


def test_nobody_rests_where_nobody_is_refused(
    rounds: PacedSelector, arrivals: socket.socket, time: Time
) -> None:
    time.crowded = False
    arrivals.send(b"1")
    for _ in range(3):
        assert len(rounds.select(None)) == 1
    assert time.rests == []


def test_a_loop_that_has_something_to_do_looks_once_a_round_and_does_not_rest(
    rounds: PacedSelector, arrivals: socket.socket, time: Time
) -> None:
    arrivals.send(b"1")
    found: list[int] = []
    for _ in range(5):
        found.append(len(rounds.select(0)))
        time.now += ROUND_S * 0.6
    assert found == [1, 0, 1, 0, 1]
    assert time.rests == []


def test_a_timer_ends_the_round(rounds: PacedSelector, time: Time) -> None:
    assert rounds.select(0.001) == []
    assert rounds.select(0.001) == []
    assert time.rests == [0.001]


def test_a_long_wait_is_not_made_longer(
    rounds: PacedSelector, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    monkeypatch.setattr(
        selectors.DefaultSelector, "select", lambda _, timeout=None: waited.append(timeout) or []
    )
    rounds.select(1.0)
    rounds.select(1.0)
    assert waited == [1.0, pytest.approx(1.0 - ROUND_S)]


def test_an_event_loop_works_while_it_is_crowded() -> None:
    async def hand_over() -> list[int]:
        loop = asyncio.get_running_loop()
        done: list[int] = []
        await asyncio.gather(*(loop.run_in_executor(None, done.append, number) for number in range(5)))
        return sorted(done)

    with asyncio.Runner(loop_factory=lambda: event_loop(lambda: True)) as runner:
        assert runner.run(hand_over()) == [0, 1, 2, 3, 4]
