"""`dsearch train --objective context`: learns values of a field, and says how well they predict it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.cli import main
from dsearch.encoder import Encoder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents of six random words and one that says the topic; most words say nothing."""
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "home"))
    generator, lines = np.random.default_rng(0), []
    for n in range(90):
        topic = ("sea", "wood")[n % 2]
        words = " ".join(f"w{word}" for word in generator.integers(0, 40, 5))
        price = 10.0 * (n % 2) + float(generator.normal())
        document = {"_id": f"d{n}", "text": f"{topic} {words}", "topic": topic, "price": price}
        lines.append(json.dumps(document))
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    run(tmp_path, "index", tmp_path / "corpus.jsonl", "-c", "t")
    return tmp_path


def run(home: Path, *arguments: str | Path) -> int:
    sys.argv = ["dsearch", *map(str, arguments)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_a_label_and_a_number_are_learned(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    code = run(home, "train", "-c", "t", "--objective", "context", "--field", "topic", "--epochs", "12",
               "--learning-rate", "0.01", "--json", "--accept")  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["version"], answer["objective"], answer["kind"]) == ("v1", "context", "label")
    assert answer["live"]
    measures = answer["values"]
    assert measures["after"].keys() == measures["before"].keys() == {"log_loss", "accuracy"}
    assert measures["after"]["accuracy"] > 0.8
    code = run(home, "train", "-c", "t", "--objective", "context", "--field", "price", "--epochs", "4")
    out = capsys.readouterr().out
    assert code in (0, 3)
    assert "learned values of 'price' (number) from 90 documents" in out
    assert "R²" in out
    assert "rmse" in out
