"""`dsearch index` on mixed folders and long documents, `dsearch search` on what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.fakes import HashingEncoder

from dsearch.cli import main
from dsearch.encoder import Encoder

LONG = " ".join(f"filler{n}" for n in range(60)) + " unique needle"


@pytest.fixture
def dsearch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsearch", *map(str, arguments)])
        monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "home"))
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def notes(tmp_path) -> Path:
    folder = tmp_path / "notes"
    (folder / ".git").mkdir(parents=True)
    (folder / "long.txt").write_text(LONG)
    (folder / "short.md").write_text("# Short\n\na needle")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "broken.txt").write_bytes(b"\xff\xfe\x00")
    (folder / ".git" / "config.txt").write_text("hidden")
    return folder


def test_a_mixed_folder_is_read_and_what_is_not_is_told(dsearch, notes):
    code, out, err = dsearch("index", notes, "-c", "n", "--passage-tokens", "16")
    assert code == 0
    assert "2 documents" in out
    assert "1 skipped" in out
    assert "broken.txt" in err
    assert "passed over 1 file of other kinds: 1 .png" in err
    code, out, _ = dsearch("index", notes, "-c", "n", "--json")
    report = json.loads(out)
    assert (report["unchanged"], report["encoded"], report["skipped"]) == (2, 0, 1)
    assert report["passed_over"] == {".png": 1}
    assert report["passages"] == {"tokens": 16, "overlap": 2}
    code, _, err = dsearch("index", notes, "-c", "n", "--strict")
    assert code != 0
    assert "broken.txt" in err


def test_a_new_collection_keeps_keys_as_asked(dsearch, notes):
    assert dsearch("index", notes, "-c", "n", "--kind", "SQ8")[0] == 0
    assert "keys SQ8" in dsearch("collections")[1]
    assert dsearch("index", notes, "-c", "n")[0] == 0
    code, _, err = dsearch("index", notes, "-c", "n", "--kind", "Flat")
    assert code == 1
    assert "dsearch refresh -c n --kind Flat" in err
    code, _, err = dsearch("index", notes, "-c", "other", "--kind", "magic")
    assert code == 1
    assert "use one of Flat" in err
    assert "other" not in dsearch("collections")[1]


def test_the_passage_is_shown(dsearch, notes):
    dsearch("index", notes, "-c", "n", "--passage-tokens", "16")
    _, out, _ = dsearch("search", "unique needle", "-c", "n", "--mode", "dense")
    assert "unique needle" in out
    assert "…filler" in out
    assert "filler0 " not in out
    _, out, _ = dsearch("search", "unique needle", "-c", "n", "--mode", "dense", "--json")
    first, second = json.loads(out)["hits"]
    assert first["passage"]["text"].endswith("unique needle")
    assert "passage" not in second


def test_settings_that_are_not_the_collections_say_what_to_do(dsearch, notes):
    dsearch("index", notes, "-c", "cut", "--passage-tokens", "16", "--overlap", "4")
    for options in (("--passage-tokens", "32"), ("--overlap", "5"), ("--no-passages",)):
        code, _, err = dsearch("index", notes, "-c", "cut", *options)
        assert code != 0
        assert "passages of 16 tokens, 4 shared, and that stays" in err
        assert "-c NEW_NAME" in err
    code, out, _ = dsearch("index", notes, "-c", "whole", "--no-passages", "--json")
    assert json.loads(out)["passages"] is None
    _, out, _ = dsearch("search", "unique needle", "-c", "whole", "--mode", "dense", "--json")
    assert "passage" not in json.loads(out)["hits"][0]
