"""`dsearch models` names what a loss of one's own has trained, with the gate's verdict on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.training.topics import topics_in

import dsearch
from dsearch.cli import main
from dsearch.engine import SearchEngine
from dsearch.jobs import ExampleScores


def test_a_saved_layer_is_named_with_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        topics = topics_in(engine)
        layer = dsearch.open_layer(engine, "topics")
        before = [0.01 * i for i in range(12)]
        better = ExampleScores(before, [0.5 + 1.1 * one for one in before], "reward")
        dsearch.save_model(topics, layer, evidence=better)
        dsearch.save_model(topics, layer)
    monkeypatch.setenv("DSEARCH_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["dsearch", "models", "-c", "topics"])
    with pytest.raises(SystemExit, match="0"):
        main()
    lines = {line[2:4]: line for line in capsys.readouterr().out.splitlines()}
    first, second = lines["v1"], lines["v2"]
    assert "head trained from v0 by a loss of its own; gate: passed, held-out reward 0.0550 →" in first
    assert first.startswith("* v1")
    assert "gate: cannot tell, no query was held out" in second
