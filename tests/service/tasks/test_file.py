"""Losses of tasks.db: cut, flipped, deleted, put back. Each is named, and searches go on without tasks."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fastapi.testclient import TestClient
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN
from support.sizes import by_size
from support.syncs import synced_nodes

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import CorruptData, DsearchError
from dsearch.service.tasks import store as store_module
from dsearch.service.tasks.store import TASKS, StoredTask, TaskStore
from dsearch.store.sqlite import watermark
from dsearch.store.sqlite.watermark import Watermark


def filled(home: Path) -> Path:
    """Tasks in every state, with events."""
    home.mkdir(exist_ok=True)
    store = TaskStore(home)
    for number in range(6):
        task = store.add("refresh", "papers", {"number": number})
        store.append_event(task, "progress", {"done": number})
        store.append_event(task, "metric", {"loss": 0.5})
        if number < 3:
            store.end(task, "done", result={"number": number})
    store.cancel_queued(store.list(10)[0].id)
    store.next()
    store.close()
    return home


def everything(home: Path) -> list[object]:
    store = TaskStore(home)
    try:
        return [(task, store.request(task), store.events(task, 0)) for task in store.list(100)]
    finally:
        store.close()


def test_flips_and_cuts_are_named_or_change_nothing(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole")
    expected, size = everything(whole), (whole / "tasks.db").stat().st_size
    generator, named = np.random.default_rng(1), 0
    for trial in range(by_size(80, 2000)):
        copy = shutil.copytree(whole, tmp_path / f"copy-{trial}")
        content = bytearray((copy / "tasks.db").read_bytes())
        if trial % 8 == 0:
            del content[int(generator.integers(size)) :]
        else:
            content[int(generator.integers(size))] ^= 1 << int(generator.integers(8))
        (copy / "tasks.db").write_bytes(content)
        try:
            assert everything(copy) == expected
        except DsearchError:
            named += 1
        shutil.rmtree(copy)
    assert named > 5


def emptied(home: Path) -> None:
    (home / "tasks.db").write_bytes(b"")


def deleted(home: Path) -> None:
    (home / "tasks.db").unlink()


def without_its_mark(home: Path) -> None:
    (home / "tasks-watermark").unlink()


def changed(home: Path) -> None:
    with sqlite3.connect(home / "tasks.db") as database:
        database.execute("UPDATE tasks SET state = 'failed' WHERE number = 2")


def forgotten(home: Path) -> None:
    with sqlite3.connect(home / "tasks.db") as database:
        database.execute("DELETE FROM tasks WHERE number = 2")


def cleared(home: Path) -> None:
    with sqlite3.connect(home / "tasks.db") as database:
        database.executescript("DELETE FROM events; DELETE FROM tasks")


@pytest.mark.parametrize("loss", [emptied, deleted, without_its_mark, changed, forgotten, cleared])
def test_each_loss_is_named_with_the_way_out(tmp_path: Path, loss: Callable[[Path], None]) -> None:
    home = filled(tmp_path / "home")
    loss(home)
    with pytest.raises(CorruptData, match=r"move tasks\.db and tasks-watermark away"):
        everything(home)
    for name in ("tasks.db", "tasks-watermark"):
        (home / name).unlink(missing_ok=True)
    assert everything(home) == []


def test_a_file_that_is_refused_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server can open it once it is repaired."""
    home = filled(tmp_path / "home")
    with monkeypatch.context() as refused:
        refused.setattr(store_module, "require_whole", Mock(side_effect=CorruptData("given-problem")))
        with pytest.raises(CorruptData, match="given-problem"):
            TaskStore(home)
    assert len(everything(home)) == 6


