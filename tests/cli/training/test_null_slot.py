"""`dsearch train --null-slot` and what `dsearch evaluate` says of queries that nothing answers."""

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


def test_learned_saved_searched_and_evaluated(beir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("evaluate", "-c", "t", "--data", beir)
    assert "20 unanswerable of 80 judged queries: AUROC" in capsys.readouterr().out
    code = run("train", "-c", "t", "--data", beir, "--epochs", "1", "--null-slot", "--accept")
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "null slot: 20 unanswerable of 80 judged queries: AUROC" in out
    run("evaluate", "-c", "t", "--data", beir, "--json")
    told = json.loads(capsys.readouterr().out)["answerability"]
    assert told["unanswerable"] == 20
    assert told["auroc"] > 0.8
    assert told["calibration_error"] is not None
    run("search", "thing3", "-c", "t", "--explain")
    assert "for nothing fits" in capsys.readouterr().err


def test_without_judgements_it_is_refused(beir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "-c", "t", "--self-supervised", "--null-slot") == 1
    assert "--null-slot learns from judged queries" in capsys.readouterr().err


def test_queries_that_are_missing_are_told_before_anything_is_trained(
    beir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qrels = beir / "qrels" / "train.tsv"
    qrels.write_text(
        "".join(line for line in qrels.read_text().splitlines(True) if not line.startswith("n1"))
    )
    assert run("train", "-c", "t", "--data", beir, "--null-slot") == 1
    err = capsys.readouterr().err
    assert "9 judged queries that nothing answers and 60 that something does" in err
    assert "headroom" not in err
