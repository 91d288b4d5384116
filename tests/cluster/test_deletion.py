"""Deleting beside a cluster: answers say what shards still have, purge refuses, old releases are removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder
from support.service.tasks import ORIGIN, app_of, ended

import dsearch as package
from dsearch.cluster import connection, coordinator, transfer
from dsearch.cluster.release import Release, split
from dsearch.cluster.shards.shard import LocalShards, Shard
from dsearch.cluster.transfer import fetch_shard, send, tidy_cache
from dsearch.encoder import Encoder
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.indexing.leases import KEEP
from dsearch.engine.indexing.releases import (
    FOLDER,
    mark_published,
    mark_sent,
    releases_of,
    retire_releases,
    sent_releases,
)
from dsearch.engine.maintenance.compact import compact
from dsearch.types import Document

SECRET = "zanzibarquux"
NEXT = "until the next publishing"


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    return Terminal(tmp_path / "home", capsys, monkeypatch)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose collection has a document with the secret, and a release with both."""
    with opened(tmp_path / "home") as engine:
        food = engine.create("food")
        food.ingest([Document("a", f"apple {SECRET}"), Document("b", "bread"), Document("c", "cheese")])
        publish(food)
    return tmp_path / "home"


def opened(home: Path) -> SearchEngine:
    return SearchEngine(home, encoder=HashingEncoder)


def publish(collection: Collection, shards: int = 2) -> Path:
    """Split the live generation as `dsearch cluster start` does."""
    generation = collection.snapshot.generation
    folder = (
        collection.store.path / FOLDER / f"{generation.number:06d}-{shards}-{generation.manifest.digest[:12]}"
    )
    if not folder.is_dir():
        split(collection.store, generation, folder, shards)
    mark_published(folder)
    return folder


def holding(folder: Path) -> list[str]:
    """Files with the secret in their bytes.

    Another process looks: closing a file of SQLite's here would drop the locks of its connections.
    """
    code = (
        "import sys, pathlib\n"
        "for path in pathlib.Path(sys.argv[1]).rglob('*'):\n"
        "    if path.is_file() and sys.argv[2].encode() in path.read_bytes(): print(path.name)"
    )
    command = [sys.executable, "-S", "-c", code, str(folder), SECRET]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_deleting_beside_a_cluster_says_that_shards_answer_until_the_next_publishing(
    home: Path, dsearch: Terminal
) -> None:
    code, _, err = dsearch("delete", "a", "-c", "food", "--home", home)
    assert code == 0
    assert NEXT in err
    assert f"dsearch refresh --home {home} -c food" in err
    assert f"dsearch cluster start --home {home} -c food --shards 2" in err
    assert NEXT in json.loads(dsearch("delete", "b", "-c", "food", "--json")[1])["note"]
    assert NEXT not in dsearch("delete", "nobody", "-c", "food")[2]


def test_routes_and_clients_say_that_shards_answer_with_what_was_deleted(home: Path) -> None:
    with opened(home) as engine, TestClient(app_of(engine), base_url=ORIGIN) as client:
        documents = "/v1/collections/food/documents"
        assert NEXT in client.delete(f"{documents}/a").json()["note"]
        assert NEXT in client.post(f"{documents}/delete", json={"ids": ["b"]}).json()["note"]
        task = client.post("/v1/collections/food/compact").json()
        result = ended(client, task["id"])["result"]
        assert result["complete"] is False
        assert str(home) not in json.dumps(result)
        (name,) = result["releases"]
        assert name in result["note"]
        assert "dsearch cluster start -c food" in result["note"]
    with package.open(home, encoder=HashingEncoder) as here:
        assert NEXT in str(here.delete("food", "c").note)


def test_nothing_is_said_of_shards_where_nothing_was_published(tmp_path: Path, dsearch: Terminal) -> None:
    with opened(tmp_path / "home") as engine:
        engine.create("food").ingest([Document("a", f"apple {SECRET}"), Document("b", "bread")])
    code, out, err = dsearch("delete", "a", "-c", "food", "--json")
    assert (code, json.loads(out)["note"], NEXT in err) == (0, None, False)
    assert dsearch("purge", "-c", "food")[0] == 0
    assert holding(tmp_path / "home") == []


def test_purge_refuses_while_a_release_holds_the_text(home: Path, dsearch: Terminal) -> None:
    """Until another one is published, and until the shards of the replaced one have ended."""
    dsearch("delete", "a", "-c", "food")
    with opened(home) as engine:
        first = releases_of(engine.collection("food").store)[0]
    for _ in range(2):  # again, too: what is published last is never removed
        code, out, err = dsearch("purge", "-c", "food", "--home", home)
        assert (code, "every file" in out) == (1, False)
        assert first.name in err
        assert f"dsearch cluster start --home {home} -c food --shards 2" in err
    with closing(LocalShards(first)):
        with opened(home) as engine:
            publish(engine.collection("food"))
        code, _, err = dsearch("purge", "-c", "food")
        assert (code, first.name in err) == (1, True)
        assert holding(first) != []
    code, out, _ = dsearch("purge", "-c", "food", "--json")
    assert (code, json.loads(out)["releases"], json.loads(out)["note"]) == (0, [], None)
    assert holding(home) == []
    assert not first.exists()


