"""`dsearch search --explain` names the past queries that brought a document up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.training.topics import queries_of, topics_in

from dsearch.cli import main
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.training import examples_from_judgements
from dsearch.training.gate.selection import with_memory
from dsearch.training.memory import MemorySetting, memory_of


def test_past_queries_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    home = tmp_path / "home"
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        topics = topics_in(engine)
        memory = memory_of(
            examples_from_judgements(topics, *queries_of()).remembering(), MemorySetting(0.8, 0.05, 0.5)
        )
        topics.promote(topics.add_model(with_memory(topics.head("v0"), memory, 1.0), {}))
    query = "question3 about3 other"
    monkeypatch.setenv("DSEARCH_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["dsearch", "search", query, "-c", "topics", "--explain"])
    with pytest.raises(SystemExit, match="0"):
        main()
    out = capsys.readouterr().out
    assert " + past queries 0." in out
    assert 'by "question3 about3 wording0", judged before' in out
    assert "0.0000 by" not in out  # those that were of no account
