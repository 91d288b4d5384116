"""A Ray of our own: how it is started, what it is told, and that nothing stays of one that fails."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from dsearch.cluster import connection
from dsearch.cluster.connection import OBJECT_STORE_BYTES, OF_OUR_RAY
from dsearch.errors import Unavailable


class _Process:
    """A process that prints what it is told to, and ends if it is said."""

    pid = 4711

    def __init__(self, printed: str, ended: int | None = None):
        self._printed, self._ended = printed, ended
        self.command: list[str] = []
        self.options: dict[str, Any] = {}

    def __call__(self, command: list[str], **options: Any) -> _Process:
        self.command, self.options = command, options
        options["stdout"].write(self._printed)
        options["stdout"].flush()
        return self

    def poll(self) -> int | None:
        return self._ended


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses that are remembered, and processes that are ended."""
    calls: list[Any] = []
    monkeypatch.setattr(connection, "_remember", lambda *given: calls.append(given))
    monkeypatch.setattr(connection, "_end", lambda process: calls.append(process))
    return calls


def test_what_the_environment_says_to_ray_reaches_it(
    monkeypatch: pytest.MonkeyPatch, noted: list[Any]
) -> None:
    for name in OF_OUR_RAY:
        monkeypatch.delenv(name, raising=False)
    name = next(iter(OF_OUR_RAY))
    monkeypatch.setenv(name, "mine")
    monkeypatch.setattr(connection.subprocess, "Popen", process := _Process("Ray runtime started."))
    assert connection.start_head(cpus=3) == "127.0.0.1:6379"
    environment = process.options["env"]
    assert {each: environment[each] for each in OF_OUR_RAY} == {**OF_OUR_RAY, name: "mine"}
    assert process.options["start_new_session"] is True
    assert process.command[-5:] == [
        "--node-ip-address=127.0.0.1",
        "--port=6379",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-dashboard=false",
        "--num-cpus=3",
    ]
    assert noted == [("127.0.0.1:6379", 4711)]


def test_the_port_is_that_of_the_address(monkeypatch: pytest.MonkeyPatch, noted: list[Any]) -> None:
    monkeypatch.setattr(connection.subprocess, "Popen", process := _Process("Ray runtime started."))
    assert connection.start_head("127.0.0.1:7777") == "127.0.0.1:7777"
    assert "--port=7777" in process.command
    assert not any(part.startswith("--num-cpus") for part in process.command)
    connection.start_head(cpus=1)
    assert process.command[-1] == "--num-cpus=1"


@pytest.mark.parametrize(("kept", "ended"), [(b"4711", [4711]), (b"", []), (None, [])])
def test_a_ray_of_our_own_is_ended_and_no_other(
    monkeypatch: pytest.MonkeyPatch, noted: list[Any], kept: bytes | None, ended: list[int]
) -> None:
    ray, internal = ModuleType("ray"), ModuleType("ray.experimental.internal_kv")
    left: list[None] = []
    ray.shutdown = lambda: left.append(None)  # type: ignore[attr-defined]
    internal._internal_kv_get = lambda key: kept  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.experimental", ModuleType("ray.experimental"))
    monkeypatch.setitem(sys.modules, "ray.experimental.internal_kv", internal)
    assert connection.stop_head() == bool(ended)
    assert noted == ended
    assert len(left) == len(ended)


def test_one_that_does_not_start_is_ended_and_says_why(
    monkeypatch: pytest.MonkeyPatch, noted: list[Any]
) -> None:
    monkeypatch.setattr(connection.subprocess, "Popen", _Process("no room", ended=1))
    with pytest.raises(Unavailable, match=r"^Ray did not start at 127\.0\.0\.1:6379: no room$"):
        connection.start_head()
    assert noted == [4711]


def test_one_that_takes_too_long_is_ended_and_says_how_long_it_had(
    monkeypatch: pytest.MonkeyPatch, noted: list[Any]
) -> None:
    monkeypatch.setattr(connection.subprocess, "Popen", _Process("Local node IP"))
    monkeypatch.setattr(connection, "START_S", 0.0)
    with pytest.raises(Unavailable, match=r"^Ray did not start at \S+ within 0 s: Local node IP$"):
        connection.start_head()
    assert noted == [4711]


def test_another_machine_is_told_to_start_its_own(noted: list[Any]) -> None:
    with pytest.raises(Unavailable, match=r"^no Ray cluster answers at 10\.0\.0\.1:6379; start one there"):
        connection.start_head("10.0.0.1:6379")
    assert noted == []


def test_a_process_that_is_gone_is_no_error_and_runs_no_more() -> None:
    import subprocess
    import sys

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    connection._end(ended.pid)
    assert not connection._runs(ended.pid)


def test_an_address_that_cannot_be_remembered_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    ended: list[int] = []

    def connect(address: str) -> None:
        raise Unavailable("nobody answers")

    monkeypatch.setattr("dsearch.cluster.connection.connect", connect)
    monkeypatch.setattr(connection, "_end", ended.append)
    with pytest.raises(Unavailable):
        connection._remember("127.0.0.1:1", 4711)
    assert ended == [4711]
