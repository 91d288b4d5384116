"""Uploaded files on the disk: whole or not there, in the order of their uploads, within bounds."""

from __future__ import annotations

import errno
import io
from hashlib import sha256
from pathlib import Path

import pytest
from support.guarded import guarded
from support.syncs import recorded

from dsearch.errors import (
    Conflict,
    CorruptData,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from dsearch.service.uploads import files
from dsearch.service.uploads.files import Uploads

checked = guarded(Uploads, "_loaded")


def add(uploads: Uploads, name: str = "a.txt", content: bytes = b"river") -> str:
    return uploads.add(io.BytesIO(content), name, "assistants").id


def test_files_outlive_the_process_in_the_order_of_their_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.time, "time_ns", lambda: 10**18)  # a clock that stands still
    uploads = Uploads(tmp_path / "files")
    assert uploads.list() == []
    ids = [add(uploads, f"{n}.txt") for n in range(5)]
    again = Uploads(tmp_path / "files")
    assert [one.id for one in again.list()] == ids
    assert [one.id for one in again.list(after=ids[1], limit=2)] == ids[2:4]
    assert again.list(purpose="user_data") == []
    assert again.verify(ids[0]).read_bytes() == b"river"
    assert add(again) > ids[-1]


@pytest.mark.parametrize("size", [0, 2, 3, 4, 7])
def test_a_file_is_kept_whole_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(files, "_AT_A_TIME", 3)
    uploads = Uploads(tmp_path / "files")
    content = bytes(range(size))
    id = add(uploads, content=content)
    assert uploads.verify(id).read_bytes() == content
    assert (uploads.get(id).bytes, uploads.get(id).digest) == (size, sha256(content).hexdigest())


def test_an_interrupted_upload_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    id = add(Uploads(folder))
    (folder / "file-000000000000000000000000.bin").write_bytes(b"cut off")
    (folder / "file-000000000000000000000001.json.part").write_text("{")
    assert [one.id for one in Uploads(folder).list()] == [id]
    assert sorted(path.name for path in folder.iterdir()) == [f"{id}.bin", f"{id}.json"]


def test_an_upload_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Uploads(tmp_path / "files")
    add(uploads)
    happened = recorded(monkeypatch)
    id = add(uploads)
    assert happened == [f"sync {id}.bin", f"sync {id}.json.part", f"rename {id}.json", "sync files"]
    happened.clear()
    uploads.delete(id)
    assert happened == [f"unlink {id}.json", f"unlink {id}.bin", "sync files"]


@pytest.mark.parametrize(
    ("number", "expected", "told"),
    [(errno.ENOSPC, InsufficientStorage, "free space on"), (errno.EIO, Unavailable, "check")],
)
@pytest.mark.parametrize("step", ["_copy", "sync_file"])
def test_a_disk_that_fails_is_told_and_keeps_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    number: int,
    expected: type[Exception],
    told: str,
) -> None:
    def failing(source: object, place: Path | None = None) -> None:
        if place is not None:
            place.write_bytes(b"riv")
        raise OSError(number, "of the disk")

    uploads = Uploads(tmp_path / "files")
    id = add(uploads)
    with monkeypatch.context() as now:
        now.setattr(files, step, failing)
        with pytest.raises(expected, match=rf"could not be kept \(of the disk\); {told} the disk"):
            add(uploads)
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [f"{id}.bin", f"{id}.json"]
    assert [one.id for one in uploads.list()] == [id]
    assert add(uploads) > id


def test_damage_is_named(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "files")
    id = add(uploads)
    (tmp_path / "files" / f"{id}.bin").write_bytes(b"lake!")
    with pytest.raises(CorruptData, match=f"file {id} is not what was uploaded; delete it"):
        uploads.verify(id)
    (tmp_path / "files" / f"{id}.bin").unlink()
    with pytest.raises(CorruptData):
        uploads.verify(id)
    (tmp_path / "files" / f"{id}.json").write_text("{}")
    with pytest.raises(CorruptData, match=f"{id}.json, is damaged"):
        Uploads(tmp_path / "files").list()


def test_a_record_is_that_of_its_name(tmp_path: Path) -> None:
    """One that was copied or renamed by hand would give a file under an id that is not its own."""
    folder = tmp_path / "files"
    id = add(Uploads(folder))
    other = f"file-{int(id[5:], 16) + 1:024x}"
    (folder / f"{id}.json").rename(folder / f"{other}.json")
    with pytest.raises(CorruptData, match=f"{other}.json, is damaged"):
        Uploads(folder).get(other)


def test_a_damaged_record_hides_no_other_file(tmp_path: Path) -> None:
    """As long as it is there, every call names it; before, the second one did without the files behind it."""
    ids = [add(Uploads(tmp_path / "files")) for _ in range(2)]
    record = tmp_path / "files" / f"{ids[0]}.json"
    record.write_text("{")
    uploads = Uploads(tmp_path / "files")
    for _ in range(2):
        for call in (uploads.list, lambda: uploads.get(ids[1]), lambda: add(uploads)):
            with pytest.raises(CorruptData, match=f"{ids[0]}.json, is damaged; delete it"):
                call()
    record.unlink()
    assert [one.id for one in uploads.list()] == [ids[1]]
    assert uploads.verify(ids[1]).read_bytes() == b"river"


def test_there_is_a_bound_on_files_and_bytes(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "files", max_files=2, max_bytes=12)
    add(uploads)
    with pytest.raises(Conflict, match="this one has 8; at most 2 files of 12 bytes: delete some"):
        add(uploads, content=bytes(8))
    add(uploads)
    with pytest.raises(Conflict, match="2 files of 10 bytes are kept"):
        add(uploads, content=b"")
    uploads.delete(uploads.list()[0].id)
    add(uploads)


def test_a_readonly_home_is_not_changed(tmp_path: Path) -> None:
    id = add(Uploads(tmp_path / "files"))
    (tmp_path / "files" / "x.part").touch()
    uploads = Uploads(tmp_path / "files", readonly=True)
    assert uploads.get(id).filename == "a.txt"
    for change in (lambda: add(uploads), lambda: uploads.delete(id)):
        with pytest.raises(Conflict, match="readonly"):
            change()
    assert (tmp_path / "files" / "x.part").exists()


@pytest.mark.parametrize(
    ("name", "plain"), [("../../etc/a.txt", "a.txt"), ("C:\\x\\b.md", "b.md"), (" é.pdf ", "é.pdf")]
)
def test_a_name_keeps_no_folder(tmp_path: Path, name: str, plain: str) -> None:
    uploads = Uploads(tmp_path / "files")
    assert uploads.get(add(uploads, name)).filename == plain


@pytest.mark.parametrize("name", ["", "a/", "x" * 256, "a\0.txt", "a\n.txt", "\ud800.txt"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="use 1 to 255 printable characters"):
        add(Uploads(tmp_path / "files"), name)


@pytest.mark.parametrize("id", ["none", "../a", "file-../../../../etc/pass", ""])
def test_an_id_is_no_path(tmp_path: Path, id: str) -> None:
    uploads = Uploads(tmp_path / "files")
    for call in (uploads.get, uploads.verify, uploads.delete):
        with pytest.raises(NotFound, match="no file"):
            call(id)
