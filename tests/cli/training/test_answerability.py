"""What `dsearch evaluate` says of queries that nothing answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.fakes import HashingEncoder

from dsearch.cli import main
from dsearch.encoder import Encoder


def run(*arguments: str | Path) -> int:
    sys.argv = ["dsearch", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def beir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty documents, a query for each, and twenty queries about what is not there, judged 0."""
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "home"))
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": f"thing{i}", "text": f"answer{i % 20} x{i}"} for i in range(60)]
    queries = [{"_id": f"q{i}", "text": f"question{i % 20} thing{i}"} for i in range(60)]
    queries += [{"_id": f"n{i}", "text": f"zebra{i} quantum{i} tunnel{i}"} for i in range(20)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    rows = "".join(f"q{i}\td{i}\t1\n" for i in range(60)) + "".join(f"n{i}\td{i}\t0\n" for i in range(20))
    for split in ("train", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    run("index", folder, "-c", "t")
    return folder


def test_queries_that_nothing_answers_are_told_by_the_first_score(
    beir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("evaluate", "-c", "t", "--data", beir)
    assert "20 unanswerable of 80 judged queries: AUROC" in capsys.readouterr().out
    run("evaluate", "-c", "t", "--data", beir, "--json")
    found = json.loads(capsys.readouterr().out)["answerability"]
    assert (found["answerable"], found["unanswerable"]) == (60, 20)
    assert found["auroc"] > 0.8
