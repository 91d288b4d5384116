"""A head learns the same on a GPU as on a CPU, and a run begun on one goes on on the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.training.observers import StopWhen

from dsearch.attention.retrieval.head import Head
from dsearch.engine import SearchEngine
from dsearch.errors import Cancelled
from dsearch.training import Examples, RunFolder, TrainingOptions, Watch, examples_from_judgements
from dsearch.training.scopes.head import train_student
from dsearch.types import Document

PAIRS = 60
OPTIONS = TrainingOptions(epochs=4, batch_size=8)
on_gpu = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture
def examples(engine: SearchEngine) -> Examples:
    collection = engine.create("synonyms")
    collection.ingest(
        [Document(id=f"d{i}", text=f"answer{i % 20} colour{i % 3} filler{i}") for i in range(PAIRS)]
    )
    queries = {f"q{i}": f"question{i % 20} colour{i % 3} asked{i}" for i in range(PAIRS)}
    return examples_from_judgements(collection, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(PAIRS)})


def train(
    examples: Examples, device: str, run: RunFolder | None = None, cancelled: Callable[[], bool] | None = None
) -> Head:
    keeper = None if run is None else run.stage("train")
    return train_student(
        examples, OPTIONS, device=device, watch=Watch(keeper=keeper, observer=StopWhen(cancelled))
    ).head


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("cpu", "cpu"),
        pytest.param("cpu", "cuda", marks=on_gpu),
        pytest.param("cuda", "cpu", marks=on_gpu),
    ],
)
def test_a_run_goes_on_on_another_device(examples: Examples, tmp_path: Path, first: str, then: str) -> None:
    steps = iter(range(100))
    run = RunFolder(tmp_path / "run", {"of": "this test"})
    with pytest.raises(Cancelled):
        train(examples, first, run, lambda: next(steps) == 13)
    found = train(examples, then, RunFolder(tmp_path / "run", {"of": "this test"}, resume=True))
    expected = train(examples, "cpu")
    for ours, theirs in zip(found.parameters(), expected.parameters(), strict=True):
        assert ours.device.type == "cpu"
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
