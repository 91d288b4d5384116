"""Builds beside everything else: when they start, what they leave, and that serving does not notice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support.fakes import HashingEncoder
from support.guarded import guarded
from support.locks import WatchedLock, waiting
from support.patience import LATEST_S

from dsearch.engine import Collection, SearchEngine, rebuild
from dsearch.engine.indexing.ingest import BuiltGeneration, build_files
from dsearch.errors import Cancelled, InsufficientStorage, InvalidRequest, ProcessDied
from dsearch.processes import Report
from dsearch.types import Document, Progress

checked = guarded(rebuild.Rebuilder, "_thread", "_next", lock="_starting", free=("wait",))


@pytest.fixture
def served(tmp_path: Path, encoder: HashingEncoder) -> Iterator[SearchEngine]:
    with SearchEngine(
        tmp_path / "home", encoder=lambda: encoder, rebuild_share=0.25, rebuild_minimum=5
    ) as engine:
        yield engine


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds in this process, where another one would be nothing but its start of two seconds."""

    def here(target: Any, *args: Any, on_progress: Any, cancelled: Any) -> Any:
        return target(on_progress, *args)

    monkeypatch.setattr(rebuild, "run_spawned", here)
    monkeypatch.setattr(os, "nice", lambda increment: increment)


def some(first: int, count: int) -> list[Document]:
    return [Document(id=f"n{i}", text=f"apple number{i}") for i in range(first, first + count)]


def live(collection: Collection) -> int:
    return collection.describe().generation


@pytest.mark.usefixtures("built_here")
def test_a_build_starts_when_the_delta_is_due_and_not_before(served: SearchEngine) -> None:
    food = served.create("food")
    before = live(food)
    food.upsert(some(0, 4))
    assert food.rebuilder.due_at == 5
    food.rebuilder.wait()
    assert live(food) == before
    food.upsert(some(4, 20))
    food.rebuilder.wait()
    assert live(food) == before + 1
    assert len(food.snapshot.fresh) == 0
    assert food.snapshot.built == 24
    food.delete([f"n{i}" for i in range(5)])  # under a quarter of 24
    food.rebuilder.wait()
    assert live(food) == before + 1
    food.delete(["n5"])
    food.rebuilder.wait()
    assert live(food) == before + 2
    assert food.snapshot.excluded is None
    assert food.rebuilder.status() == {"share": 0.25, "running": False, "progress": None, "problem": None}


