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


def test_remember_takes_a_query_or_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    home = tmp_path / "home"
    monkeypatch.setenv("DSEARCH_HOME", str(home))
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        topics_in(engine)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsearch", *arguments, "-c", "topics"])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), *capsys.readouterr()

    code, _, err = run("remember", "zebra quantum", "d19-2")
    assert code == 1
    assert "v0, which is live, has no query memory" in err
    code, out, err = run("remember", "zebra quantum", "d19-2", "d0-0", "nothing", "--accept")
    assert code == 0
    assert "topics: v1 remembers 2 judgements of 1 query" in out
    assert "promote" not in out
    assert "left out: unknown documents: 1" in err
    assert 'by "zebra quantum", judged before' in run("search", "zebra quantum", "--explain")[1]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text("")
    (tmp_path / "queries.jsonl").write_text('{"_id": "a", "text": "lion atom"}\n')
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\na\td7-1\t1\n")
    code, out, _ = run("remember", "--data", str(tmp_path))
    first, undo = out.splitlines()
    assert (code, first) == (0, "topics: v1 remembers 1 judgement of 1 query")
    assert 'by "lion atom", judged before' in run("search", "lion atom", "--explain")[1]
    code, out, _ = run(*undo.removeprefix("Undo: dsearch ").removesuffix(" -c topics").split())
    assert (code, out) == (0, "topics: 1 remembered query dropped, 1 left\n")
    assert "lion atom" not in run("search", "lion atom", "--explain")[1].partition("\n")[2]
    code, _, err = run("remember", "zebra quantum")
    assert code == 1
    assert "give a query and the ids of documents that answer it, or --data FOLDER" in err
