"""A run can be killed and go on to the same end, be cancelled, and leaves its figures behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.paths import SUPPORT
from support.training.observers import Recorder, StopWhen
from support.warm.processes import WarmProcess, warm_start

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Cancelled, CorruptData, InvalidRequest
from dsearch.training import (
    Examples,
    RunFolder,
    TrainingDiverged,
    TrainingOptions,
    TrainingResult,
    examples_from_judgements,
    finetune,
)
from dsearch.training.loop import loop
from dsearch.types import Document

PAIRS = 60
SCRIPT = SUPPORT / "training" / "interrupted_training.py"
OPTIONS = TrainingOptions(epochs=4, batch_size=8, folds=2)
PLAIN = replace(OPTIONS, memory=False, tune=False)
ONE_COURSE = replace(PLAIN, batch_size=20, folds=0)


@pytest.fixture
def synonyms(engine: SearchEngine) -> Collection:
    collection = engine.create("synonyms")
    collection.ingest(
        [Document(id=f"d{i}", text=f"answer{i % 20} colour{i % 3} filler{i}") for i in range(PAIRS)]
    )
    return collection


@pytest.fixture
def examples(synonyms: Collection) -> Examples:
    queries = {f"q{i}": f"question{i % 20} colour{i % 3} asked{i}" for i in range(PAIRS)}
    return examples_from_judgements(synonyms, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(PAIRS)})


def same(one: TrainingResult, other: TrainingResult) -> bool:
    heads = (one.head.state_dict(), other.head.state_dict())
    return all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0]) and (
        one.gate.to_dict() == other.gate.to_dict()
    )


# ---- killed


def child(home: Path, run: Path | str, out: Path, scope: str, *, resume: bool = False) -> WarmProcess:
    command = [sys.executable, SCRIPT, home, run, out, scope, "resume" if resume else "start"]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1]), "OMP_NUM_THREADS": "1"}
    return warm_start()([str(part) for part in command], env=environment)


@pytest.mark.crash
@pytest.mark.parametrize("scope", ["head", "query"])
def test_a_killed_run_goes_on_to_the_same_end(
    engine: SearchEngine, synonyms: Collection, tmp_path: Path, scope: str
) -> None:
    assert child(tmp_path / "home", "-", tmp_path / "whole", scope).wait() == 0
    generator = np.random.default_rng(len(scope))
    run, kills = tmp_path / "run", 0
    process = child(tmp_path / "home", run, tmp_path / "pieces", scope)
    for stage in ("fold-0", "fold-1", "train"):  # one kill somewhere in each
        started = run / stage / "checkpoint.safetensors"
        while not started.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.3))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            kills += 1
        process = child(tmp_path / "home", run, tmp_path / "pieces", scope, resume=True)
    assert process.wait() == 0
    assert kills == 3
    whole, pieces = load_file(tmp_path / "whole"), load_file(tmp_path / "pieces")
    assert whole.keys() == pieces.keys()
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    of_stages = {
        stage: [line["epoch"] for line in lines if line["stage"] == stage]
        for stage in ("fold-0", "fold-1", "train")
    }
    assert all(epochs == [1, 2, 3, 4] for epochs in of_stages.values()), of_stages


# ---- cancelled


def test_a_cancelled_run_goes_on_to_the_same_end(examples: Examples, tmp_path: Path) -> None:
    whole = finetune(examples, OPTIONS)
    described, steps = {"data": examples.digest}, 0

    def after(wanted: int) -> bool:
        nonlocal steps
        steps += 1
        return steps > wanted

    resume = False
    for wanted in (7, 11, 9, 30):
        steps = 0
        with pytest.raises(Cancelled, match="training was cancelled in epoch"):
            finetune(
                examples,
                OPTIONS,
                observer=StopWhen(lambda wanted=wanted: after(wanted)),
                run=RunFolder(tmp_path / "run", described, resume=resume),
            )
        resume = True
    done = finetune(examples, OPTIONS, run=RunFolder(tmp_path / "run", described, resume=True))
    assert same(whole, done)
    left = {path.name for path in (tmp_path / "run").iterdir()} - {"tensorboard"}
    assert left == {"metrics.jsonl", "run.json"}
    with pytest.raises(InvalidRequest, match="is finished; give another folder"):
        RunFolder(tmp_path / "run", described, resume=True)


# ---- what is told


def test_a_line_an_epoch(examples: Examples, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", {})
    observer = Recorder()
    trained = finetune(examples, PLAIN, run=run, observer=observer)
    lines = run.metrics()
    assert [(line["stage"], line["epoch"]) for line in lines[:5]] == [
        *(("fold-0", epoch) for epoch in (1, 2, 3, 4)),
        ("fold-1", 1),
    ]
    assert set(lines[0]) == {
        "stage",
        "epoch",
        "loss",
        "retention",
        "ndcg_at_10_all",
        "ndcg_at_10_seen",
        "ndcg_at_10_unseen",
        "temperature",
        "keyword_weight",
        "seconds",
    }
    assert lines[0]["ndcg_at_10_seen"] is None  # no two queries share a document
    assert 0 < lines[0]["ndcg_at_10_unseen"] <= 1
    last = lines[-1]
    assert last["stage"] == "train"
    learned = last["keyword_weight"] - 1  # of which a share is served
    assert trained.head.keyword_weight.item() == pytest.approx(1 + trained.share * learned)
    assert lines[3]["loss"] < lines[0]["loss"]
    validated = [step for step in observer.steps if step.stage == "validate"]
    assert (validated[0].done, validated[0].total) == (1, 16)
    assert (observer.steps[-1].done, observer.steps[-1].total) == (32, 32)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"] is True


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no run to go on with"):
        RunFolder(tmp_path / "none", {}, resume=True)
    RunFolder(tmp_path / "run", {"options": {"seed": 1}, "data": "a"})
    with pytest.raises(InvalidRequest, match="is not empty; add --resume"):
        RunFolder(tmp_path / "run", {"options": {"seed": 1}, "data": "a"})
    with pytest.raises(InvalidRequest, match=r"another run: options is \{'seed': 1\} there, \{'seed': 2\}"):
        RunFolder(tmp_path / "run", {"options": {"seed": 2}, "data": "a"}, resume=True)
    RunFolder(tmp_path / "run", {"options": {"seed": 1}, "data": "a"}, resume=True)
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(CorruptData, match=r"run\.json: cannot be read"):
        RunFolder(tmp_path / "run", {}, resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match="is not empty"):
        RunFolder(tmp_path / "full", {})


# ---- NaN


def test_nan_stops_and_the_last_good_head_stays(
    examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = finetune(examples, ONE_COURSE)
    kept: list[dict[str, torch.Tensor]] = []
    plain = loop._Run._one_step

    def poisoned(run: loop._Run, batch: torch.Tensor) -> None:
        if (run._epoch, run._step) == (3, 1):
            kept.append({name: tensor.clone() for name, tensor in run._good.items()})
            with torch.no_grad():
                run._task.trained.head.key_delta[0, 0] = np.nan
        plain(run, batch)

    monkeypatch.setattr(loop._Run, "_one_step", poisoned)
    run = RunFolder(tmp_path / "run", {})
    with pytest.raises(
        TrainingDiverged,
        match=r"nan in epoch 3, step 2 \(stage train\); it is as it was after epoch 2",
    ) as caught:
        finetune(examples, ONE_COURSE, run=run)
    error = caught.value
    assert (error.epoch, error.step, error.good_epoch) == (3, 2, 2)
    assert "last-good.safetensors" in error.__notes__[0]
    head = error.student.head
    assert all(torch.isfinite(parameter).all() for parameter in head.parameters())
    assert torch.equal(head.key_delta, kept[0]["head.key_delta"])
    assert torch.equal(load_file(tmp_path / "run" / "last-good.safetensors")["key_delta"], head.key_delta)
    assert not torch.equal(good.head.key_delta, head.key_delta)
    assert [line["epoch"] for line in run.metrics()] == [1, 2]


def test_a_weight_that_overflows_is_noticed(examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss was finite, the step made the weight infinite: the epoch does not count as good."""
    plain = loop._Run._one_step

    def last_step_overflows(run: loop._Run, batch: torch.Tensor) -> None:
        plain(run, batch)
        if (run._epoch, run._step) == (2, 3):
            with torch.no_grad():
                run._task.trained.head.log_temperature.fill_(np.inf)

    monkeypatch.setattr(loop._Run, "_one_step", last_step_overflows)
    with pytest.raises(TrainingDiverged, match="a weight is NaN or infinite in epoch 2, step 3") as caught:
        finetune(examples, ONE_COURSE)
    assert torch.isfinite(caught.value.student.head.log_temperature)