def test_closing_waits_for_a_start_and_ends_it(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuilder = collection.rebuilder
    monkeypatch.setattr(rebuilder, "_starting", starting := WatchedLock())
    with waiting(starting, rebuilder.close):
        assert not rebuilder._closed.is_set()  # what starts now is waited for
    rebuilder.in_background(lambda: pytest.fail("it begins after the end"))
    assert rebuilder._thread is None


def test_nothing_starts_by_itself_unless_it_is_wanted(collection: Collection) -> None:
    before = live(collection)
    collection.upsert(some(0, 2000))
    assert collection.rebuilder.due_at == float("inf")
    collection.rebuilder.wait()
    assert live(collection) == before


def test_it_is_built_in_another_process_and_writes_meanwhile_are_searched_beside_it(
    served: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    food = served.create("food")
    food.upsert(some(0, 4))
    seen: list[Progress] = []

    def on_progress(step: Progress) -> None:
        if not seen:
            food.upsert([Document(id="late", text="banana")])  # the writers' lock is free
            food.delete(["n0"])
        seen.append(step)

    def no(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("built in the serving process")

    monkeypatch.setattr(rebuild, "build_files", no)
    food.refresh(on_progress)
    assert {step.stage for step in seen} >= {"embeddings", "keys", "keyword", "digests"}
    assert food.search("banana").hits[0].id == "late"
    assert {hit.id for hit in food.search("apple").hits} == {"n1", "n2", "n3", "late"}


def build_and_die(report: Report, path: Path, *rest: Any) -> BuiltGeneration:
    rebuild_original(report, path, *rest)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def build_half_and_die(report: Report, path: Path, *rest: Any) -> BuiltGeneration:
    def die(step: Progress) -> None:
        if step.stage == "keys":
            os.kill(os.getpid(), signal.SIGKILL)

    return rebuild_original(die, path, *rest)


def build_slowly(report: Report, path: Path, *rest: Any) -> BuiltGeneration:
    report(Progress("keys", 0, 1, 0.0))
    threading.Event().wait(LATEST_S)
    raise AssertionError


rebuild_original = rebuild.build_in_child


@pytest.mark.parametrize("dying", [build_and_die, build_half_and_die])
def test_a_build_that_dies_changes_nothing_and_is_told(
    served: SearchEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dying: Any
) -> None:
    food = served.create("food")
    before = live(food)
    with monkeypatch.context() as broken:
        broken.setattr(rebuild, "build_in_child", dying)
        food.upsert(some(0, 10))
        food.rebuilder.wait()
        problem = food.rebuilder.status()["problem"]
        assert "SIGKILL" in problem
        assert f"collection food was not rebuilt: {problem}" in caplog.text
        assert food.rebuilder.due_at == 15  # not again at once
        with pytest.raises(ProcessDied):
            food.refresh()
    assert live(food) == before
    assert len(food.search("apple", limit=20).hits) == 10
    assert len(list((food.store.path / "generations").iterdir())) > 1
    served.close()
    with SearchEngine(served.home.path, encoder=HashingEncoder) as again:
        food = again.collection("food")
        assert [path.name for path in (food.store.path / "generations").iterdir()] == ["000001"]
        assert len(food.search("apple", limit=20).hits) == 10
        food.refresh()
        assert food.snapshot.built == 10


@pytest.mark.usefixtures("built_here")
def test_a_build_that_succeeds_ends_the_report_of_an_earlier_one(
    served: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    food = served.create("food")
    with monkeypatch.context() as broken:
        broken.setattr(rebuild, "build_in_child", Mock(side_effect=InsufficientStorage("full")))
        food.upsert(some(0, 10))
        food.rebuilder.wait()
    assert (food.rebuilder.status()["problem"], food.rebuilder.due_at) == ("full", 15)
    food.refresh()
    assert (food.rebuilder.status()["problem"], food.rebuilder.due_at) == (None, 5)


def test_closing_cancels(served: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    food = served.create("food")
    started = threading.Event()
    original = rebuild.run_spawned

    def spawned(*args: Any, on_progress: Any, **kwargs: Any) -> Any:
        def noted(step: Progress) -> None:
            on_progress(step)
            started.set()

        return original(*args, on_progress=noted, **kwargs)

    monkeypatch.setattr(rebuild, "run_spawned", spawned)
    monkeypatch.setattr(rebuild, "build_in_child", build_slowly)
    food.upsert(some(0, 10))
    assert started.wait(LATEST_S)
    assert food.rebuilder.status()["running"]
    food.upsert(some(10, 20))  # one at a time
    assert food.rebuilder._next is None  # pyright: ignore[reportPrivateUsage]
    assert len([thread for thread in threading.enumerate() if thread.name == "rebuild food"]) == 1
    served.close()
    assert food.rebuilder.status()["problem"] is None
    assert not food.rebuilder.status()["running"]


def test_work_that_waits_for_its_turn_does_not_begin_after_the_end(collection: Collection) -> None:
    rebuilder = collection.rebuilder
    begun, go, ran = threading.Event(), threading.Event(), list[int]()
    rebuilder.in_background(lambda: (begun.set(), go.wait(LATEST_S)))
    assert begun.wait(LATEST_S)
    rebuilder.in_background(lambda: ran.append(1), wait=True)
    closing = threading.Thread(target=rebuilder.close)
    closing.start()
    assert rebuilder._closed.wait(LATEST_S)  # pyright: ignore[reportPrivateUsage]
    go.set()
    closing.join(LATEST_S)
    assert not closing.is_alive()
    assert ran == []


def test_a_refresh_can_be_cancelled(served: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    food = served.create("food")
    monkeypatch.setattr(rebuild, "build_in_child", build_slowly)
    stages: list[str] = []
    with pytest.raises(Cancelled):
        food.refresh(lambda step: stages.append(step.stage), cancelled=lambda: "keys" in stages)
    assert not food.rebuilder.status()["running"]


def test_what_was_purged_while_it_was_built_is_not_published(collection: Collection) -> None:
    store = collection.store
    built = build_files(store)
    opened = collection._snapshots.opened(built)  # pyright: ignore[reportPrivateUsage]
    collection.delete(["d1"])
    collection.refresh()
    for number in store.retirable_generations(1):
        store.retire_generation(number)
    store.purge()
    before = live(collection)
    with pytest.raises(Exception, match="purged meanwhile; build it again"):
        collection._snapshots.publish(built, opened)  # pyright: ignore[reportPrivateUsage]
    assert live(collection) == before
    assert not opened.folder.exists()


def test_a_share_that_is_none_is_refused(tmp_path: Path) -> None:
    for share in (0.0, -0.5, float("nan")):
        with pytest.raises(InvalidRequest, match=rf"rebuild_share={share}; use a number above 0"):
            SearchEngine(tmp_path, rebuild_share=share)
    with pytest.raises(InvalidRequest, match="rebuild_minimum=0"):
        SearchEngine(tmp_path, rebuild_minimum=0)
    SearchEngine(tmp_path).close()  # the lock was not taken


def test_the_answers_are_those_of_a_build_here(served: SearchEngine, encoder: HashingEncoder) -> None:
    food = served.create("food")
    food.ingest(some(0, 40))
    with SearchEngine(served.home.path.with_name("other"), encoder=lambda: encoder) as other:
        here = other.create("food")
        here.ingest(some(0, 40))
        for query in ("apple", "number7", "number12 apple"):
            answers = [one.search(query).hits for one in (food, here)]
            assert answers[0] == answers[1]
        built = [one.snapshot.generation for one in (food, here)]
        assert np.array_equal(built[0].embeddings, built[1].embeddings)
