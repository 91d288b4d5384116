"""Every scope learns the same on a GPU as on a CPU, and a run begun on one goes on on the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from support.training.numbers import PAIRS as NUMBERS
from support.training.numbers import number_documents, number_examples
from support.training.observers import StopWhen

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import Encoder
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Cancelled
from dsearch.jobs import TrainingJob
from dsearch.training import (
    Examples,
    RunFolder,
    TrainingOptions,
    Watch,
    examples_from_judgements,
    query_options,
    run_training,
)
from dsearch.training.full_task import FullOptions, train_full
from dsearch.training.head_task import train_student
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


on_two_devices = pytest.mark.parametrize(
    ("first", "then"),
    [
        ("cpu", "cpu"),
        pytest.param("cpu", "cuda", marks=on_gpu),
        pytest.param("cuda", "cpu", marks=on_gpu),
    ],
)


@on_two_devices
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


def train_encoder(
    numbers: Collection, folder: Path, scope: str, device: str, watch: Watch | None = None
) -> dict[str, torch.Tensor]:
    """The change of an encoder that is on the device, as the settings of a home load it."""
    examples, encoder = number_examples(numbers), Encoder.load(str(folder), device=device)
    if scope == "query":
        options = query_options(epochs=3, batch_size=8, encoder_learning_rate=1e-3)
        student = train_student(examples, options, encoder=encoder, device=device, watch=watch)
    else:
        student = train_full(
            examples,
            lambda at: numbers.store.contents(examples.snapshot.rows(at)),
            FullOptions(epochs=3, batch_size=8),
            encoder=encoder,
            watch=watch,
        ).student
    assert student.change is not None
    assert all(parameter.device.type == "cpu" for parameter in student.head.parameters())
    return dict(student.change.tensors)


@pytest.mark.parametrize("scope", ["query", "full"])
@on_two_devices
def test_a_run_with_an_encoder_goes_on_on_another_device(
    numbers: Collection, tiny_folder: Path, tmp_path: Path, scope: str, first: str, then: str
) -> None:
    def watch(cancelled: Callable[[], bool] | None = None, resume: bool = False) -> Watch:
        run = RunFolder(tmp_path / "run", {"of": "this test"}, resume=resume)
        return Watch(keeper=run.stage("train"), observer=StopWhen(cancelled))

    steps = iter(range(100))
    with pytest.raises(Cancelled):
        train_encoder(numbers, tiny_folder, scope, first, watch(lambda: next(steps) == 4))
    found = train_encoder(numbers, tiny_folder, scope, then, watch(resume=True))
    expected = train_encoder(numbers, tiny_folder, scope, "cpu")
    for name, tensor in expected.items():
        assert found[name].device.type == "cpu"
        if not name.endswith("key.bias"):  # it cancels in the softmax: its gradient is rounding alone
            torch.testing.assert_close(found[name], tensor, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("scope", ["head", "query", "full"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_job_trains_and_is_judged_on_a_device(
    tiny_folder: Path, tmp_path: Path, scope: str, device: str
) -> None:
    """As `dsearch train --device cuda`: the encoder of the engine is there, and so is the arithmetic."""
    gains = []
    for number, where in enumerate(["cpu", device][device == "cpu" :]):
        source = partial(Encoder.load, str(tiny_folder), device=where)
        with SearchEngine(tmp_path / str(number), encoder=source) as engine:
            collection = engine.create("numbers")
            collection.ingest(number_documents())
            queries = {f"q{i}": f"question {i + NUMBERS}" for i in range(NUMBERS)}
            judged = {f"q{i}": {f"d{i}": 1.0} for i in range(NUMBERS)}
            job = TrainingJob(queries=queries, judgements=judged, scope=scope, epochs=2)
            learned = run_training(collection, job, device=where)
            version = learned.register(collection, job).version
            gains.append(collection.store.model(version).record["gate"]["slices"][0]["after"])
    assert gains[-1] == pytest.approx(gains[0], abs=0.002)
