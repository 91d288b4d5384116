"""Files on disk: digests, identities, and the order in which a folder is synced and published."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from dsearch.errors import InsufficientStorage, Unavailable
from dsearch.index import durable


def test_a_digest_is_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abcdefgh")
    whole = (8, hashlib.sha256(b"abcdefgh").hexdigest())
    assert durable.file_digest(path) == whole


def test_a_folder_is_published_when_all_of_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, then the folders from below, the new name, and the folder that has it with its own parent."""
    unfinished, final = tmp_path / "a" / "unfinished", tmp_path / "a" / "final"
    (unfinished / "in" / "deep").mkdir(parents=True)
    for name in ("x", "in/y", "in/deep/z"):
        (unfinished / name).write_text(name)
    order: list[str] = []
    monkeypatch.setattr(durable, "sync_file", lambda path: order.append(path.name))
    monkeypatch.setattr(durable, "sync_folder", lambda path: order.append(f"{path.name}/{final.exists()}"))
    durable.publish_folder(unfinished, final)
    assert sorted(order[:3]) == ["x", "y", "z"]
    assert order[3:] == ["deep/False", "in/False", "unfinished/False", "a/True", f"{tmp_path.name}/True"]
    assert [path.relative_to(final).as_posix() for path in durable.files_below(final)] == [
        "in/deep/z",
        "in/y",
        "x",
    ]
    assert not unfinished.exists()


def test_syncs_reach_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    path = tmp_path / "x"
    path.write_text("x")
    durable.sync_file(path)
    durable.sync_folder(tmp_path)
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]
    with pytest.raises(NotADirectoryError):
        durable.sync_folder(path)


def test_a_replaced_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps = tmp_path / "a", []

    def of_file(unfinished: Path) -> None:
        steps.append(("file", unfinished.read_bytes(), path.exists()))

    def of_folder(folder: Path) -> None:
        steps.append(("folder", folder.name, path.exists()))

    monkeypatch.setattr(durable, "sync_file", of_file)
    monkeypatch.setattr(durable, "sync_folder", of_folder)
    durable.replace_file(path, b"content")
    assert steps == [("file", b"content", False), ("folder", tmp_path.name, True)]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_cannot_be_written_whole_is_removed_and_named(tmp_path: Path, code: int) -> None:
    file, folder, missing = tmp_path / "file", tmp_path / "folder", tmp_path / "missing"
    kind = Unavailable if code == errno.EIO else InsufficientStorage

    def cut_short() -> None:
        with durable.whole_or_gone(file, folder, missing, problem="it could not be kept"):
            file.write_text("begun")
            (folder / "in").mkdir(parents=True)
            raise OSError(code, os.strerror(code))

    with pytest.raises(kind, match="it could not be kept") as raised:
        cut_short()
    assert type(raised.value) is kind
    assert os.strerror(code) in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_what_is_cut_short_is_removed_and_what_is_whole_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"

    def interrupted() -> None:
        with durable.whole_or_gone(file, problem="no"):
            file.write_text("begun")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not file.exists()
    with durable.whole_or_gone(file, problem="no"):
        file.write_text("whole")
    assert file.read_text() == "whole"


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    durable.replace_file(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "sync_file", full)
    with pytest.raises(OSError, match="No space left"):
        durable.replace_file(path, b"new")
    assert [(left.name, left.read_bytes()) for left in tmp_path.iterdir()] == [("a", b"old")]
