"""Whom a cluster lets in, where it is looked for, and copies that cannot open their shard yet."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from dsearch.cluster import connection, transfer
from dsearch.cluster.connection import answers, is_loopback, require_token
from dsearch.cluster.messages import NotOpen
from dsearch.cluster.packing import pack
from dsearch.cluster.release import Release, split
from dsearch.cluster.shards.actor import ShardActor
from dsearch.engine import Collection
from dsearch.errors import CorruptData, InvalidRequest, MissingExtra, Unavailable
from dsearch.threads import set_threads


@pytest.mark.parametrize("address", ["10.0.0.7:6379", "head:6379", "ray://10.0.0.7:10001"])
def test_other_machines_are_joined_with_tokens_alone(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InvalidRequest, match="set RAY_AUTH_MODE=token on every node"):
        require_token(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    require_token(address)


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "[::1]:6379", "localhost:1", "ray://127.0.0.1:10001"])
def test_this_machine_needs_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert is_loopback(address)
    require_token(address)


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    ray = pytest.importorskip("ray")
    from dsearch.cluster.connection import connect

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)
    assert not answers("127.0.0.1:none")
    if not ray.is_initialized():  # then it would be given the cluster of other tests
        with pytest.raises(Unavailable, match="nothing listens at"):
            connect(address)


def test_a_copy_opens_its_shard_when_that_is_to_be_had(collection: Collection, tmp_path: Path) -> None:
    collection.refresh()
    split(collection.store, collection.snapshot.generation, tmp_path / "made", 2)
    entry = Release.read(tmp_path / "made").shards[1]
    there = tmp_path / "there"
    try:
        actor = ShardActor(str(there), entry.name, entry.digest, str(tmp_path / "cache"))
    finally:
        set_threads()
    with pytest.raises(CorruptData, match="is not there"):
        actor.ready()
    with pytest.raises(NotOpen, match="is not open here"):
        actor.answer("show", pack(None))
    with pytest.raises(InvalidRequest, match="a shard answers propose"):
        actor.answer("close", pack(None))
    (tmp_path / "made").rename(there)
    assert actor.ready() == entry.digest
    actor._shard.close()


@pytest.mark.parametrize(("release", "taken"), [("2.51.9", False), ("2.6.1", False), ("2.100.0", True)])
def test_releases_are_compared_by_their_numbers(
    monkeypatch: pytest.MonkeyPatch, release: str, taken: bool
) -> None:
    ray = pytest.importorskip("ray")
    from dsearch.cluster.connection import ray_module

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(ray, "__version__", release)
    if taken:
        assert ray_module() is ray
    else:
        with pytest.raises(MissingExtra, match=f"Ray {release} is installed"):
            ray_module()


def test_a_token_that_is_there_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from dsearch.cluster.connection import ray_module

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # so that all of them are as before when this ends
        monkeypatch.delenv(name)
    ray_module()
    assert "RAY_AUTH_MODE" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    ray_module()
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_an_address_of_six_bytes_and_more_has_its_port_behind_the_last_colon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def create(place: Any, timeout: float) -> Any:
        asked.append(place)
        return contextlib.nullcontext()

    monkeypatch.setattr(connection.socket, "create_connection", create)
    assert answers("[::1]:7")
    assert answers("ray://head:10001")
    assert asked == [("::1", 7), ("head", 10001)]


def test_a_copy_whose_disk_is_not_there_yet_opens_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: Any) -> Any:
        raise PermissionError(13, "not mounted")

    monkeypatch.setattr(transfer, "fetch_shard", fetch)
    try:
        actor = ShardActor("/shards", "000", "digest", "/cache")
    finally:
        set_threads()
    with pytest.raises(PermissionError, match="not mounted"):
        actor.ready()


def test_a_copy_serves_no_other_shard_than_its_release_names(
    collection: Collection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collection.refresh()
    split(collection.store, collection.snapshot.generation, tmp_path / "made", 2)
    first, second = Release.read(tmp_path / "made").shards
    try:
        actor = ShardActor(str(tmp_path / "made"), first.name, second.digest, str(tmp_path / "cache"))
    finally:
        set_threads()
    with pytest.raises(CorruptData, match="of another shard than the release names"):
        actor.ready()
