"""Making and opening collections: what is refused, and with which words."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Conflict,
    CorruptData,
    HomeLocked,
    InvalidRequest,
    Unavailable,
    UnsupportedFormat,
)
from dsearch.store import Store, collection_names, delete_collection
from dsearch.types import Document


def create(folder, **changes) -> Store:
    return Store.create(folder, **{"name": "papers", "encoder": {}, "dimension": 8, **changes})


def change(folder, *statements: str) -> None:
    connection = sqlite3.connect(folder / "documents.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_missing_collection_says_so(folder):
    with pytest.raises(CollectionNotFound, match=r"no collection in .*papers"):
        Store.open(folder)
    assert not folder.exists()


def test_creation_refuses_what_is_there_and_leaves_no_trace(folder):
    create(folder).close()
    with pytest.raises(CollectionExists, match="'papers' stands already"):
        create(folder)
    other = folder.with_name("other")
    other.mkdir()
    create(other, name="other").close()  # an empty folder is fine
    full = folder.with_name("full")
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    with pytest.raises(Conflict, match="has other files in it"):
        create(full)
    for wrong in ({"name": "../x"}, {"dimension": 0}, {"dimension": 10**6}, {"encoder": {"x": object()}}):
        with pytest.raises(InvalidRequest):
            create(folder.with_name("new"), **wrong)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["full", "other", "papers"]


def test_a_failed_creation_removes_what_it_began(folder, monkeypatch):
    import dsearch.store.folders as folders

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(folders, "create_watermark", fail)
    with pytest.raises(OSError, match="no space"):
        create(folder)
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize("version", ["5", "0", "-1", "x", "٣"])
@pytest.mark.parametrize("readonly", [True, False])
def test_an_unknown_format_is_refused_with_the_range(folder, version, readonly):
    create(folder).close()
    change(folder, f"UPDATE meta SET value = '{version}' WHERE key = 'format'")
    with pytest.raises(UnsupportedFormat, match=f"store format {version}; this release reads 1 to 4"):
        Store.open(folder, readonly=readonly)


def test_an_unknown_watermark_format_is_refused(folder):
    import hashlib

    create(folder).close()
    slot = bytearray((folder / "watermark").read_bytes()[:4096])
    slot[8] = 9
    slot[56:88] = hashlib.sha256(slot[:56]).digest()
    (folder / "watermark").write_bytes(slot * 2)
    with pytest.raises(UnsupportedFormat, match="watermark has format 9; this release reads 1 to 1"):
        Store.open(folder)


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000])
def test_what_is_no_database_is_refused(folder, content):
    create(folder).close()
    (folder / "documents.db").write_bytes(content)
    for readonly in (True, False):
        with pytest.raises(CorruptData, match=r"documents\.db is damaged"):
            Store.open(folder, readonly=readonly)


def test_a_damaged_description_is_refused(folder):
    create(folder).close()
    change(folder, "UPDATE meta SET value = CAST(value AS BLOB) WHERE key = 'name'")
    with pytest.raises(CorruptData, match=r"identity cannot be read .*name is no text"):
        Store.open(folder)
    change(folder, "UPDATE meta SET value = 'papers' WHERE key = 'name'")
    Store.open(folder).close()
    change(folder, "UPDATE meta SET value = '{' WHERE key = 'encoder'")
    with pytest.raises(CorruptData, match="identity cannot be read"):
        Store.open(folder)
    change(folder, "DELETE FROM meta WHERE key = 'encoder'")
    with pytest.raises(CorruptData, match="identity cannot be read"):
        Store.open(folder)


SECOND_WRITER = """
import fcntl, sys
from pathlib import Path
from dsearch.store import Store
from dsearch.types import Document
if sys.argv[2:] == ["unlocked"]:
    fcntl.flock = lambda *given: None
with Store.open(Path(sys.argv[1])) as store:
    for n in range(3):
        store.upsert([Document(f"of another process {n}", "x")])
"""


def two_writers(folder, *how: str) -> None:
    """The second one is refused, and nothing that the first one was promised is lost."""
    command = [sys.executable, "-c", SECOND_WRITER, str(folder), *how]
    with create(folder) as store:
        store.upsert([Document("a", "x")])
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        store.upsert([Document("b", "x")])
        ids = [document.id for document in store.list()]
    with Store.open(folder, readonly=True) as store:
        assert [document.id for document in store.list()] == ids
    assert "HomeLocked" in other.stderr, "the second writer wrote"
    subprocess.run(command, check=True)


def test_one_writer_in_this_process_and_in_others(folder):
    two_writers(folder)
    with Store.open(folder), pytest.raises(HomeLocked, match="open for writing elsewhere"):
        Store.open(folder)


def test_a_closed_store_says_so_and_closes_twice(folder):
    store = create(folder)
    store.close()
    store.close()
    with pytest.raises(Unavailable, match="was closed; open it again"):
        store.count()
    with pytest.raises(Unavailable, match="was closed; open it again"):
        store.delete(["a"])


def test_a_folder_may_have_characters_that_mean_something_in_a_uri(tmp_path):
    folder = tmp_path / "a?b#c%20d e" / "papers"
    create(folder).close()
    assert (folder / "documents.db").is_file()
    Store.open(folder, readonly=True).close()


def test_neither_torch_nor_faiss_is_loaded():
    program = "import sys, dsearch.store; assert not {'torch', 'faiss', 'fastapi'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_collections_are_listed_and_deleted_whole(folder):
    home = folder.parent
    assert collection_names(home) == []
    for name in ("papers", "notes"):
        create(home / name, name=name).close()
    (home / "models.bak").mkdir()
    (home / "empty").mkdir()
    (home / "LOCK").touch()
    shutil.copytree(home / "notes", home / ".aside-0")  # as a deletion that is at work leaves it
    assert collection_names(home) == ["notes", "papers"]
    shutil.rmtree(home / ".aside-0")
    with Store.open(folder), pytest.raises(HomeLocked):
        delete_collection(folder)
    (home / "notes" / "watermark").unlink()
    for name in ("papers", "notes"):
        delete_collection(home / name)
    assert collection_names(home) == []
    assert sorted(path.name for path in home.iterdir()) == ["LOCK", "empty", "models.bak"]
    with pytest.raises(CollectionNotFound, match="nothing was deleted"):
        delete_collection(folder)


def test_what_a_kill_left_is_swept_away_but_not_what_is_at_work(folder):
    home = folder.parent
    (home / ".aside-killed" / "x").mkdir(parents=True)
    (home / ".aside-working").mkdir()
    lock = os.open(home / ".aside-working", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    create(folder).close()
    assert sorted(path.name for path in home.iterdir()) == [".aside-working", "papers"]
    os.close(lock)
    delete_collection(folder)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("module", [os, fcntl], ids=["before it is opened", "before it is locked"])
def test_a_folder_that_another_sweeps_away_before_it_is_locked_is_made_anew(folder, monkeypatch, module):
    """Two backups to one place at once: the second sweeps while the first begins."""
    name = "open" if module is os else "flock"
    real, swept = getattr(module, name), []

    def late(*arguments, **named):
        if not swept:
            swept.extend(folder.parent.glob(".aside-*"))
            shutil.rmtree(swept[0])
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, late)
    create(folder).close()
    assert len(swept) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["papers"]
