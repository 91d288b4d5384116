"""Copies made while writes go on, and collections made of copies."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.patience import LATEST_S

from dsearch.errors import CollectionExists, CollectionNotFound, Conflict, CorruptData
from dsearch.store import Store, folders
from dsearch.store.records import BackupReport
from dsearch.types import Document


def test_a_backup_is_a_collection_of_one_moment(store, tmp_path, embed):
    store.upsert([Document("a", "a"), Document("b", "b", metadata={"n": 1})], embed("a", "b"))
    store.delete(["a"])
    store.add_model("v1", "v0", {"gate": 0.5})
    report = store.backup(tmp_path / "backups" / "monday")
    store.upsert([Document("c", "c")])
    assert (report.sequence, report.documents) == (3, 1)
    assert report.size_bytes == sum(p.stat().st_size for p in (tmp_path / "backups" / "monday").iterdir())
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["monday"]
    folders.restore_collection(tmp_path / "home2" / "papers", tmp_path / "backups" / "monday")
    with Store.open(tmp_path / "home2" / "papers") as restored:
        assert restored.verify().ok
        assert (restored.sequence, restored.name, restored.encoder) == (3, "papers", {"name": "test"})
        assert [document.id for document in restored.list()] == ["b"]
        np.testing.assert_array_equal(restored.embeddings([2]), embed("b"))
        assert restored.upsert([Document("d", "d")]).rows == (3,)
    assert sorted(p.name for p in (tmp_path / "backups" / "monday").iterdir()) == [
        "documents.db",
        "watermark",
    ]


def test_a_backup_is_synced_before_it_takes_its_name(store, tmp_path, embed, monkeypatch):
    """After a power cut it is whole or not there: a name that lasts longer than its content is neither."""
    store.upsert([Document("a", "a")], embed("a"))
    synced: list[tuple[int, int]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        state = os.fstat(descriptor)
        synced.append((state.st_ino, state.st_size))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "fdatasync", noted)
    store.backup(tmp_path / "backups" / "monday")
    files = [*(tmp_path / "backups" / "monday").iterdir()]
    assert len(files) == 2
    for file in files:
        assert (file.stat().st_ino, file.stat().st_size) in synced, file.name
    assert synced[-1][0] == (tmp_path / "backups").stat().st_ino


def test_a_backup_while_writes_go_on_is_of_one_operation(store, tmp_path, embed):
    """Each operation replaces the one document by the next and nothing else, so a mixture would show."""
    store.upsert([Document("x", "0")], embed("0"))
    done, written = threading.Event(), threading.Condition()
    number = 1

    def write() -> None:
        nonlocal number
        while not done.is_set():
            store.upsert([Document("x", f"{number}", metadata={"fill": "y" * 3000})], embed(f"{number}"))
            with written:
                number += 1
                written.notify()

    def backup(name: str) -> BackupReport:
        """After a write that began when the backup before had ended."""
        with written:
            later = number + 2
            assert written.wait_for(lambda: number >= later, timeout=LATEST_S)
        return store.backup(tmp_path / name)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reports = [backup(f"backup-{n}") for n in range(8)]
    finally:
        done.set()
        writer.join()
    assert len({report.sequence for report in reports}) == 8
    for n, report in enumerate(reports):
        with Store.open(tmp_path / f"backup-{n}") as copy:
            assert copy.verify().ok
            assert copy.sequence == report.sequence
            assert copy.get("x").text == str(report.sequence - 1)
            assert copy.count().tombstones == report.sequence - 1


def test_a_write_just_after_the_copy_began_is_not_in_it(store, tmp_path, monkeypatch):
    original = folders.read_state

    def write_then(connection):
        state = original(connection)
        store.upsert([Document("late", "x")])
        return state

    store.upsert([Document("a", "a")])
    monkeypatch.setattr(folders, "read_state", write_then)
    assert store.backup(tmp_path / "b").sequence == 1
    with Store.open(tmp_path / "b") as copy:
        assert [document.id for document in copy.list()] == ["a"]
        assert copy.verify().ok


def test_other_files_come_along_and_a_failure_leaves_nothing(store, tmp_path):
    def models(folder: Path) -> None:
        (folder / "models" / "v1").mkdir(parents=True)
        (folder / "models" / "v1" / "head").write_bytes(b"weights")

    def fail(folder: Path) -> None:
        models(folder)
        raise OSError("no models")

    with pytest.raises(OSError, match="no models"):
        store.backup(tmp_path / "b", fail)
    assert not [path for path in tmp_path.iterdir() if path.name != "home"]
    store.backup(tmp_path / "b", models)
    folders.restore_collection(tmp_path / "restored", tmp_path / "b")
    assert (tmp_path / "restored" / "models" / "v1" / "head").read_bytes() == b"weights"


def test_nothing_is_overwritten_and_what_is_no_backup_says_so(store, folder, tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(Conflict, match="stands already; give each backup a folder of its own"):
        store.backup(tmp_path / "b")
    store.backup(tmp_path / "c")
    with pytest.raises(CollectionExists, match="stands already; restore to another name"):
        folders.restore_collection(folder, tmp_path / "c")
    with pytest.raises(CollectionNotFound, match="no backup in"):
        folders.restore_collection(tmp_path / "d", tmp_path / "b")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("damage", ["text", "text of a deleted document", "watermark", "older database"])
def test_a_damaged_backup_is_not_restored(store, tmp_path, damage):
    store.upsert([Document("a", "text of a")])
    store.backup(tmp_path / "older")
    store.upsert([Document("b", "text of b")])
    if "deleted" in damage:
        store.delete(["b"])
    store.backup(tmp_path / "b")
    database = tmp_path / "b" / "documents.db"
    if damage.startswith("text"):
        content = database.read_bytes()
        database.write_bytes(content.replace(b"text of b", b"text or b"))
    elif damage == "watermark":
        (tmp_path / "b" / "watermark").write_bytes(bytes(8192))
    else:
        shutil.copy(tmp_path / "older" / "documents.db", database)
    with pytest.raises(CorruptData):
        folders.restore_collection(tmp_path / "new", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "home", "older"]


@pytest.mark.parametrize("kind", ["link", "link to a folder", "link to nothing", "pipe"])
@pytest.mark.parametrize("place", [".", "models/v1"])
def test_what_no_backup_has_is_not_followed(store, tmp_path, kind, place):
    store.upsert([Document("a", "text of a")])
    store.backup(tmp_path / "b")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("not of the backup")
    strange = tmp_path / "b" / place / "strange"
    strange.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(strange)
    else:
        strange.symlink_to(
            {"link": tmp_path / "secret" / "file", "link to a folder": tmp_path / "secret"}.get(
                kind, "nowhere"
            )
        )
    with pytest.raises(CorruptData, match="strange is neither a file nor a folder, so not of a backup"):
        folders.restore_collection(tmp_path / "new", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "home", "secret"]
    strange.unlink()
    folders.restore_collection(tmp_path / "new", tmp_path / "b")
    with Store.open(tmp_path / "new") as opened:
        assert opened.get("a").text == "text of a"


def test_a_copied_folder_with_its_log_is_a_backup_too(store, folder, tmp_path):
    store.upsert([Document("a", "a")])
    shutil.copytree(folder, tmp_path / "copied")
    assert (tmp_path / "copied" / "documents.db-wal").stat().st_size > 0
    folders.restore_collection(tmp_path / "restored", tmp_path / "copied")
    with Store.open(tmp_path / "restored") as restored:
        assert restored.get("a").text == "a"


def test_a_database_is_copied_whatever_its_folder_is_called(tmp_path):
    """As feedback is that cannot be read otherwise any more."""
    folder = tmp_path / "a?b#c%20d e"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "some.db")) as connection:
        connection.execute("CREATE TABLE kept (number)")
        connection.execute("INSERT INTO kept VALUES (7)")
        connection.commit()
    folders.copy_database(folder / "some.db", tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]


def test_an_export_is_of_one_state_and_may_be_left(store):
    store.upsert([Document(f"{n:03}", "x", metadata={"even": n % 2 == 0}) for n in range(100)])
    exported = store.export()
    first = next(exported)
    store.delete(["050"])
    assert [first.id, *[document.id for document in exported]] == [f"{n:03}" for n in range(100)]
    assert len(list(store.export())) == 99
    assert len(list(store.export({"even": {"eq": True}}))) == 49
    next(store.export())  # and no more
    store.upsert([Document("a", "x")])


def test_a_restored_collection_is_synced_before_it_takes_its_name(store, tmp_path, monkeypatch):
    store.backup(tmp_path / "copy")
    synced: list[tuple[str, bool]] = []
    target = tmp_path / "restored"
    monkeypatch.setattr(folders, "sync_all", lambda folder: synced.append((folder.name[:7], target.exists())))
    folders.restore_collection(target, tmp_path / "copy")
    assert synced == [(".aside-", False)]
    assert target.is_dir()


def test_everything_is_synced_each_file_before_its_folder(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("x", "a/y", "a/b/z"):
        (tmp_path / name).write_text(name)
    order: list[str] = []
    files = {os.stat(path).st_ino: path.name for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(folders, "sync_file", lambda file: order.append(files[os.fstat(file).st_ino]))
    monkeypatch.setattr(folders, "sync_folder", lambda folder: order.append(folder.name))
    folders.sync_all(tmp_path)
    assert sorted(order) == sorted(["x", "y", "z", "a", "b", tmp_path.name])
    assert order.index("z") < order.index("b") < order.index("a") < order.index(tmp_path.name)
    assert order.index("y") < order.index("a")
    assert order[-1] == tmp_path.name


def test_creating_and_deleting_a_collection_sync_the_home(tmp_path, monkeypatch):
    """A removed collection must not be there again after a power cut, nor a new one be gone."""
    synced: list[tuple[str, bool]] = []
    path, sync = tmp_path / "home" / "papers", folders.sync_folder

    def noted(folder):
        synced.append((folder.name, path.exists()))
        sync(folder)

    monkeypatch.setattr(folders, "sync_folder", noted)
    Store.create(path, name="papers", encoder={}, dimension=8).close()
    assert synced[-1] == ("home", True)
    assert synced[0][1] is False  # the folder itself, before it has its name
    synced.clear()
    folders.delete_collection(path)
    assert synced == [("home", False)]
    assert list(path.parent.iterdir()) == []
