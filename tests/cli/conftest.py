"""Fixtures for tests of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.encoder import Encoder


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    return Terminal(tmp_path / "home", capsys, monkeypatch)


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Sixty documents whose queries share one word of three with them."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    documents = [
        {"_id": f"d{i}", "title": f"thing{i}", "text": f"answer{i % 20} filler{i}"} for i in range(60)
    ]
    queries = [{"_id": f"q{i}", "text": f"question{i % 20} thing{i}"} for i in range(60)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    for split, numbers in {"train": range(40), "test": range(30, 60)}.items():
        rows = "".join(f"q{i}\td{i}\t1\n" for i in numbers)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder
