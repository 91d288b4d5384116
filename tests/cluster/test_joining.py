"""What Ray is told when a cluster is joined or started, by a Ray that only listens."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.cluster import connection
from dsearch.cluster.connection import NAMESPACE, OBJECT_STORE_BYTES, OF_OUR_RAY, connect, ray_module
from dsearch.errors import InvalidRequest, MissingExtra, Unavailable


class Ray(SimpleNamespace):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(told=[], running=False, error=None)

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **options: Any) -> None:
        self.told.append(options)
        if self.error is not None:
            raise self.error


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    listening = Ray()
    monkeypatch.setattr(connection, "ray_module", lambda: listening)
    monkeypatch.setattr(connection, "answers", lambda address: True)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for name in OF_OUR_RAY:
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)
    return listening


def test_a_new_cluster_is_of_this_machine_alone(ray: Ray) -> None:
    assert connect(None, num_cpus=3) is ray
    (told,) = ray.told
    assert (told["address"], told["_node_ip_address"]) == ("local", "127.0.0.1")
    assert (told["namespace"], told["num_cpus"]) == (NAMESPACE, 3)
    assert told["object_store_memory"] == OBJECT_STORE_BYTES
    assert told["include_dashboard"] is False
    assert {name: os.environ[name] for name in OF_OUR_RAY} == OF_OUR_RAY


def test_what_the_environment_says_to_ray_stays(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_OUR_RAY:
        monkeypatch.setenv(name, "7")
    connect(None)
    assert {os.environ[name] for name in OF_OUR_RAY} == {"7"}


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("127.0.0.1:6379", "127.0.0.1"),
        ("localhost:6379", "127.0.0.1"),
        ("auto", None),
        ("10.0.0.7:6379", None),
    ],
)
def test_a_cluster_is_joined_by_its_address(
    ray: Ray, monkeypatch: pytest.MonkeyPatch, address: str, own: str | None
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr(connection, "answers", lambda asked: asked != "auto")  # it names no port
    connect(address)
    (told,) = ray.told
    assert (told["address"], told["namespace"], told.get("_node_ip_address")) == (address, NAMESPACE, own)
    assert "object_store_memory" not in told


def test_a_cluster_that_was_joined_is_not_joined_again(ray: Ray) -> None:
    ray.running = True
    assert connect("auto") is ray
    assert ray.told == []


def test_other_machines_without_tokens_are_not_even_asked(ray: Ray) -> None:
    with pytest.raises(InvalidRequest, match="set RAY_AUTH_MODE=token"):
        connect("10.0.0.7:6379")
    assert ray.told == []


@pytest.mark.parametrize("error", [ConnectionError("no"), RuntimeError("no"), ValueError("no")])
def test_a_cluster_that_does_not_answer_is_named(ray: Ray, error: Exception) -> None:
    ray.error = error
    with pytest.raises(Unavailable, match=r"no Ray cluster answers at auto \(no\); start one") as refused:
        connect("auto")
    assert "cluster start" in str(refused.value.to_dict().get("hint"))


@pytest.mark.parametrize(
    ("version", "old"), [("2.51.9", True), ("2.52.0", False), ("3.0.0", False), ("1.99", True)]
)
def test_a_ray_that_knows_no_tokens_is_too_old(
    monkeypatch: pytest.MonkeyPatch, version: str, old: bool
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__version__=version))  # type: ignore[arg-type]
    if not old:
        assert ray_module().__version__ == version
        return
    with pytest.raises(MissingExtra, match=f"Ray {version} is installed"):
        ray_module()
