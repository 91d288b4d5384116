"""`dsearch index FOLDER`: the collection becomes the image of the folder."""

from __future__ import annotations

import io
import json
import os
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


def test_rows_of_equal_text_are_kept_and_go_with_their_lines(dsearch: Terminal, notes: Path) -> None:
    rows = ["A1,A red chair,10", "A2,A red chair,25", "few,cells", "A3,A blue lamp,7"]
    table = notes / "shop.csv"

    def put(*lines: str) -> dict[str, Any]:
        table.write_text("\n".join(["sku,text,price", *lines]))
        return run(dsearch, notes)

    def prices(query: str) -> list[int]:
        out = dsearch("search", query, "--mode", "keyword", "--json")[1]
        return sorted(hit["metadata"]["price"] for hit in json.loads(out)["hits"])

    assert put(*rows)["inserted"] == 23
    assert (prices("chair"), prices("lamp")) == ([10, 25], [7])
    again = put(*rows)
    assert (again["unchanged"], again["inserted"], again["encoded"], again["deleted"]) == (23, 0, 0, 0)
    assert put(*rows[:3])["deleted"] == 1
    assert (prices("chair"), prices("lamp")) == ([10, 25], [])
    report = put(*rows[1:3])
    assert (report["deleted"], report["encoded"]) == (1, 0)
    assert prices("chair") == [25]


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


def test_a_file_with_a_problem_keeps_its_document(dsearch: Terminal, notes: Path) -> None:
    run(dsearch, notes)
    (notes / "n03.md").write_bytes(bytes(range(256)))
    code, out, err = dsearch("index", notes, "--yes")
    assert code == 0
    assert "n03.md" in err
    assert "1 skipped" in out
    assert ids(dsearch, "stone3") == ["n03.md"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_keeps_its_documents(dsearch: Terminal, notes: Path) -> None:
    run(dsearch, notes)
    (notes / "sub").chmod(0)
    try:
        code, _, err = dsearch("index", notes, "--yes")
    finally:
        (notes / "sub").chmod(0o755)
    assert (code, "sub: cannot be read: Permission denied" in err) == (0, True)
    assert "sub/README.md" in ids(dsearch, "notes")


def test_two_folders_with_files_of_one_name_have_both(dsearch: Terminal, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"readme of {name}")
        (tmp_path / name / "rows.csv").write_text(f"id,text\n1,row of {name}\n")
    run(dsearch, tmp_path / "one")
    code, _, err = dsearch("index", tmp_path / "two")
    assert (code, "2 ids carry their folder's name" in err) == (0, True)
    assert sorted(ids(dsearch, "readme")) == ["README.md", "two/README.md"]
    assert sorted(ids(dsearch, "row")) == ["1", "two/rows.csv#1"]
    for folder in ("one", "two"):
        assert run(dsearch, tmp_path / folder)["unchanged"] == 2
    (tmp_path / "one" / "README.md").unlink()
    assert run(dsearch, tmp_path / "one", "--yes")["deleted"] == 1
    assert run(dsearch, tmp_path / "two")["unchanged"] == 2  # an id stays once it is given
    assert ids(dsearch, "readme") == ["two/README.md"]


def test_rows_that_are_gone_from_a_table_are_deleted(dsearch: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    rows = [f"{number},item{number},{number}.5\n" for number in range(20)]
    (folder / "a.csv").write_text("id,text,price\n" + "".join(rows))
    run(dsearch, folder)
    (folder / "a.csv").write_text("id,text,price\n" + "".join(rows[1:]))
    assert run(dsearch, folder)["deleted"] == 1
    (folder / "a.csv").rename(folder / "b.csv")
    report = run(dsearch, folder)
    assert (report["inserted"], report["deleted"], report["documents"]) == (0, 0, 19)
    found = dsearch("search", "item", "--filter", '{"price": {"gte": 18}}', "--json")[1]
    assert {hit["id"] for hit in json.loads(found)["hits"]} == {"18", "19"}


def test_a_folder_in_one_that_was_indexed_is_that_part_of_it(dsearch: Terminal, notes: Path) -> None:
    run(dsearch, notes)
    (notes / "n03.md").unlink()
    (notes / "sub" / "more.md").write_text("glacier")
    report = run(dsearch, notes / "sub")
    assert (report["inserted"], report["unchanged"], report["deleted"]) == (1, 1, 0)  # only below sub
    assert ids(dsearch, "glacier") == ["sub/more.md"]
    assert run(dsearch, notes / "n04.md")["unchanged"] == 1  # a file too
    assert run(dsearch, notes)["deleted"] == 1
    report = run(dsearch, notes.parent)  # the folder around, in which the home lies: ids stay
    assert (report["inserted"], report["updated"], report["deleted"]) == (0, 20, 0)
    assert ids(dsearch, "glacier") == ["sub/more.md"]


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


def test_what_git_ignores_is_not_read(dsearch: Terminal, notes: Path) -> None:
    (notes / ".gitignore").write_text("build/\n*.tmp.md\n!keep.tmp.md\n")
    (notes / "sub" / ".gitignore").write_text("local.md\n")
    for name in ("build/x.md", "a.tmp.md", "keep.tmp.md", "sub/local.md", "node_modules/m.js", "local.md"):
        (notes / name).parent.mkdir(exist_ok=True)
        (notes / name).write_text("glacier")
    run(dsearch, notes)
    assert sorted(ids(dsearch, "glacier")) == ["keep.tmp.md", "local.md"]
    run(dsearch, notes, "--ignored")
    assert len(ids(dsearch, "glacier")) == 5


def test_nothing_that_can_be_indexed_is_exit_1(dsearch: Terminal, tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_bytes(bytes(range(256)))
    code, _, err = dsearch("index", tmp_path / "bad.md")
    assert (code, "nothing was found to index" in err) == (1, True)


def test_types_can_be_declared(dsearch: Terminal, tmp_path: Path) -> None:
    source = tmp_path / "shop.csv"
    source.write_text(
        "id,text,price,zip,sold\n1,lamp,9.5,10115,true\n2,chair,30,80331,FALSE\n3,desk,,04109,\n"
    )
    run(dsearch, source, "--type", "price=text")
    assert ids(dsearch, "lamp chair", "--filter", '{"price": {"eq": "9.5"}}') == ["1"]
    run(dsearch, source)
    assert ids(dsearch, "lamp chair", "--filter", '{"price": {"gte": 10}}') == ["2"]
    assert ids(dsearch, "lamp chair", "--filter", '{"sold": {"eq": true}}') == ["1"]
    assert ids(dsearch, "desk", "--filter", '{"zip": {"eq": "04109"}}') == ["3"]  # a leading zero: text
    code, _, err = dsearch("index", source, "--type", "price=money")
    assert (code, "type 'price=money'; use COLUMN=TYPE with one of text, number, boolean" in err) == (1, True)


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