def test_a_replaced_text_in_a_release_keeps_purge_from_being_complete(home: Path) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        food.upsert([Document("a", "apple")])
        assert compact(food).releases == (releases_of(food.store)[0].name,)
        publish(food)
        assert compact(food).complete
    assert holding(home) == []


def test_a_release_that_records_no_rows_counts_as_holding_what_was_deleted(home: Path) -> None:
    """One of a release of dsearch before query memories."""
    with opened(home) as engine:
        food = engine.collection("food")
        assert compact(food).complete
        (next(iter(releases_of(food.store))) / "000" / "rows.npy").unlink()
        assert not compact(food).complete


def test_old_releases_are_removed_by_the_retention_of_generations(home: Path) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        first = releases_of(food.store)[0]
        made = [first]
        with closing(LocalShards(first)):
            for number in range(KEEP + 2):
                food.upsert([Document(f"new{number}", "grape")])
                food.refresh()
                made.append(publish(food))
            assert set(releases_of(food.store)) == {first, *made[-KEEP - 1 :]}
        food.refresh()  # a writer does it with each generation
        assert set(releases_of(food.store)) == set(made[-KEEP:])
        publish(food)
        mark_published(made[-KEEP])  # started again
        os.utime(made[-1] / "release.json", (0, 0))
        retire_releases(food.store, keep=1)
        assert releases_of(food.store) == [made[-KEEP]]


def test_what_a_broken_split_left_is_removed_and_a_running_one_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        broken = food.store.path / FOLDER / ".000009-2-x.splitting-1-a" / "000"
        broken.mkdir(parents=True)
        (broken / "documents.db").write_text(SECRET)
        removed: list[str] = []

        def publish_folder(unfinished: Path, folder: Path) -> None:
            removed.extend(retire_releases(food.store))
            unfinished.rename(folder)

        monkeypatch.setattr("dsearch.cluster.release.publish_folder", publish_folder)
        split(food.store, food.snapshot.generation, food.store.path / FOLDER / "other", 2)
        assert removed == [broken.parent.name]
        assert (food.store.path / FOLDER / "other" / "release.json").is_file()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster that takes every release; their places."""
    places: list[str] = []

    def publish(uri: str, *_: Any) -> dict[str, str]:
        places.append(uri)
        return {"uri": uri}

    running = SimpleNamespace(publish=SimpleNamespace(remote=publish))
    monkeypatch.setattr(connection, "ray_module", lambda: None)
    monkeypatch.setattr("dsearch.cli.commands.serve._joined_or_started", lambda address: address)
    monkeypatch.setattr(coordinator, "coordinator", lambda start=False: running)
    monkeypatch.setattr(coordinator, "outcome", lambda reference: reference)
    return places


def test_copies_elsewhere_are_removed_when_they_are_replaced_and_keep_purge_from_being_complete(
    home: Path, dsearch: Terminal, cluster: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    shelf = (tmp_path / "shelf").as_uri()
    start = ("cluster", "start", "-c", "food", "--shards", "2", "--at", shelf)
    assert dsearch(*start)[0] == 0
    assert holding(tmp_path / "shelf") != []
    dsearch("delete", "a", "-c", "food")
    code, _, err = dsearch("purge", "-c", "food")
    assert (code, cluster[0] in err, "--at" in err) == (1, True, True)
    assert dsearch(*start)[0] == 0
    assert holding(tmp_path / "shelf") == []
    assert Path(cluster[1].removeprefix("file://")).is_dir()
    assert dsearch("purge", "-c", "food")[0] == 0
    assert holding(home) == []
    with opened(home) as engine:
        assert [sent.uri for sent in sent_releases(engine.collection("food").store)] == cluster[1:]


def test_a_migrated_collection_knows_the_copies_of_its_releases(home: Path) -> None:
    with opened(home) as engine:
        food = engine.collection("food")
        mark_sent(food.store, releases_of(food.store)[0], "s3://shelf/food")
        engine.migrate("food", HashingEncoder(dimension=16))
        migrated = engine.collection("food")
        assert [sent.uri for sent in sent_releases(migrated.store)] == ["s3://shelf/food"]
        assert compact(migrated).releases == ("s3://shelf/food",)


def test_copies_of_replaced_shards_leave_the_cache_of_a_machine(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    cache, there = tmp_path / "cache", (tmp_path / "there").as_uri()
    with opened(home) as engine:
        folder = releases_of(engine.collection("food").store)[0]
    send(folder, there)
    monkeypatch.setattr(transfer, "_local", lambda uri: None)  # as on another machine
    release = Release.read(folder)
    copies = [fetch_shard(there, shard.name, shard.digest, cache) for shard in release.shards]
    tidy_cache(cache, "other", [])
    tidy_cache(cache, "food", [shard.digest for shard in release.shards])
    assert all(copy.is_dir() for copy in copies)
    with closing(Shard.open(copies[0])):
        tidy_cache(cache, "food", [])
        assert [copy.is_dir() for copy in copies] == [True, False]
    tidy_cache(cache, "food", [])
    assert holding(cache) == []
