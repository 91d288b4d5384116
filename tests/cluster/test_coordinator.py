"""What the coordinator computes and passes on, by a Ray that only listens."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dsearch.cluster import coordinator as module
from dsearch.cluster.coordinator import Coordinator, LiveRelease, copies_up, free_share, outcome
from dsearch.errors import Conflict, Unavailable


class RayError(Exception):
    """As Ray's."""


class RayTaskError(RayError):
    """As Ray's: of what a remote call raised."""

    def __init__(self, cause: Exception | None):
        super().__init__("remote")
        self.cause = cause


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    listening, exceptions = ModuleType("ray"), ModuleType("ray.exceptions")
    exceptions.RayError, exceptions.RayTaskError = RayError, RayTaskError  # type: ignore[attr-defined]
    listening.exceptions = exceptions  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", listening)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    return listening


@pytest.mark.parametrize(
    ("free", "copies", "share"),
    [
        (16.0, 4, 1.0),  # more than one is not taken
        (5.0, 4, 1.0),
        (4.0, 4, 0.8),  # a fifth is left
        (2.0, 4, 0.4),
        (1.0, 3, 0.26),  # rounded down, so that all fit
        (0.0, 4, 0.01),
        (None, 4, 0.01),
        (1.0, 0, 0.8),
    ],
)
def test_copies_share_four_fifths_of_the_free_processors(
    ray: Any, free: float | None, copies: int, share: float
) -> None:
    ray.available_resources = lambda: {} if free is None else {"CPU": free}
    assert free_share(copies) == share


def test_an_error_of_a_remote_call_is_raised_as_if_it_were_here(ray: Any) -> None:
    def failing(error: Exception) -> Any:
        def get(reference: object) -> Any:
            raise error

        return get

    ray.get = lambda reference: ("result of", reference)
    assert outcome("call") == ("result of", "call")
    ray.get = failing(RayTaskError(RayTaskError(Conflict("busy"))))
    with pytest.raises(Conflict, match="busy"):
        outcome("call")
    ray.get = failing(RayTaskError(FileNotFoundError("gone")))
    with pytest.raises(FileNotFoundError):
        outcome("call")
    ray.get = failing(RayTaskError(KeyError("bug")))
    with pytest.raises(RayTaskError):
        outcome("call")
    ray.get = failing(RayError("dead"))
    with pytest.raises(Unavailable, match=r"the cluster did not answer \(RayError\); try again"):
        outcome("call")


