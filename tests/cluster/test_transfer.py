"""Releases travel: by a folder, by GCS, and by S3 where moto is installed to speak it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest
from support.ports import free_port

from dsearch.cluster import transfer
from dsearch.cluster.release import Release, split
from dsearch.cluster.shards.shard import Shard
from dsearch.cluster.transfer import below, fetch_shard, read_release, send
from dsearch.engine import Collection
from dsearch.engine.indexing.releases import RELEASE_NAME
from dsearch.errors import CorruptData, InvalidRequest, Unavailable

pytest.importorskip("pyarrow")


@pytest.fixture
def folder(collection: Collection, tmp_path: Path) -> Path:
    collection.refresh()
    split(collection.store, collection.snapshot.generation, tmp_path / "release", 2)
    return tmp_path / "release"


@pytest.fixture
def s3_shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket="shelf")
    yield f"s3://shelf/shards?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    server.stop()


@pytest.fixture
def gcs_shelf() -> Iterator[str]:
    server_module = pytest.importorskip("gcp_storage_emulator.server")
    port = free_port("localhost")
    server = server_module.create_server("localhost", port, in_memory=True, default_bucket="shelf")
    server.start()
    options = f"endpoint_override=localhost:{port}&scheme=http&retry_limit_seconds=60"
    yield f"gs://anonymous@shelf/shards?{options}"
    server.stop()


def arrives(folder: Path, uri: str, cache: Path) -> None:
    send(folder, uri)
    release = read_release(uri)
    assert release.digest == Release.read(folder).digest
    for entry in release.shards:
        copied = fetch_shard(uri, entry.name, entry.digest, cache)
        assert fetch_shard(uri, entry.name, entry.digest, cache) == copied
        Shard.open(copied, entry.digest).close()


@pytest.mark.parametrize("store", ["s3_shelf", "gcs_shelf"])
def test_a_release_travels_by_an_object_store(
    store: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shelf = request.getfixturevalue(store)
    arrives(folder, below(shelf, "food", folder.name), tmp_path / "cache")
    with pytest.raises(CorruptData, match="send the release again"):
        read_release(below(shelf, "nothing"))
    with pytest.raises(Unavailable, match=r"cannot write to elsewhere/x .* is it there"):
        send(folder, shelf.replace("shelf/shards", "elsewhere/x"))


def test_a_release_travels_by_a_folder(folder: Path, tmp_path: Path) -> None:
    arrives(folder, (tmp_path / "there").as_uri(), tmp_path / "cache")


def test_a_shard_of_this_machine_is_read_where_it_lies(folder: Path, tmp_path: Path) -> None:
    entry = Release.read(folder).shards[0]
    here = fetch_shard(str(folder), entry.name, entry.digest, tmp_path / "cache")
    assert here == folder / entry.name
    assert not (tmp_path / "cache").exists()


def test_another_shard_than_the_release_names_is_not_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody exchanged one for the other, each whole in itself."""
    there = (tmp_path / "there").as_uri()
    send(folder, there)
    first, second = Release.read(folder).shards
    monkeypatch.setattr(transfer, "_local", lambda uri: None)
    with pytest.raises(CorruptData, match="of another shard than the release names"):
        fetch_shard(there, first.name, second.digest, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs a folder that takes nothing")
def test_a_place_that_takes_nothing_is_told(folder: Path) -> None:
    with pytest.raises(Unavailable, match="cannot write to /proc/shards"):
        send(folder, "file:///proc/shards")
    with pytest.raises(InvalidRequest, match="use a folder, s3://"):
        send(folder, "nowhere://shards")


@pytest.mark.parametrize(
    ("uri", "there"),
    [
        ("/shards/", "/shards/food/000001"),
        ("s3://shelf", "s3://shelf/food/000001"),
        ("s3://shelf/a/?region=x&scheme=http", "s3://shelf/a/food/000001?region=x&scheme=http"),
    ],
)
def test_options_stay_behind_the_folder(uri: str, there: str) -> None:
    assert below(uri, "food", "000001") == there


def test_a_release_is_none_until_all_of_it_was_sent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its release.json comes last: who reads it finds the shards that it names."""
    copied: list[str] = []

    def copy(source: BinaryIO, sink: object, length: int) -> None:
        copied.append(Path(source.name).relative_to(folder).as_posix())

    monkeypatch.setattr("dsearch.cluster.transfer.shutil.copyfileobj", copy)
    send(folder, (tmp_path / "there").as_uri())
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(copied) == sorted(files)
    assert copied[-1] == RELEASE_NAME


def test_a_shard_that_names_a_file_outside_itself_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made the digests of such a manifest can make them fit."""
    there = (tmp_path / "there").as_uri()
    send(folder, there)
    entry = Release.read(folder).shards[0]
    for name in ("../outside", "/outside", "a/../../outside"):
        manifest = SimpleNamespace(files={name: {}})
        monkeypatch.setattr(transfer.ShardManifest, "read", lambda *_, made=manifest: made)
        # As from a bucket: a release in a folder of this machine is read where it lies.
        monkeypatch.setattr(transfer, "_local", lambda uri: None)
        with pytest.raises(CorruptData, match="names a file outside itself"):
            fetch_shard(there, entry.name, entry.digest, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("faster", [True, False])
def test_of_two_that_fetch_a_shard_at_once_the_slower_takes_what_is_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    there, cache = (tmp_path / "there").as_uri(), tmp_path / "cache"
    send(folder, there)
    entry = Release.read(folder).shards[0]

    def rename(arriving: Path, shard: Path) -> None:
        if faster:
            shutil.copytree(arriving, shard)
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(transfer, "_local", lambda uri: None)
    monkeypatch.setattr(Path, "rename", rename)
    if faster:
        assert fetch_shard(there, entry.name, entry.digest, cache) == cache / entry.digest
    else:
        with pytest.raises(OSError, match="not empty"):
            fetch_shard(there, entry.name, entry.digest, cache)
    assert [path.name for path in cache.iterdir()] == [entry.digest] * faster


def test_a_look_at_a_release_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingress looks whenever something is published."""
    there, scratch = (tmp_path / "there").as_uri(), tmp_path / "scratch"
    send(folder, there)
    monkeypatch.setattr(transfer, "_local", lambda uri: None)
    monkeypatch.setattr(transfer, "_scratch", lambda: scratch.mkdir() or str(scratch))
    assert read_release(there).digest == Release.read(folder).digest
    assert not scratch.exists()
    with pytest.raises(CorruptData):
        read_release(f"{there}/nothing")
    assert not scratch.exists()
