"""`dsearch create`, `drop`, `show`, `-h`, and judgements as files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from support.cli.terminal import Terminal


class Answers(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


def test_create_and_drop(dsearch: Terminal, beir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = dsearch("create", "papers", "--language", "german", "--kind", "SQ8")
    assert (code, out) == (0, "papers: created, language german\n")
    assert err == "fill it with: dsearch index SOURCE -c papers\n"
    assert "exists" in dsearch("create", "papers")[2]
    assert dsearch("index", beir, "-c", "papers")[0] == 0

    code, _, err = dsearch("drop", "papers")
    assert code == 1
    assert "this deletes papers (60 documents) for good; add --yes" in err
    monkeypatch.setattr(sys, "stdin", Answers("n\n"))
    assert dsearch("drop", "papers")[0] == 1
    assert "60 documents" in dsearch("collections")[1]
    monkeypatch.setattr(sys, "stdin", Answers("y\n"))
    assert "papers: dropped, with 60 documents\n" in dsearch("drop", "papers", "papers")[1]
    assert "no collection yet" in dsearch("collections")[2]
    code, _, err = dsearch("drop", "papers", "--yes")
    assert (code, "no collection 'papers'" in err) == (1, True)


def test_a_damaged_collection_is_listed_with_its_problem_beside_the_others(
    dsearch: Terminal, tmp_path: Path
) -> None:
    for name in ("broken", "whole"):
        assert dsearch("create", name)[0] == 0
    (tmp_path / "home" / "broken" / "documents.db").write_bytes(b"no database " * 1000)
    code, out, err = dsearch("collections")
    broken, whole = out.splitlines()
    assert (code, err) == (1, "")
    assert broken.startswith("broken: ")
    assert "damaged" in broken
    assert whole.startswith("whole: 0 documents, generation ")
    code, out, _ = dsearch("collections", "--json")
    listed = json.loads(out)
    assert (code, [one["name"] for one in listed]) == (1, ["broken", "whole"])
    assert listed[0]["problem"]["code"] == "corrupt_data"
    assert "this deletes broken (a damaged database) for good" in dsearch("drop", "broken")[2]
    assert json.loads(dsearch("drop", "broken", "--yes", "--json")[1]) == {"dropped": {"broken": None}}
    assert dsearch("collections")[1].startswith("whole: ")


def test_a_created_collection_is_described(dsearch: Terminal) -> None:
    created = json.loads(dsearch("create", "one", "--json")[1])
    assert (created["name"], created["documents"], created["language"]) == ("one", 0, "english")


def test_drop_all_or_none(dsearch: Terminal) -> None:
    for name in ("one", "two", "three"):
        dsearch("create", name)
    code, _, err = dsearch("drop", "one", "nowhere", "--yes")
    assert (code, "nowhere" in err) == (1, True)
    assert json.loads(dsearch("drop", "one", "three", "--yes", "--json")[1]) == {
        "dropped": {"one": 0, "three": 0}
    }
    assert [one["name"] for one in json.loads(dsearch("collections", "--json")[1])] == ["two"]


def test_show_a_document(dsearch: Terminal, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntags: [x]\n---\n# Rivers\n\nThey flow.\n")
    dsearch("index", tmp_path / "a.md")
    lines = dsearch("show", "a.md")[1].splitlines()
    assert lines[0] == "a.md  Rivers"
    assert lines[-1] == "They flow."
    assert '  tags: ["x"]' in lines
    assert "  path: a.md" in lines
    shown = json.loads(dsearch("show", "a.md", "--json")[1])
    assert (shown["id"], shown["text"], shown["metadata"]["tags"]) == ("a.md", "They flow.", ["x"])
    code, _, err = dsearch("show", "b.md")
    assert (code, "no document 'b.md' in collection 'default'; ids are exact\n" in err) == (1, True)
    (tmp_path / "rows.jsonl").write_text('{"id": "none", "text": "x"}\n{"id": "zero", "text": "x", "n": 0}\n')
    dsearch("index", tmp_path / "rows.jsonl", "-c", "rows", "--value-column", "n")
    assert "  value: 0" in dsearch("show", "zero", "-c", "rows")[1]
    assert "value" not in dsearch("show", "none", "-c", "rows")[1]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "100%.md").write_text("tea")
    dsearch("index", tmp_path, "-c", "all")
    for id, meant in (("sub/A.md", "a.md"), ("100%.md", "notes/100%.md"), ("100_", None), ("%", None)):
        err = dsearch("show", id, "-c", "all")[2]
        assert ("did you mean" in err) == (meant is not None), err
        assert meant is None or f"ids are exact; did you mean '{meant}'?" in err


def test_short_help(dsearch: Terminal) -> None:
    for command in ([], ["index"], ["keys"], ["keys", "revoke"]):
        code, out, _ = dsearch(*command, "-h")
        assert (code, "--help" in out) == (0, True)


def test_revoking_the_last_key_says_what_to_do(dsearch: Terminal) -> None:
    ids = []
    for name in ("ann", "bob"):
        assert dsearch("keys", "create", "--name", name)[0] == 0
    ids = [line.split()[0] for line in dsearch("keys", "list")[1].splitlines()]
    assert "last" not in dsearch("keys", "revoke", ids[0])[2]
    code, _, err = dsearch("keys", "clear")
    assert (code, f"keys {ids[1]} still open this home; revoke them first" in err) == (1, True)
    err = dsearch("keys", "revoke", ids[1])[2]
    assert "it was the last one" in err
    assert "dsearch keys create --name NAME" in err
    assert "2 revoked keys are forgotten" in dsearch("keys", "clear")[1]
    assert dsearch("keys", "list")[1] == ""


def test_judgements_as_a_table(dsearch: Terminal, beir: Path, tmp_path: Path) -> None:
    dsearch("index", beir)
    table = tmp_path / "judged.csv"
    rows = "".join(f"question{i % 20} thing{i},d{i},1\n" for i in range(40))
    table.write_text(f"query,document,grade\n{rows}nobody asks,nowhere,1\n")
    code, out, err = dsearch("tune", "--data", table, "--no-promote")
    assert code == 0, err
    assert "document 'nowhere' is not in collection 'default'" in err
    code, _, err = dsearch("train", "--data", table, "--epochs", "1", "--json")
    assert code in (0, 3), err
    assert "40 judged queries have an answer; reliable training needs 100, so 60 are missing" in err
    lines = tmp_path / "judged.jsonl"
    judged = [{"query": f"question{i % 20} thing{i}", "document": f"d{i}"} for i in range(40, 60)]
    lines.write_text("\n".join(map(json.dumps, judged)))
    with lines.open("a") as file:
        file.write("\nbroken")
    _, out, err = dsearch("evaluate", "--data", lines, "--json")
    assert json.loads(out)["lines"][0]["queries"] == 20
    assert f"left out: 1 line of queries or judgements, such as {lines}:21: malformed JSON" in err
    code, out, _ = dsearch("compare", "v0", "v1", "--data", lines)
    assert (code, "nDCG@10" in out) == (0, True)
