"""A real cluster of several nodes on this machine: what is lost while queries come, and what they notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster_checks import WORDS, require_same
from support.fakes import HashingEncoder
from support.patience import LATEST_S

from dsearch.cluster.collection import ClusterEngine, Releases
from dsearch.cluster.coordinator import LiveRelease, coordinator
from dsearch.cluster.messages import GatherRequest, ShardsLost
from dsearch.cluster.release import split
from dsearch.cluster.shards.actor import start
from dsearch.cluster.shards.remote import RayShards
from dsearch.engine import Searchable, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.errors import ShardsMissing
from dsearch.types import Document, SearchResult

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray
CPUS = 0.1
REST_S = 0.02


class Home:
    """A collection that is written here and answered by the cluster."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.encoder = HashingEncoder()
        self.writer = SearchEngine(folder / "home", encoder=lambda: self.encoder)
        self.written = self.writer.create("food")
        self.write("first")
        self.coordinator = coordinator(start=True)
        self.reader: ClusterEngine | None = None

    def write(self, mark: str) -> None:
        texts = [f"{WORDS[i % 16]} {WORDS[i % 5]} {mark} number{i}" for i in range(120)]
        self.written.ingest([Document(f"d{i}", text) for i, text in enumerate(texts)])
        self.written.refresh()

    def publish(self, shards: int, copies: int, grace_s: float = 3.0) -> LiveRelease:
        generation = self.written.snapshot.generation
        folder = self.folder / f"{generation.number:06d}-{shards}-{time.monotonic_ns()}"
        split(self.written.store, generation, folder, shards)
        cache = str(self.folder / "cache")
        started = self.coordinator.publish.remote(str(folder), copies, cache, CPUS, grace_s)
        return LiveRelease(**ray.get(started, timeout=LATEST_S))

    def open(self) -> Searchable:
        if self.reader is None:
            releases = Releases(
                lambda: ray.get(self.coordinator.live.remote(), timeout=LATEST_S),
                partial(RayShards, answer_s=LATEST_S),  # a lost copy is told at once; a slow one is not lost
            )
            self.reader = ClusterEngine(self.folder / "home", encoder=lambda: self.encoder, releases=releases)
        return self.reader.searchable("food")

    def close(self) -> None:
        ray.get(self.coordinator.withdraw.remote(), timeout=LATEST_S)
        self.writer.close()