def test_copies_that_do_not_answer_are_down(ray: Any) -> None:
    """a answers, b says no, c is dead, d is late and e is gone."""

    class Actor:
        def __init__(self, name: str):
            self.ready = self
            self.name = name

        def remote(self) -> str:
            return self.name

    def get_actor(name: str, namespace: str) -> Actor:
        if name == "e":
            raise ValueError("no such actor")
        return Actor(name)

    def get(name: str) -> bool:
        if name == "c":
            raise RayError("dead")
        return name == "a"

    def wait(pending: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert (num_returns, timeout) == (4, 0.5)
        return [name for name in pending if name != "d"], ["d"]

    ray.get_actor, ray.get, ray.wait = get_actor, get, wait
    live = LiveRelease("papers", "uri", "digest", 1, [["a", "b"], ["c", "d", "e"]], 7)
    assert copies_up(live, timeout_s=0.5) == [[True, False], [False, False, False]]
    assert copies_up(LiveRelease("papers", "uri", "digest", 1, [["e"]], 7)) == [[False]]


@pytest.fixture
def kept(ray: Any, monkeypatch: pytest.MonkeyPatch) -> dict[bytes, bytes]:
    """What Ray's control store holds."""
    store: dict[bytes, bytes] = {}
    internal: Any = ModuleType("ray.experimental.internal_kv")
    internal._internal_kv_get = store.get

    def put(key: bytes, value: bytes, overwrite: bool) -> None:
        if overwrite or key not in store:
            store[key] = value

    internal._internal_kv_put = put
    monkeypatch.setitem(sys.modules, "ray.experimental", ModuleType("ray.experimental"))
    monkeypatch.setitem(sys.modules, "ray.experimental.internal_kv", internal)
    return store


@pytest.fixture
def places(ray: Any, kept: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Machines of the copies that are started, of a release of two shards on the machines a and b."""
    started: list[str] = []

    def start(name: str, place: Any, *, num_cpus: float, node: str) -> Any:
        started.append(node)
        return SimpleNamespace(ready=SimpleNamespace(remote=lambda: name))

    entries = [SimpleNamespace(name=name, digest="digest") for name in ("s0", "s1")]
    release = SimpleNamespace(collection="papers", shards=entries, digest="digest", generation=1)
    monkeypatch.setattr("dsearch.cluster.transfer.read_release", lambda uri: release)
    monkeypatch.setattr("dsearch.cluster.shards.actor.start", start)
    ray.nodes = lambda: [
        {"NodeID": "b", "Alive": True},
        {"NodeID": "a", "Alive": True},
        {"NodeID": "dead", "Alive": False},
    ]
    ray.wait = lambda pending, num_returns, timeout: (pending, [])
    ray.get = lambda reference: reference
    now = iter(range(1, 9))
    monkeypatch.setattr(module.time, "time", lambda: next(now))
    return started


def test_copies_and_shards_are_spread_over_the_machines(places: list[str]) -> None:
    Coordinator().publish("uri", 2, "cache", num_cpus=1.0)
    assert places == ["a", "b", "b", "a"]  # two copies of each shard, and the first ones apart


def test_shards_of_a_replaced_release_end_after_its_grace_and_with_all_others(
    places: list[str], kept: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[tuple[float, Any]] = []
    ended: list[list[list[str]]] = []

    class Timer:
        def __init__(self, seconds: float, function: Any, arguments: list[Any]):
            timers.append((seconds, lambda: function(*arguments)))

        def start(self) -> None:
            pass

    tidied: list[list[list[list[str]]]] = []
    monkeypatch.setattr(module.threading, "Timer", Timer)
    monkeypatch.setattr(module, "_kill", ended.append)
    monkeypatch.setattr(module, "_tidy_caches", tidied.append)
    monkeypatch.setattr(module, "_END_S", 0.0)

    running = Coordinator()
    first, second, third = (
        running.publish("uri", 1, "cache", num_cpus=1.0, grace_s=5.0)["actors"] for _ in range(3)
    )
    assert [seconds for seconds, _ in timers] == [5.0, 5.0]
    timers[0][1]()
    assert (ended, tidied) == ([first], [[third]])  # on the machines of those that answer now
    again = Coordinator()  # as Ray restarts it
    assert (len(timers), timers[2][0]) == (3, module.GRACE_S)
    again.withdraw()
    assert ended == [first, third, second]
    assert (kept[module._STATE], kept[module._RETIRING]) == (b"{}", b"[]")
    timers[2][1]()  # late; what is gone is gone
    assert Coordinator().live() == {}
    assert len(timers) == 3


def test_each_copy_is_started_with_what_it_opens(places: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, float]] = []

    def start(name: str, place: Any, *, num_cpus: float, node: str) -> Any:
        started.append((place, num_cpus))
        return SimpleNamespace(ready=SimpleNamespace(remote=lambda: name))

    monkeypatch.setattr("dsearch.cluster.shards.actor.start", start)
    Coordinator().publish("uri", 1, "cache", num_cpus=0.25)
    assert started == [(("uri", name, "digest", "cache"), 0.25) for name in ("s0", "s1")]


@pytest.mark.parametrize("trouble", ["late", "closed", "last closed", "not started"])
def test_copies_of_a_release_that_does_not_start_are_ended(
    ray: Any, places: list[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """And the one before stays live."""
    ended: list[list[list[str]]] = []
    monkeypatch.setattr(module, "_kill", ended.append)
    running = Coordinator()
    before = running.publish("uri", 1, "cache", num_cpus=1.0)

    def closed(reference: Any) -> Any:
        raise RayTaskError(Conflict("damaged"))

    def refused(*_: Any, **__: Any) -> Any:
        raise RayError("no room")

    if trouble == "late":
        ray.wait = lambda pending, num_returns, timeout: (pending[:1], pending[1:])
    elif trouble == "closed":
        ray.get = closed
    elif trouble == "last closed":
        ray.get = lambda reference: closed(reference) if reference.endswith("s1:1") else reference
    else:
        monkeypatch.setattr("dsearch.cluster.shards.actor.start", refused)
    expected: Any = {"late": Unavailable, "not started": RayError}.get(trouble, Conflict)
    with pytest.raises(expected):
        running.publish("uri", 2, "cache", num_cpus=1.0)
    assert ended == [[[f"papers:2000:{name}:{copy}" for copy in range(2)] for name in ("s0", "s1")]]
    assert running.live() == {"papers": before}


def test_collections_are_live_side_by_side_and_each_replaced_one_ends_after_a_restart(
    places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Any] = []

    class Timer:
        def __init__(self, seconds: float, function: Any, arguments: list[Any]):
            timers.append(arguments)

        def start(self) -> None:
            pass

    monkeypatch.setattr(module.threading, "Timer", Timer)
    running = Coordinator()
    before = []
    entries = [SimpleNamespace(name="s0", digest="digest")]
    for name in ("papers", "notes"):
        release = SimpleNamespace(collection=name, shards=entries, digest="digest", generation=1)
        monkeypatch.setattr("dsearch.cluster.transfer.read_release", lambda uri, of=release: of)
        before.append(running.publish("uri", 1, "cache", num_cpus=1.0)["actors"])
        running.publish("uri", 1, "cache", num_cpus=1.0)
    assert {*running.live()} == {"papers", "notes"}
    timers.clear()
    assert {*Coordinator().live()} == {"papers", "notes"}
    assert [actors for (actors,) in timers] == before
