"""What a training over shards refuses at once, and what each process of a training does."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from dsearch.cli.commands import train as command
from dsearch.cli.commands.train import _require_trainable_over_shards
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob


@pytest.mark.parametrize(
    ("chosen", "flags"),
    [
        ({"source": "clicks"}, "--from clicks"),
        ({"scope": "full"}, "--scope full"),
        ({"precision": "bfloat16"}, "--precision bfloat16"),
        ({"field": "year", "objective": "context"}, "--objective context"),
        ({"scope": "query", "precision": "bfloat16"}, "--scope query, --precision bfloat16"),
    ],
)
def test_what_cannot_be_learned_is_named_by_its_flags(chosen: dict[str, Any], flags: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _require_trainable_over_shards(TrainingJob(**chosen))
    assert str(refused.value) == (
        f"--ray trains a head from judgements or the corpus; leave out {flags}, or train without --ray"
    )


@pytest.mark.parametrize("chosen", [{}, {"scope": "head", "precision": "float32", "seed": 3}])
def test_a_head_is_learned(chosen: dict[str, Any]) -> None:
    _require_trainable_over_shards(TrainingJob(**chosen))


@pytest.mark.parametrize("first", [True, False])
def test_one_process_writes_and_each_learns_as_it_was_asked_to(
    dsearch: Any, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The others that torchrun started only compute: one of them would make a version of its own."""
    opened: list[bool] = []
    trained: list[tuple[TrainingJob, str, object]] = []
    learned, processes = MagicMock(), SimpleNamespace(first=first)
    engine = MagicMock(device="cuda:1")

    def run_training(_: object, job: TrainingJob, __: object, **options: Any) -> MagicMock:
        trained.append((job, options["device"], options["processes"]))
        return learned

    def open_engine(*_: object, readonly: bool = False, **__: object) -> Any:
        opened.append(readonly)
        return nullcontext(engine)

    monkeypatch.setattr(command, "training_processes", lambda *_: nullcontext(processes))
    monkeypatch.setattr(command, "writing", open_engine)
    monkeypatch.setattr(command, "local_engine", open_engine)
    monkeypatch.setattr(command, "in_process", lambda engine: engine)
    monkeypatch.setattr("dsearch.training.run_training", run_training)
    show = MagicMock()
    monkeypatch.setattr(command, "show_training", show)
    learned.result.record, learned.summary.return_value = {"seconds": 1.0}, {"live": True}
    assert dsearch("train", "--self-supervised", "--seed", "4")[0] == 0
    job = TrainingJob(self_supervised=True, seed=4)
    assert (opened, trained) == ([not first], [(job, "cuda:1", processes)])
    assert learned.register.call_count == show.call_count == first
