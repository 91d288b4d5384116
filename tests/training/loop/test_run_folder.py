"""A checkpoint is whole or absent, and durable when its call returns."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.syncs import recorded

from dsearch.errors import CorruptData, InvalidRequest
from dsearch.training.gate.held_out import Answers
from dsearch.training.loop.run_folder import RunFolder, read_checkpoint, write_checkpoint


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    assert read_checkpoint(path) is None
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
    write_checkpoint(path, {"x": parameter, "n": torch.tensor(3)}, {"epoch": 2, "loss": [0.5, None]})
    read = read_checkpoint(path)
    assert read is not None
    tensors, numbers = read
    assert tensors["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert int(tensors["n"]) == 3
    assert numbers == {"epoch": 2, "loss": [0.5, None]}
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("content", [b"", b"nonsense" * 9, None])
def test_damage_is_named_with_what_to_do(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"x": torch.zeros(9)}, {})
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(CorruptData, match="delete the run's folder and train again"):
        read_checkpoint(path)


def answers(*values: float) -> Answers:
    return Answers(np.array(values, float), np.zeros(len(values), bool), np.full(len(values), np.nan))


@pytest.mark.parametrize("content", [b"", b"nonsense" * 9, None])
@pytest.mark.parametrize("file", ["before.safetensors", "epoch-1.npy"])
def test_damaged_answers_of_a_run_are_named_with_what_to_do(
    tmp_path: Path, file: str, content: bytes | None
) -> None:
    stage = RunFolder(tmp_path / "run", {"scope": "head"}).stage("fold-0")
    stage.keep_answers("before", answers(0.5))
    stage.keep_array("epoch-1", np.arange(3))
    path = stage.folder / file
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    read = partial(stage.answers, "before") if "before" in file else partial(stage.arrays, {1: "epoch-1"})
    with pytest.raises(CorruptData, match=rf"{file}: cannot be read .*run's folder and train again"):
        read()


def test_everything_that_a_run_goes_on_from_is_synced_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = recorded(monkeypatch)
    run = RunFolder(tmp_path / "run", {"scope": "head"})
    stage = run.stage("fold-0")
    stage.keep_checkpoint(({"x": torch.zeros(2)}, {"epoch": 1}))
    stage.keep_answers("before", answers(0.5))
    stage.keep_array("epoch-1", np.arange(3))
    files = {"run.json": "run", "checkpoint.safetensors": "fold-0", "before.safetensors": "fold-0"}
    files["epoch-1.npy"] = "fold-0"
    assert happened == [
        line
        for name, folder in files.items()
        for line in (f"sync .{name}.writing", f"rename {name}", f"sync {folder}")
    ]


def test_answers_come_back_by_their_labels(tmp_path: Path) -> None:
    stage = RunFolder(tmp_path / "run", {}).stage("fold-0")
    assert (stage.answers("a"), stage.answers_in("a"), stage.several_answers({1: "a"})) == (None, {}, {})
    stage.keep_answers("a", answers(0.25, 1))
    stage.keep_answers_in("b", {"one": answers(0.5), "two": answers(0.75)})
    read = stage.several_answers({1: "a", 2: "missing"})
    assert [*read] == [1]
    assert read[1].all.tolist() == [0.25, 1]
    assert {label: of.all.tolist() for label, of in stage.answers_in("b").items()} == {
        "one": [0.5],
        "two": [0.75],
    }


def test_metrics_of_epochs_that_are_trained_again_are_dropped_of_their_stage_alone(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", {})
    for stage in ("fold-0", "train"):
        for epoch in (1, 2, 3):
            run.add_metrics(stage, epoch, loss=float(epoch), ndcg_at_10=float("nan"), retention=None)
    stage = run.stage("train")
    stage.keep_checkpoint(({}, {"epoch": 3}))  # in the middle of the third
    stage.forget_unfinished_metrics()
    lines = [(line["stage"], line["epoch"]) for line in run.metrics()]
    assert lines == [*(("fold-0", epoch) for epoch in (1, 2, 3)), ("train", 1), ("train", 2)]
    assert run.metrics()[0] == {
        "stage": "fold-0",
        "epoch": 1,
        "loss": 1.0,
        "ndcg_at_10": None,
        "retention": None,
    }
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "tr')  # a kill cut it off
    assert len(run.metrics()) == 5
    run.stage("fold-0").forget_unfinished_metrics()  # without a checkpoint all of it is trained again
    assert {line["stage"] for line in run.metrics()} == {"train"}


def test_a_finished_run_keeps_its_metrics_and_no_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run", {"scope": "head"})
    run.stage("fold-0").keep_answers("a", answers(1))
    run.stage("train").keep_checkpoint(({}, {"epoch": 1}))
    run.add_metrics("train", 1, loss=0.5)
    run.finish()
    assert (
        {"run.json", "metrics.jsonl"}
        <= {path.name for path in run.path.iterdir()}
        <= {
            "run.json",
            "metrics.jsonl",
            "tensorboard",
        }
    )
    with pytest.raises(InvalidRequest, match="is finished; give another folder"):
        RunFolder(run.path, {"scope": "head"}, resume=True)
    with pytest.raises(InvalidRequest, match="is not empty; add --resume"):
        RunFolder(run.path, {"scope": "head"})


def test_a_missing_option_counts_as_its_default_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "run"
    RunFolder(path, {"scope": "head", "options": {"epochs": 3}})
    defaults = {"patience": 2, "epochs": 9}
    later = {"scope": "head", "options": {"epochs": 3, "patience": 2}, "defaults": defaults}
    RunFolder(path, later, resume=True)
    for wrong in ({"epochs": 3, "patience": 4}, {"patience": 2}):
        with pytest.raises(InvalidRequest, match=r"holds another run: options is"):
            RunFolder(path, {**later, "options": wrong}, resume=True)
    with pytest.raises(InvalidRequest, match="scope is 'head' there, 'full' here"):
        RunFolder(path, {**later, "scope": "full"}, resume=True)
    with pytest.raises(InvalidRequest, match="holds no run to go on with; leave --resume out"):
        RunFolder(tmp_path / "other", later, resume=True)
