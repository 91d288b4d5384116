"""The commands, in this process with a small encoder: answers on stdout, the rest on stderr, exit codes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.cli.terminal import Terminal


def test_index_search_train_evaluate_run(dsearch: Terminal, beir: Path, tmp_path: Path) -> None:
    code, out, _ = dsearch("index", beir, "-c", "t")
    assert code == 0
    assert "60 documents, generation 2: 60 new" in out
    code, out, _ = dsearch("index", beir, "-c", "t", "--json")
    report = json.loads(out)
    assert (report["unchanged"], report["encoded"], report["generation"]) == (60, 0, 2)

    code, out, err = dsearch("search", "thing7", "-c", "t", "--explain", "-k", "3")
    assert code == 0
    assert "d7" in out.splitlines()[0]
    assert "dense" in out
    assert "candidates" in err
    code, out, err = dsearch("search", "thing7", "-c", "t", "--json", "--mode", "keyword")
    result = json.loads(out)
    assert [hit["id"] for hit in result["hits"]] == ["d7"]
    assert result["model"] == "v0"

    code, out, _ = dsearch("train", "-c", "t", "--data", beir, "--epochs", "3", "--accept")
    assert code == 0, out
    assert "v1 is live now" in out
    code, out, _ = dsearch("models", "-c", "t")
    assert out.splitlines()[1].startswith("* v1")
    assert json.loads(dsearch("models", "-c", "t", "--json")[1])[1]["record"]["examples"] == 40

    code, out, err = dsearch("evaluate", "-c", "t", "--data", beir, "--json")
    assert "warning: 10 of these 30 queries were trained on (10 by v1)" in err
    report = json.loads(out)
    assert report["systems"] == ["dense", "keyword", "hybrid", "trained v1"]
    assert {line["group"]: line["queries"] for line in report["lines"]} == {
        "all": 30,
        "seen": 10,
        "unseen": 20,
        "trained on": 10,
        "not trained on": 20,
    }
    _, text, _ = dsearch("evaluate", "-c", "t", "--data", beir)
    assert "seen (10)" in text
    assert "[95 % paired bootstrap interval]" in text

    saved = tmp_path / "run.json"
    gate = ("evaluate", "-c", "t", "--data", beir, "--baseline", saved, "--fail-if-worse", "0.005")
    assert dsearch("evaluate", "-c", "t", "--data", beir, "--save-baseline", saved)[0] == 0
    code, out, _ = dsearch(*gate)
    assert (code, "against the baseline: nDCG@10" in out) == (0, True)
    better = json.loads(saved.read_text())
    assert better["system"] == "trained v1"
    saved.write_text(json.dumps({**better, "values": {id: of + 0.2 for id, of in better["values"].items()}}))
    code, out, _ = dsearch(*gate, "--json")
    assert (code, json.loads(out)["regression"]["worse"]) == (3, True)
    code, _, err = dsearch("evaluate", "-c", "t", "--data", beir, "--fail-if-worse", "0.1")
    assert (code, "give --baseline FILE as well" in err) == (1, True)

    run = tmp_path / "run.trec"
    code, out, _ = dsearch("run", "-c", "t", "--queries", beir / "queries.jsonl", "--out", run, "-k", "7")
    lines = [line.split() for line in run.read_text().splitlines()]
    assert len(lines) == 60 * 7
    scores = [float(line[4]) for line in lines if line[0] == "q5"]
    assert all(a > b for a, b in pairwise(scores))

    refreshed = dsearch("refresh", "-c", "t")[1]
    assert refreshed.startswith("t: generation 3 is live, with the keys of model v1: Flat, recall@10 1.000, ")
    assert dsearch("promote", "v0", "-c", "t")[0] == 0
    assert "60 documents, generation 3, model v0" in dsearch("collections")[1]


def test_excluded_pairs_have_no_part_in_the_training_of_folds(
    dsearch: Terminal, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dsearch.engine as engine
    import dsearch.training as training

    dsearch("index", beir, "-c", "t")
    folds, excluded = tmp_path / "folds.json", tmp_path / "pairs.tsv"
    folds.write_text(json.dumps({"folds": {f"q{i}": i % 2 for i in range(60)}}))
    excluded.write_text("query-id\tcorpus-id\n" + "".join(f"q{i}\td{(i + 1) % 60}\n" for i in range(60)))
    learned_from: list[training.Examples] = []
    ranked_without: list[Any] = []
    finetune, make_run = training.finetune, engine.make_run

    def watched(examples: training.Examples, *arguments: object, **named: object) -> training.TrainingResult:
        learned_from.append(examples)
        return finetune(examples, *arguments, **named)  # type: ignore[arg-type]

    def ranked(*arguments: Any, exclude: Any, **named: Any) -> Any:
        ranked_without.append(exclude)
        return make_run(*arguments, exclude=exclude, **named)

    monkeypatch.setattr(training, "finetune", watched)
    monkeypatch.setattr(engine, "make_run", ranked)
    code, _, err = dsearch("evaluate", "-c", "t", "--data", beir, "--folds", folds, "--exclude", excluded)
    assert code == 0, err
    assert len(learned_from) == 2
    for examples in learned_from:
        assert examples.hidden is not None
        assert all(len(of) == 1 for of in examples.hidden)
    systems, folds_run = 3, 2
    assert ranked_without == [{f"q{i}": {f"d{(i + 1) % 60}"} for i in range(60)}] * (systems + folds_run)


def test_bad_records_cost_only_themselves(dsearch: Terminal, tmp_path: Path) -> None:
    source = tmp_path / "mixed.jsonl"
    source.write_bytes(
        b'{"id": "a", "text": "fine"}\nnot json\n{"id": "b", "text": "  "}\n{"id": "c", "text": "\xff"}\n'
        b'{"id": "a", "text": "again"}\n{"id": "d", "text": "also fine"}\n'
    )
    code, out, err = dsearch("index", source, "-c", "t")
    assert code == 0
    assert "2 documents" in out
    assert "4 skipped" in out
    for line in (2, 3, 4, 5):
        assert f"{source}:{line}: " in err
    code, _, err = dsearch("index", source, "-c", "u", "--strict")
    assert code == 1
    assert f"dsearch: {source}:2: " in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "x", "-c", "none"], "no collection 'none'"),
        (["search", "x", "-c", "t", "-k", "0"], "limit=0; use an integer from 1 to 1000"),
        (["search", "x", "-c", "t", "--mode", "odd"], "mode='odd'; use hybrid, dense or keyword"),
        (["search", " ", "-c", "t"], "give at least one word"),
        (["search", "x", "-c", "t", "--model", "v9"], "v9"),
        (["search", "x", "-c", "../t"], "../t"),
        (["index", "no/such/file.jsonl", "-c", "t"], "no/such/file.jsonl"),
        (["promote", "v3", "-c", "t"], "v3"),
        (
            ["evaluate", "--data", "nowhere", "-c", "t"],
            "nowhere: no such file or folder; judgements are a BEIR folder",
        ),
        (["evaluate", "--data", "BEIR", "--split", "dev", "-c", "t"], "test, train"),
    ],
)
def test_errors_are_one_line_and_exit_1(
    unchecked: None, dsearch: Terminal, beir: Path, arguments: list[str], message: str
) -> None:
    dsearch("index", beir, "-c", "t")
    code, out, err = dsearch(*[str(beir) if one == "BEIR" else one for one in arguments])
    assert code == 1
    assert out == ""
    assert err.startswith("dsearch: ")
    assert message in err
    assert "Traceback" not in err


def test_wrong_usage_exits_2(dsearch: Terminal) -> None:
    assert dsearch("search")[0] == 2
    assert dsearch("nonsense")[0] == 2


def test_settings_come_from_file_and_variables(
    dsearch: Terminal, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsearch("index", beir, "-c", "t")
    monkeypatch.setenv("DSEARCH_HOEM", "typo")
    code, _, err = dsearch("collections")
    assert code == 1
    assert "unknown variable DSEARCH_HOEM" in err
    monkeypatch.delenv("DSEARCH_HOEM")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dsearch.toml").write_text("port = 99999\ncolour = 'red'\n")
    code, _, err = dsearch("collections")
    assert code == 1
    assert "port" in err
    assert "colour" in err


def test_empty_source_says_so(dsearch: Terminal, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    code, out, err = dsearch("index", tmp_path / "empty.jsonl", "-c", "e")
    assert code == 1
    assert "0 documents" in out
    assert "nothing was found to index" in err
    code, out, _ = dsearch("search", "x", "-c", "e", "--json")
    assert json.loads(out)["hits"] == []


def test_tune_train_compare_and_lineage(dsearch: Terminal, beir: Path) -> None:
    dsearch("index", beir, "-c", "t")
    code, out, err = dsearch("tune", "-c", "t", "--data", beir, "--accept", "--json")
    assert code == 0, err
    tuned = json.loads(out)
    assert (tuned["version"], tuned["live"]) == ("v1", True)
    assert {"keyword_weight", "scores", "gate", "undo"} <= set(tuned)
    code, out, _ = dsearch("train", "-c", "t", "--data", beir, "--epochs", "1", "--objective", "judged")
    assert code == 3
    assert "gate: cannot tell" in out or "gate: refused" in out
    assert "v2 is stored but not live" in out
    records = json.loads(dsearch("models", "-c", "t", "--json")[1])
    assert [(one["version"], one["parent"], one["live"]) for one in records] == [
        ("v0", None, False),
        ("v1", "v0", True),
        ("v2", "v1", False),
    ]
    assert records[2]["record"]["gate"]["verdict"] in ("cannot tell", "refused")
    shown = dsearch("models", "-c", "t")[1].splitlines()
    assert shown[1].startswith("* v1   tuned from v0, 40 queries, keyword weight ")
    assert "trained from v1, 40 queries, 1 epoch, judged, seed 0; gate: " in shown[2]
    code, out, err = dsearch("compare", "v0", "v2", "-c", "t", "--data", beir)
    assert code == 0, err
    assert "nDCG@10, v2 against v0" in out
    assert "unseen" in out
    compared = json.loads(dsearch("compare", "v0", "v0", "-c", "t", "--data", beir, "--json")[1])
    assert compared["groups"][0]["p_value"] == 1.0
    code, out, _ = dsearch("tune", "-c", "t", "--data", beir, "--no-promote")
    assert code == 0
    assert "cross-validated" in out
    code, _, err = dsearch("train", "-c", "t", "--data", beir, "--objective", "teacher")
    assert code == 1
    assert "dsearch: objective='teacher' learns from a teacher's scores" in err


def test_evaluate_says_which_relevant_documents_are_not_stored(dsearch: Terminal, beir: Path) -> None:
    dsearch("index", beir, "-c", "t")
    assert "are not in collection" not in dsearch("evaluate", "-c", "t", "--data", beir)[2]
    with (beir / "qrels" / "test.tsv").open("a") as judged:
        judged.write("q31\telsewhere\t1\n")
    code, _, err = dsearch("evaluate", "-c", "t", "--data", beir)
    assert code == 0
    assert "warning: 1 of 31 relevant documents are not in collection 't' and count as not retrieved" in err