@pytest.fixture
def home(nodes: object, tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


class Load:
    """Queries one after the other, in two threads, until the block ends.

    Each rests for as long as a query takes: what starts anew meanwhile needs the processor, too.
    """

    def __init__(self, collection: Searchable, **options: Any):
        self.answers: list[SearchResult] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()

        def ask() -> None:
            number = 0
            while not self._stop.is_set():
                number += 1
                try:
                    query = f"{WORDS[number % 16]} {WORDS[number % 5]}"
                    self.answers.append(collection.search(query, **options))
                except Exception as error:
                    self.errors.append(error)
                self._stop.wait(REST_S)

        self._threads = [threading.Thread(target=ask) for _ in range(2)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.further(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def further(self, answers: int, timeout_s: float = LATEST_S) -> None:
        """Wait for so many more answers."""
        wanted, until = len(self.answers) + answers, time.monotonic() + timeout_s
        while len(self.answers) < wanted and time.monotonic() < until:
            time.sleep(0.02)
        assert len(self.answers) >= wanted


def kill(name: str) -> None:
    """End an actor's process; Ray restarts it."""
    ray.kill(ray.get_actor(name, namespace="dsearch"), no_restart=False)


def running(name: str) -> bool:
    """An actor of this name answers."""
    try:
        ray.get_actor(name, namespace="dsearch")
    except ValueError:
        return False
    return True


@contextmanager
def eventually(seconds: float = LATEST_S) -> Iterator[Any]:
    until = time.monotonic() + seconds

    def waits(holds: Any) -> None:
        while not holds():
            assert time.monotonic() < until
            time.sleep(0.1)

    yield waits


def test_a_cluster_answers_as_one_machine_and_survives_its_losses(home: Home) -> None:
    live = home.publish(shards=2, copies=2)
    assert [len(copies) for copies in live.actors] == [2, 2]
    collection = home.open()
    for query in ("apple bread", "-apple", '"first number7"', "zebra"):
        for options in ({}, {"mode": "dense"}, {"hops": 2, "hop_strength": 0.5}, {"explain": True}):
            require_same(collection.search(query, **options), home.written.search(query, **options))
    assert not hasattr(collection, "attend")

    with Load(collection) as load:
        kill(live.actors[0][0])
        load.further(20)
        kill(live.actors[1][1])
        load.further(20)
        shards = home.reader._releases.live("food")[2]
        with eventually() as waits:
            waits(lambda: all(all(copies) for copies in shards.up()))
        load.further(20)
    assert not load.errors
    assert not any(answer.missing for answer in load.answers)


def test_a_swap_is_all_or_nothing_under_load(home: Home) -> None:
    replaced = home.publish(shards=2, copies=1, grace_s=3)
    collection = home.open()
    first = home.written.snapshot.generation.number
    with Load(collection, limit=50) as load:
        head = home.written.head("v0")
        version = save_model(home.written.store, head, parent="v0", record={})
        home.written.store.promote(version)
        load.further(10)
        home.write("second")
        home.publish(shards=1, copies=1, grace_s=3)
        with eventually() as waits:
            waits(lambda: load.answers[-1].stamp.generation > first)
            waits(lambda: not any(running(name) for copies in replaced.actors for name in copies))
        load.further(10)
    assert not load.errors
    assert {answer.stamp.model for answer in load.answers} == {"v0", version}
    assert len({answer.stamp.generation for answer in load.answers}) == 2
    for answer in load.answers:
        mark = "first" if answer.stamp.generation == first else "second"
        assert answer.hits
        assert all(mark in hit.text for hit in answer.hits)


def test_the_only_copy_of_a_shard_is_lost_and_comes_back(home: Home) -> None:
    live = home.publish(shards=2, copies=1)
    collection = home.open()
    whole = collection.search("apple bread", limit=5)
    kill(live.actors[1][0])
    told: list[tuple[str, Any]] = []

    def lost() -> bool:
        """A search may be over before the process is, and the copy back before the next search."""
        try:
            collection.search("apple bread", limit=5)
        except ShardsMissing as error:
            partial = collection.search("apple bread", limit=100, partial=True)
            if partial.missing:
                told.append((str(error), partial))
            else:
                kill(live.actors[1][0])
        return bool(told)

    with eventually() as waits:
        waits(lost)
    [(message, partial)] = told
    assert "1 of 2 shards with 50.0% of the documents" in message
    assert partial.missing == pytest.approx(1 / 2)
    assert not [hit for hit in partial.hits if int(hit.id[1:]) >= 60]

    def again() -> bool:
        try:
            return collection.search("apple bread", limit=5).hits == whole.hits
        except ShardsMissing:
            return False

    with eventually() as waits:
        waits(again)


def test_a_node_is_lost(nodes: Any, home: Home) -> None:
    extra = nodes.add_node(num_cpus=2, object_store_memory=80 << 20)
    try:
        home.publish(shards=2, copies=2)
        collection = home.open()
        with Load(collection) as load:
            nodes.remove_node(extra, allow_graceful=False)
            extra = None
            load.further(30)
            shards = home.reader._releases.live("food")[2]
            with eventually() as waits:
                waits(lambda: all(all(copies) for copies in shards.up()))
            load.further(10)
        assert not load.errors
    finally:
        if extra is not None:
            nodes.remove_node(extra)


def test_a_copy_whose_shard_was_out_of_reach_comes_back(home: Home) -> None:
    generation, folder = home.written.snapshot.generation, home.folder / "there"
    release = split(home.written.store, generation, folder, 1)
    entry = release.shards[0]
    folder.rename(home.folder / "elsewhere")
    node = next(one["NodeID"] for one in ray.nodes() if one["Alive"])
    place = (str(folder), entry.name, entry.digest, str(home.folder / "cache"))
    copy = start("away", place, num_cpus=CPUS, node=node)
    try:
        live = LiveRelease("food", str(folder), release.digest, generation.number, [["away"]], 1)
        shards = RayShards(live, answer_s=LATEST_S)
        asked = {0: GatherRequest(np.array([[7]]), None)}
        with pytest.raises(ShardsLost):
            shards.ask("gather", asked)
        (home.folder / "elsewhere").rename(folder)
        with eventually() as waits:
            waits(lambda: shards.up() == [[True]])
        assert np.array_equal(shards.ask("gather", asked)[0].embeddings[0, 0], generation.embeddings[7])
    finally:
        ray.kill(copy)