def test_an_older_copy_is_named(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    shutil.copy(home / "tasks.db", tmp_path / "before")
    store = TaskStore(home)
    store.add("refresh", "papers", {})
    store.add("refresh", "papers", {})
    store.close()
    shutil.copy(tmp_path / "before", home / "tasks.db")
    with pytest.raises(CorruptData, match="acknowledged changes of tasks are missing"):
        everything(home)


def test_a_row_that_changes_while_the_service_runs_is_named(tmp_path: Path) -> None:
    store = TaskStore(filled(tmp_path / "home"))
    (task,) = (task for task in store.list(10) if task.number == 2)
    changed(tmp_path / "home")
    with pytest.raises(CorruptData, match="the row of task 2 is not what was written"):
        store.list(10)
    with pytest.raises(CorruptData, match="the row of task 2 is not what was written"):
        store.requeue(StoredTask("x", "refresh", "papers", "done", "", None, None, 0, number=2), begun=True)
    for read in (lambda: store.list(10), lambda: store.get(task.id), lambda: store.request(task)):
        with pytest.raises(CorruptData, match="the row of task 2 is not what was written"):
            read()
    store.close()


def test_what_was_forgotten_on_purpose_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended tasks and events beyond their number go with their digests: the file opens as a whole one."""
    monkeypatch.setattr(store_module, "KEPT_EVENTS", 2)
    monkeypatch.setattr(store_module, "KEPT_TASKS", 3)
    home = filled(tmp_path / "home")
    store = TaskStore(home)
    task = store.add("refresh", "papers", {})
    for number in range(5):
        store.append_event(task, "metric", {"i": number})
    store.close()
    found: list[Any] = everything(home)
    assert [task.number for task, _, _ in found] == [7, 6, 5, 4]
    assert [event.data for event in found[0][2]] == [{"i": 3}, {"i": 4}]


def test_a_change_that_was_cut_off_before_its_mark_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next marks it, so that the file is at most one change ahead of its mark."""
    home = tmp_path / "home"
    home.mkdir()
    store = TaskStore(home)
    with monkeypatch.context() as cut:
        cut.setattr(Watermark, "write", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.add("refresh", "papers", {})
    for _ in range(2):
        store.add("refresh", "papers", {})
    store.close()
    assert len(everything(home)) == 3


def test_the_service_goes_on_without_tasks(
    engine: SearchEngine, papers: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    filled(engine.home.path)
    deleted(engine.home.path)
    with TestClient(patient_app(engine), base_url=ORIGIN) as client:
        assert client.get("/v1/collections/papers/search?query=cat").status_code == 200
        for method, path in (("GET", "/v1/tasks"), ("POST", "/v1/collections/papers/refresh")):
            answered = client.request(method, path)
            assert (answered.status_code, answered.json()["code"]) == (500, "corrupt_data")
            assert "move tasks.db and tasks-watermark away" in answered.json()["detail"]
    assert "tasks are refused: " in caplog.text


def test_a_file_of_an_earlier_release_is_upgraded(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    expected = everything(home)
    with sqlite3.connect(home / "tasks.db") as database:
        database.executescript(
            "ALTER TABLE tasks DROP COLUMN digest; ALTER TABLE events DROP COLUMN digest; DROP TABLE state;"
            "PRAGMA user_version = 1"
        )
    (home / "tasks-watermark").unlink()
    assert everything(home) == expected
    changed(home)
    with pytest.raises(CorruptData):
        everything(home)


def test_each_change_is_marked_and_synced_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TaskStore(tmp_path)
    synced: list[int] = []
    sync = watermark.sync_file
    monkeypatch.setattr(watermark, "sync_file", lambda file: (synced.append(file), sync(file)))
    task = store.add("refresh", "papers", {})
    for change in (
        lambda: store.next(),
        lambda: store.append_event(task, "metric", {}),
        lambda: store.requeue(task, begun=True),
        lambda: store.cancel_queued(task.id),
        lambda: store.end(task, "done"),
    ):
        before = len(synced)
        change()
        assert len(synced) == before + 1
    store.close()
    assert watermark.read_watermark(tmp_path, TASKS).newest.sequence == len(synced)


def test_the_folder_of_a_new_file_and_its_mark_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the file has any content: without its mark, later, it would be taken for a damaged one."""
    synced = synced_nodes(monkeypatch)
    TaskStore(tmp_path).close()
    assert synced[-1:] == [tmp_path.stat().st_ino]
