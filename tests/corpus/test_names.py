"""Which id a document of a folder gets where another one has its name, and folders that are gone."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.corpus import Mirror, Problems, read_sources
from dsearch.corpus.files import FIELD, SourceFile, key_of
from dsearch.types import Document


def from_folder(root: Path, path: str, text: str = "text") -> Document:
    return Document(path, text, metadata={FIELD: {"root": str(root), "path": path}})


def test_a_name_that_is_taken_is_qualified_by_ever_more_folders_and_then_numbered(tmp_path: Path) -> None:
    here = tmp_path / "near" / "here"
    here.mkdir(parents=True)
    mirror = Mirror()
    taken = [Document("a.txt", "1"), Document("here/a.txt", "2")]
    mirror.learn([from_folder(tmp_path / "gone", one.id, one.text) for one in taken])
    named = [mirror.identify(from_folder(here, "a.txt", f"text {number}")).id for number in range(2)]
    assert named[0] == "a.txt"  # of a folder that is gone
    mirror = Mirror()
    mirror.learn([from_folder(tmp_path, one.id, one.text) for one in taken])
    (tmp_path / "a.txt").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").touch()
    mirror.learn([from_folder(tmp_path, one.id, one.text) for one in taken])
    assert mirror.identify(from_folder(here, "a.txt")).id == "near/here/a.txt"
    assert mirror.qualified == ["near/here/a.txt"]


def test_folders_that_are_gone_are_counted_by_their_documents(tmp_path: Path) -> None:
    here, gone = tmp_path / "here", tmp_path / "gone"
    for folder in (here, gone):
        folder.mkdir()
        (folder / "a.txt").write_text(f"in {folder.name}")
        (folder / "b.txt").write_text(f"also in {folder.name}")
    kept = [from_folder(folder, name) for folder in (here, gone) for name in ("a.txt", "b.txt")]
    kept[2:] = [replace(one, id=f"gone/{one.id}") for one in kept[2:]]
    kept.append(Document("alone", "from no folder"))
    shutil.rmtree(gone)
    mirror = Mirror()
    mirror.learn(kept)
    assert mirror.elsewhere() == {str(gone): 2}
    list(read_sources([str(here)], problems=Problems(), mirror=mirror))
    assert mirror.elsewhere() == {str(gone): 2}


def test_a_folder_around_another_covers_it(tmp_path: Path) -> None:
    mirror = Mirror()
    mirror.learn([from_folder(tmp_path / "notes", "a.txt")])
    covered = {name: mirror.covers(str(tmp_path / name)) for name in ("notes", "notes/sub", "notes2", ".")}
    assert covered == {"notes": True, "notes/sub": True, "notes2": False, ".": False}


def test_keys_come_from_whole_metadata_alone(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert key_of({FIELD: {"root": root, "path": "a/b.txt"}}) == (root, (f"{root}/a/b.txt", "part 1"))
    assert key_of({FIELD: {"root": root, "path": "b", "part": 3}}) == (root, (f"{root}/b", "part 3"))
    assert key_of({FIELD: {"root": root, "path": "b", "record": "7"}}) == (root, (f"{root}/b", "record 7"))
    for own in (
        None,
        "text",
        {"root": root},
        {"path": "b"},
        {"root": "", "path": "b"},
        {"root": 1, "path": "b"},
    ):
        assert key_of({FIELD: own}) is None, own


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux alone")
def test_a_name_that_is_not_utf8_is_a_problem_that_can_be_shown(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv"))
    odd.write_text("id,text\na,x\n")
    odd.with_suffix(os.fsdecode(b".\xe9")).touch()
    (tmp_path / "b.txt").write_text("y")
    problems = Problems()
    assert [one.id for one in read_sources([tmp_path], problems=problems)] == ["b.txt"]
    said = f"{tmp_path}/caf\\xe9.csv: its name is not UTF-8, and ids are; rename it"
    assert [str(problem) for problem in problems.first] == [said]
    assert problems.passed_over == {".\\xe9": 1}
    assert list(read_sources([odd], problems=problems)) == []
    assert [str(problem) for problem in problems.first] == [said, said]


@pytest.mark.parametrize("seconds", [2.0**38, 2.0**60, 2.0**70])
def test_a_file_of_the_far_future_has_no_time_of_change(seconds: float) -> None:
    late: Any = SimpleNamespace(stat=lambda: SimpleNamespace(st_size=7, st_mtime=seconds))
    file = SourceFile(late, "/home", "a.txt", ".txt")
    metadata = file.described(Document("a.txt", "x")).metadata
    assert (metadata["size"], "modified" in metadata) == (7, False)


def test_a_document_that_moved_is_not_counted_where_it_was(tmp_path: Path) -> None:
    gone, here = tmp_path / "gone", tmp_path / "here"
    here.mkdir()
    (here / "b.txt").write_text("moved")
    mirror = Mirror()
    mirror.learn([from_folder(gone, "a.txt", "moved"), from_folder(gone, "c.txt", "lost")])
    assert [one.id for one in read_sources([here], problems=Problems(), mirror=mirror)] == ["a.txt"]
    assert mirror.elsewhere() == {str(gone): 1}


def test_a_deleted_file_leaves_its_id_to_no_other_folder(tmp_path: Path) -> None:
    """Whoever kept the id would read another text, until the folder itself is read again."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    mirror = Mirror()
    mirror.learn([from_folder(tmp_path / "one", "a.txt", "old")])
    assert mirror.identify(from_folder(tmp_path / "two", "a.txt", "new")).id == "two/a.txt"


def test_new_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    mirror = Mirror()
    named = [mirror.identify(from_folder(tmp_path / name, "a.txt", name)).id for name in ("one", "two")]
    assert named == ["a.txt", "two/a.txt"]


def test_a_record_that_moved_to_another_file_of_its_folder_keeps_its_id(tmp_path: Path) -> None:
    def record(path: str, text: str) -> Document:
        own = {"root": str(tmp_path), "path": path, "record": "7"}
        return Document("7", text, metadata={FIELD: own})

    mirror = Mirror()
    mirror.learn([record("a.csv", "before")])
    assert mirror.identify(record("b.csv", "behind")).id == "7"
