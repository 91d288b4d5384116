"""README's table is measured by a command, which runs on any folder with judgements."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.paths import SCRIPTS

from dsearch.encoder import Encoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty documents, and a query for each, judged in both splits; folds for cross-validation."""
    folder = tmp_path / "small"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": f"thing{i}", "text": f"answer{i % 9} x{i}"} for i in range(40)]
    queries = [{"_id": f"q{i}", "text": f"question{i % 9} thing{i}"} for i in range(40)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = "".join(f"q{i}\td{i}\t1\n" for i in range(40))
    for split in ("train", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


def test_the_table_is_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    monkeypatch.syspath_prepend(str(SCRIPTS / "bench"))
    described = importlib.util.spec_from_file_location("results_command", SCRIPTS / "bench" / "results.py")
    assert described is not None
    assert described.loader is not None
    script = importlib.util.module_from_spec(described)
    described.loader.exec_module(script)
    written = tmp_path / "results.json"
    options = ["--no-python", "--seeds", "1", "--home", str(tmp_path / "home"), "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["results.py", str(folder), *options])
    script.main()
    told = json.loads(written.read_text())
    assert told["small"]["systems"] == ["dense", "keyword", "hybrid"]
    (row,) = told["small, trained"]
    assert 0 < row["all"] <= 1
    assert "small, trained head, all: mean" in capsys.readouterr().out
