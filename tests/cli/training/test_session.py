"""Run folders, exit codes and Ctrl-C of training commands."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from dsearch.cli import training
from dsearch.cli.training import (
    HELD_BACK,
    interruptible,
    run_folder,
    stop_unless,
    training_processes,
)
from dsearch.errors import Cancelled, InvalidRequest


def collection(path: Path) -> Any:
    return SimpleNamespace(name="papers", store=SimpleNamespace(path=path))


def opened(path: Path, **options: Any) -> Path:
    return run_folder(collection(path), {"scope": "head"}, None, **{"resume": False, **options}).path


def test_runs_are_numbered_after_the_last_one_and_no_number_comes_twice(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert opened(tmp_path) == runs / "000001"
    assert opened(tmp_path) == runs / "000002"
    for path in sorted((runs / "000001").iterdir()):
        path.unlink()
    (runs / "000001").rmdir()
    for name in ("notes", "7", "0000009", "000003x"):
        (runs / name).mkdir()
    assert opened(tmp_path) == runs / "000003"
    assert opened(tmp_path, resume=True) == runs / "000003"
    (runs / "000010").mkdir()
    assert opened(tmp_path) == runs / "000011"


def test_a_run_is_resumed_only_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^collection 'papers' has no run to resume; leave --resume"):
        opened(tmp_path, resume=True)
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_was_named_is_taken(tmp_path: Path) -> None:
    named = tmp_path / "mine"
    run = run_folder(collection(tmp_path), {"scope": "head"}, named, resume=False)
    assert run.path == named
    assert not (tmp_path / "runs").exists()
    with pytest.raises(InvalidRequest, match="is not empty"):
        run_folder(collection(tmp_path), {"scope": "head"}, named, resume=False)


def test_what_was_held_back_ends_with_its_own_code() -> None:
    stop_unless(True)
    with pytest.raises(typer.Exit) as stopped:
        stop_unless(False)
    assert stopped.value.exit_code == HELD_BACK == 3


def test_the_first_ctrl_c_is_told_and_the_second_one_is_no_longer_ours() -> None:
    before = signal.getsignal(signal.SIGINT)
    presses: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: presses.append(1))
    try:
        with interruptible() as pressed:
            assert not pressed()
            signal.raise_signal(signal.SIGINT)
            assert pressed()
            assert presses == []
            signal.raise_signal(signal.SIGINT)
            assert presses == [1]
        signal.raise_signal(signal.SIGINT)
        assert presses == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_training_that_was_stopped_is_interrupted_and_ctrl_c_given_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        raise Cancelled("stopped in epoch 1")
    assert capsys.readouterr().err == "dsearch: stopped in epoch 1\n"
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def wait_interruptibly(times: int) -> None:
    with interruptible():
        signal.raise_signal(signal.SIGINT)
        for _ in range(times):
            time.sleep(0.01)


def test_ctrl_c_stops_what_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PATIENCE_S", 0.05)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where nohup started the tests
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_interruptibly(6000)
        with interruptible() as pressed:  # what asks is left to stop by itself
            signal.raise_signal(signal.SIGINT)
            assert pressed()
            for _ in range(20):
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)


def test_several_processes_train_in_scope_full_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for scope in ("head", "full"):
        with training_processes(scope, None) as processes:
            assert (processes.first, processes.count) == (True, 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with training_processes("head", None) as processes:
        assert processes.count == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    why = "torchrun started several processes, and --scope head uses one"
    with pytest.raises(InvalidRequest, match=why), training_processes("head", None):
        pass
