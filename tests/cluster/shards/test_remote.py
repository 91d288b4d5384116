"""Which copy of a shard is asked, and what becomes of one that is lost or late; Ray itself is played."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from dsearch.cluster.coordinator import LiveRelease
from dsearch.cluster.messages import NotOpen, ShardsLost
from dsearch.cluster.packing import pack
from dsearch.cluster.shards import remote
from dsearch.cluster.shards.remote import RayShards
from dsearch.errors import InvalidRequest


class RayError(Exception):
    """As Ray's: a call was lost with its process."""


class RayTaskError(RayError):
    """As Ray's: the call raised."""

    def __init__(self, cause: Exception):
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Call:
    """A pending call, Ray's reference to it."""

    actor: str
    method: str


@dataclass(slots=True)
class PlayedRay:
    """Actors by name, each with what it does when it is asked; records whom `answer` was called of.

    Attributes:
        answers: for each actor "answers", "late", "gone" or the error that its answer raises.
        ready: actors whose `ready` returns.
        asked: names of the actors that were asked, in order.
        given: each actor with what it was called with.
    """

    answers: dict[str, str | Exception]
    ready: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    given: list[tuple[Any, ...]] = field(default_factory=list)

    def get_actor(self, name: str, *, namespace: str) -> Any:
        assert namespace == "dsearch"
        if self.answers[name] == "gone":
            raise ValueError(f"no actor {name}")
        return Actor(self, name)

    def call(self, actor: str, method: str) -> Call:
        if method == "answer":
            self.asked.append(actor)
            assert len(self.asked) < 100, "asked again and again"
        return Call(actor, method)

    def wait(self, calls: list[Call], *, timeout: float, num_returns: int = 1) -> tuple[list, list]:
        done = [call for call in calls if self._is_done(call)]
        return done, [call for call in calls if call not in done]

    def get(self, call: Call) -> Any:
        outcome = self.answers[call.actor]
        if call.method == "answer" and isinstance(outcome, Exception):
            raise outcome
        return pack(call.actor)

    def _is_done(self, call: Call) -> bool:
        return call.actor in self.ready if call.method == "ready" else self.answers[call.actor] != "late"


class Actor:
    """A handle; `actor.method.remote(…)` calls the method."""

    def __init__(self, ray: PlayedRay, name: str):
        self._ray, self._name = ray, name

    def __getattr__(self, method: str) -> Any:
        ray, name = self._ray, self._name

        class Method:
            def remote(self, *given: Any) -> Call:
                ray.given.append((name, *given))
                return ray.call(name, method)

        return Method()


Played = Callable[..., tuple[RayShards, PlayedRay]]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Makes shards, a list of copies for each, whose actors do what is said."""

    def make(*shards: list[str], **answers: str | Exception) -> tuple[RayShards, PlayedRay]:
        ray = PlayedRay({name: answers.get(name, "answers") for copies in shards for name in copies})
        module, errors = ModuleType("ray"), ModuleType("ray.exceptions")
        errors.RayError, errors.RayTaskError = RayError, RayTaskError  # type: ignore[attr-defined]
        for name in ("get_actor", "wait", "get"):
            setattr(module, name, getattr(ray, name))
        module.exceptions = errors  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ray", module)
        monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
        return RayShards(LiveRelease("food", "uri", "digest", 1, list(shards), 1)), ray

    return make


def test_copies_are_asked_in_turn(played: Played) -> None:
    shards, _ = played(["a", "b", "c"])
    assert [shards.ask("show", {0: None})[0] for _ in range(6)] == ["a", "b", "c"] * 2


def test_every_shard_answers_for_itself(played: Played) -> None:
    shards, ray = played(["a"], ["b"], ["c"])
    assert shards.ask("show", {0: None, 2: None}) == {0: "a", 2: "c"}
    assert ray.asked == ["a", "c"]
    ray.given.clear()
    shards.ask("show", {0: [1], 1: [2], 2: [1]})
    assert ray.given == [(name, "show", pack([at])) for name, at in (("a", 1), ("b", 2), ("c", 1))]


@pytest.mark.parametrize("trouble", ["late", RayError("its process ended"), RayTaskError(NotOpen("not yet"))])
def test_another_copy_answers_until_the_first_is_ready(played: Played, trouble: str | Exception) -> None:
    shards, ray = played(["a", "b"], a=trouble)
    assert [shards.ask("show", {0: None})[0] for _ in range(3)] == ["b"] * 3
    assert ray.asked == ["a", "b", "b", "b"]  # the first was tried once
    assert shards.up() == [[False, True]]
    ray.answers["a"] = "answers"
    ray.ready.add("a")
    assert shards.up() == [[True, True]]
    assert {shards.ask("show", {0: None})[0] for _ in range(2)} == {"a", "b"}


def test_a_copy_is_asked_once_in_a_call_though_it_says_that_it_is_ready(played: Played) -> None:
    shards, ray = played(["a", "b"], ["c"], a=RayError("lost"), b=RayError("lost"))
    ray.ready |= {"a", "b"}
    with pytest.raises(ShardsLost) as lost:
        shards.ask("show", {0: None, 1: None})
    assert lost.value.numbers == {0}
    assert sorted(ray.asked) == ["a", "b", "c"]


def test_an_actor_that_is_gone_is_looked_for_again(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(remote.time, "monotonic", lambda: now)
    shards, ray = played(["a"], a="gone")
    with pytest.raises(ShardsLost):
        shards.ask("show", {0: None})
    ray.answers["a"] = "answers"
    ray.ready.add("a")
    now += 0.4
    assert shards.up() == [[False]]  # not looked for yet
    now += 0.2
    assert shards.up() == [[False]]  # looked for, and asked whether it is ready
    assert shards.up() == [[True]]
    assert shards.ask("show", {0: None}) == {0: "a"}


def test_an_error_of_the_request_is_no_loss(played: Played) -> None:
    shards, ray = played(["a", "b"], a=RayTaskError(InvalidRequest("limit=0; use 1 to 1000")))
    with pytest.raises(InvalidRequest, match="limit=0"):
        shards.ask("show", {0: None})
    assert ray.asked == ["a"]
    assert shards.up() == [[True, True]]
