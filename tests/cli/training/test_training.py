"""Training on the command line: scopes, runs, checks of the data, versions and the way back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli.terminal import Terminal

from dsearch.training.loop import loop


@pytest.fixture
def indexed(dsearch: Terminal, beir: Path) -> Path:
    assert dsearch("index", beir, "-c", "t")[0] == 0
    return beir


TRAIN = ("train", "-c", "t", "--epochs", "2", "--accept")


def test_scope_query_answers_when_promoted(dsearch: Terminal, indexed: Path, tmp_path: Path) -> None:
    arguments = ("--data", indexed, "--scope", "query", "--encoder-training", "all")
    code, out, err = dsearch(*TRAIN, *arguments, "--encoder-learning-rate", "0.05", "--run", tmp_path / "run")
    assert code == 0, err
    assert "v1 is live now" in out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["stage"] == "train"] == [1, 2]
    assert "query trained from v0, 40 queries, 2 epochs" in dsearch("models", "-c", "t")[1]
    answers = {
        model: json.loads(dsearch("search", "thing7", "-c", "t", "--json", "--model", model)[1])
        for model in ("v0", "v1")
    }
    scores = {model: [hit["score"] for hit in answer["hits"]] for model, answer in answers.items()}
    assert scores["v0"] != scores["v1"]
    report = json.loads(dsearch("evaluate", "-c", "t", "--data", indexed, "--json")[1])
    assert "trained v1" in report["systems"]
    assert dsearch("compare", "v0", "v1", "-c", "t", "--data", indexed)[0] == 0
    assert "needs its encoder" not in dsearch("train", "-c", "t", "--data", indexed, "--scope", "some")[2]


def test_an_interrupted_run_goes_on(
    dsearch: Terminal,
    indexed: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    import signal

    plain, steps = loop._Run._one_step, []

    def pressed(run: loop._Run, batch: object) -> None:
        steps.append(1)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        plain(run, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(loop._Run, "_one_step", pressed)
    code, _, err = dsearch(*TRAIN, "--data", indexed)
    assert code == 130
    assert "training was cancelled in epoch" in err
    assert "no version was made, and the run's checkpoints stay; to go on, run it again: " in err
    assert err.endswith(f" --data {indexed} --resume\n")
    code, _, err = dsearch(*TRAIN, "--data", indexed, "--resume", "--seed", "5")
    assert code == 1
    assert "holds another run: options is" in err
    code, out, err = dsearch(*TRAIN, "--data", indexed, "--resume")
    assert code == 0, err
    assert "v1 is live now" in out
    runs = tmp_path / "home" / "t" / "runs"
    assert [path.name for path in runs.iterdir()] == ["000001"]
    assert dsearch(*TRAIN, "--data", indexed)[0] == 0
    assert sorted(path.name for path in runs.iterdir()) == ["000001", "000002"]
    assert "the run in" in dsearch(*TRAIN, "--data", indexed, "--resume")[2]


def test_bad_data_is_told_and_strict_refuses(dsearch: Terminal, indexed: Path) -> None:
    path = indexed / "qrels" / "train.tsv"
    path.write_text(path.read_text() + "q1\td1\t1\nq2\td2\t0\nq3\tgone\t1\n")
    code, _, err = dsearch(*TRAIN, "--data", indexed, "--strict")
    assert code == 1
    assert "train.tsv:43: query 'q2' and document 'd2' are judged 0 here and 1 in line 4" in err
    assert not (indexed.parent / "home" / "t" / "runs").exists()
    code, out, err = dsearch(*TRAIN, "--data", indexed, "--json")
    assert code == 0
    assert "left out: contradictions: 1, duplicate pairs: 1, queries without a positive: 1, unknown" in err
    assert json.loads(out)["left_out"]["contradictions"] == 1
    assert json.loads(out)["examples"] == 39


def test_back_and_away(dsearch: Terminal, indexed: Path) -> None:
    for seed in ("0", "1"):
        assert dsearch(*TRAIN, "--data", indexed, "--seed", seed)[0] == 0
    assert dsearch("rollback", "-c", "t")[1] == "t: v1 is live now, in place of v2\n"
    assert "answered, the latest first: v1, v2, v1, v0" in dsearch("models", "-c", "t")[1]
    assert dsearch("models", "-c", "t", "delete", "v2")[1] == "t: v2 is deleted\n"
    assert "model v1 answers now" in dsearch("models", "delete", "v1", "-c", "t")[2]
    assert [one["version"] for one in json.loads(dsearch("models", "-c", "t", "--json")[1])] == ["v0", "v1"]
    assert dsearch("rollback", "-c", "t")[1] == "t: v0 is live now, in place of v1\n"
    assert "nothing answered before it" in dsearch("rollback", "-c", "t")[2]


def test_scope_full_brings_its_own_documents(dsearch: Terminal, indexed: Path, tmp_path: Path) -> None:
    arguments = ("--data", indexed, "--scope", "full", "--encoder-learning-rate", "0.01", "--epochs", "2")
    own = ("--precision", "bfloat16", "--negatives", "1")
    code, out, err = dsearch(*TRAIN, *arguments, "--run", tmp_path / "run", *own)
    assert code == 0, err
    assert "v1 is live now" in out
    assert "full trained from v0, 32 queries, 2 epochs, seed 0" in dsearch("models", "-c", "t")[1]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert all(0 <= line["staleness"] <= 1 and line["ndcg_at_10_all"] > 0 for line in lines)
    found = json.loads(dsearch("search", "thing7", "-c", "t", "--json")[1])
    assert (found["model"], found["generation"]) == ("v1", 1_000_001)
    assert found["hits"][0]["id"] == "d7"
    assert (
        "trained v1" in json.loads(dsearch("evaluate", "-c", "t", "--data", indexed, "--json")[1])["systems"]
    )
    assert dsearch("rollback", "-c", "t")[1] == "t: v0 is live now, in place of v1\n"
    assert json.loads(dsearch("search", "thing7", "-c", "t", "--json")[1])["generation"] == 2
