"""`dsearch index FOLDER`: the collection becomes the image of the folder."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.cli.terminal import Terminal

from dsearch.cli.commands.index import _kinds, _Warner
from dsearch.errors import Conflict


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Twenty notes, so that one or two of them are not above 10 %."""
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    for number in range(19):
        (folder / f"n{number:02}.md").write_text(f"# Note {number}\n\nriver stone{number}\n")
    (folder / "sub" / "README.md").write_text("# Readme\n\nabout the notes\n")
    return folder


def ids(dsearch: Terminal, query: str, *arguments: str) -> list[str]:
    out = dsearch("search", query, "--mode", "keyword", "--json", *arguments)[1]
    return [hit["id"] for hit in json.loads(out)["hits"]]


def run(dsearch: Terminal, *arguments: str | Path) -> dict[str, Any]:
    code, out, err = dsearch("index", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_deleted_files_are_deleted_and_counted(dsearch: Terminal, notes: Path) -> None:
    assert run(dsearch, notes)["deleted"] == 0
    (notes / "n03.md").unlink()
    (notes / "n04.md").write_text("# Note 4\n\nmeadow\n")
    code, out, _ = dsearch("index", notes)
    assert code == 0
    assert "19 documents" in out
    assert "0 new, 1 changed, 18 unchanged, 1 deleted" in out
    assert ids(dsearch, "stone3") == []
    assert ids(dsearch, "meadow") == ["n04.md"]


def test_a_renamed_file_keeps_its_id_and_so_its_judgements(dsearch: Terminal, notes: Path) -> None:
    run(dsearch, notes)
    (notes / "n03.md").rename(notes / "sub" / "third.md")
    code, out, err = dsearch("index", notes)
    assert code == 0
    assert "0 new, 1 changed" in out
    assert "deleted" not in out
    assert "1 document keeps its id under another path: its file was renamed" in err
    hit = json.loads(dsearch("search", "stone3", "--mode", "keyword", "--json")[1])["hits"][0]
    assert (hit["id"], hit["metadata"]["path"], hit["metadata"]["folder"]) == (
        "n03.md",
        "sub/third.md",
        "sub",
    )
    (notes / "n03.md").write_text("# Another\n\nforest\n")  # the old path, by another file
    assert run(dsearch, notes)["inserted"] == 1
    assert ids(dsearch, "forest") == ["notes/n03.md"]
    assert run(dsearch, notes)["unchanged"] == 21
    (notes / "sub" / "third.md").write_text("# Third\n\nriver stone3, changed\n")
    report = run(dsearch, notes)
    assert (report["updated"], report["deleted"]) == (1, 0)
    assert ids(dsearch, "changed") == ["n03.md"]


def test_many_deletions_need_consent(dsearch: Terminal, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(dsearch, notes)
    for number in range(5):
        (notes / f"n{number:02}.md").unlink()
    (notes / "new.md").write_text("glacier")
    code, out, err = dsearch("index", notes)
    assert code == 1
    assert "gone from the folder: 5 of 20 documents (n00.md, n01.md, n02.md, …)" in err
    assert "add --yes to delete them, or --keep to add only" in err
    assert "21 documents" in out  # the new one is in
    assert ids(dsearch, "glacier") == ["new.md"]

    class Answers(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Answers("n\n"))
    code, out, err = dsearch("index", notes)
    assert (code, "nothing is deleted" in err) == (0, True)
    assert dsearch("index", notes, "--keep")[0] == 0
    monkeypatch.setattr(sys, "stdin", Answers("y\n"))
    code, out, _ = dsearch("index", notes)
    assert (code, "16 documents" in out, "5 deleted" in out) == (0, True, True)
    for number in range(5, 10):
        (notes / f"n{number:02}.md").unlink()
    assert run(dsearch, notes, "--yes")["deleted"] == 5


def test_an_empty_folder_and_one_that_is_gone_delete_nothing(
    dsearch: Terminal, notes: Path, tmp_path: Path
) -> None:
    run(dsearch, notes)
    notes.rename(tmp_path / "away")
    notes.mkdir()
    for content in ("", "empty.md"):
        if content:
            (notes / content).write_text(" ")  # a file that says nothing
        code, _, err = dsearch("index", notes, "--yes")
        assert code == 1, err
        assert "20 documents" in dsearch("collections")[1]
    shutil.rmtree(notes)
    assert dsearch("index", notes, "--yes")[0] == 1
    assert "20 documents" in dsearch("collections")[1]


def test_a_moved_folder_keeps_its_ids(dsearch: Terminal, notes: Path, tmp_path: Path) -> None:
    run(dsearch, notes)
    moved = tmp_path / "elsewhere"
    notes.rename(moved)
    (moved / "n03.md").write_text("# Note 3\n\nchanged on the way\n")
    (moved / "n04.md").unlink()
    code, out, err = dsearch("index", moved)
    assert code == 0
    assert "20 documents" in out
    assert "0 new" in out
    assert f"1 document stays of {notes}, which is gone" in err


def test_documents_that_came_otherwise_stay(dsearch: Terminal, notes: Path, tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text('{"id": "a", "text": "glacier"}\n')
    run(dsearch, tmp_path / "some.jsonl")
    run(dsearch, notes)
    (tmp_path / "some.jsonl").write_text('{"id": "b", "text": "glacier"}\n')
    assert run(dsearch, tmp_path / "some.jsonl", "--yes")["deleted"] == 0  # a file adds
    assert run(dsearch, notes, "--yes")["deleted"] == 0
    assert sorted(ids(dsearch, "glacier")) == ["a", "b"]


def test_nothing_that_can_be_indexed_is_exit_1(dsearch: Terminal, tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_bytes(bytes(range(256)))
    code, _, err = dsearch("index", tmp_path / "bad.md")
    assert (code, "nothing was found to index" in err) == (1, True)


def test_a_record_that_cannot_be_stored_is_left_out_alone(dsearch: Terminal, tmp_path: Path) -> None:
    rows = [{"id": "x" * 2000, "text": "river"}, {"id": "good", "text": "river"}]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, out, err = dsearch("index", source)
    assert (code, "1 new, 0 changed, 0 unchanged, 1 skipped" in out) == (0, True), err
    assert f"skipped {source}:1: " in err


@pytest.mark.parametrize(("count", "named", "more"), [(20, 20, 0), (21, 20, 1), (30, 20, 1)])
def test_the_first_problems_are_named_and_then_it_is_said_once_that_there_are_more(
    capsys: pytest.CaptureFixture[str], count: int, named: int, more: int
) -> None:
    warn = _Warner()
    for number in range(count):
        warn(f"rows.csv:{number}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:named] == [f"skipped rows.csv:{number}" for number in range(named)]
    assert lines[named:] == ["more records were skipped; only their number follows"] * more


def test_kinds_that_were_passed_over_are_counted_the_most_frequent_first() -> None:
    assert _kinds(Counter({"": 2, ".png": 3})) == "3 .png, 2 without suffix"
    many = Counter({f".{letter}": 9 - number for number, letter in enumerate("abcdefghi")})
    assert _kinds(many).endswith("2 .h, …")
    del many[".i"]
    assert _kinds(many).endswith("2 .h")


@pytest.mark.parametrize("error", [OSError(28, "the disk is full"), Conflict("it is readonly")])
def test_what_is_indexed_stays_though_it_could_not_be_calibrated(
    dsearch: Terminal, notes: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("dsearch.training.confidence.calibrate_by_documents", fail)
    code, out, err = dsearch("index", notes)
    assert (code, "20 new" in out) == (0, True), err
    assert f"answers do not say where nothing fits: {error}" in err
