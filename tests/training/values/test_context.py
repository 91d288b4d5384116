"""Objectives on the pooled context: W_V and W_O learn, and what they learn is saved, served and judged."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, GradientQuery, SearchEngine, attention_parts
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training.options import ValueOptions
from dsearch.training.run import run_training
from dsearch.training.values.context import CONTRAST_TEMPERATURE, contrastive_loss, start_output
from dsearch.training.values.examples import value_examples
from dsearch.training.values.finetune import _in_own_units, finetune_values
from dsearch.training.values.task import ValueData, train_on_values
from dsearch.types import Document

DIMENSION, COUNT = 12, 240
FAST = ValueOptions(epochs=4, values="learned", learning_rate=3e-3)


@pytest.fixture
def plane(engine: SearchEngine) -> Collection:
    """A number that is linear in the embedding, which single neighbours show badly, and its sign."""
    generator = np.random.default_rng(0)
    states = generator.standard_normal((COUNT, DIMENSION))
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    numbers = 50 + 10 * states @ generator.standard_normal(DIMENSION)
    made = engine.create("plane", dimension=DIMENSION)
    documents = [
        Document(
            f"d{n}",
            f"row {n}",
            metadata={"number": float(y), "side": "high" if y > 50 else "low"},
            value=[float(x) for x in states[n, ::-1]],
        )
        for n, y in enumerate(numbers)
    ]
    made.upsert(documents, states.astype(np.float32))
    return made


@pytest.mark.parametrize(("count", "noise"), [(30, 0.5), (8, 2.0)])  # of few rows the mean counts too
def test_the_start_is_ridge_regression_and_its_penalty_is_of_left_out_rows(count: int, noise: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    y = x @ torch.randn(5, 2, generator=generator, dtype=torch.float64) + 3
    y = y + noise * torch.randn(y.shape, generator=generator, dtype=torch.float64)

    def ridge(rows: torch.Tensor, penalty: float) -> tuple[torch.Tensor, torch.Tensor]:
        centre, middle = x[rows].mean(0), y[rows].mean(0)
        a = x[rows] - centre
        weight = torch.linalg.solve(a.T @ a + penalty * torch.eye(5), a.T @ (y[rows] - middle)).T
        return weight, middle - weight @ centre

    def left_out_error(penalty: float) -> float:
        errors = list[float]()
        for row in range(count):
            weight, bias = ridge(torch.arange(count) != row, penalty)
            errors.append((y[row] - weight @ x[row] - bias).square().mean().item())
        return float(np.mean(errors))

    best = min((10.0**power for power in range(-4, 4)), key=left_out_error)
    output = torch.nn.Linear(5, 2).double()
    start_output(output, x, y, labels=False)
    weight, bias = ridge(torch.ones(count, dtype=torch.bool), best)
    torch.testing.assert_close(output.weight, weight, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(output.bias, bias, atol=1e-9, rtol=1e-6)


@pytest.mark.usefixtures("unchecked")  # the examples are a stand-in
def test_what_is_learned_of_standard_numbers_is_told_in_the_units_of_the_field() -> None:
    torch.manual_seed(0)
    head, contexts = Head(4), torch.randn(3, 4)
    torch.nn.init.ones_(head.open_output(2).bias)
    standard = head.outputs(contexts).detach()
    scale, centre = np.array([2.0, 10.0], np.float32), np.array([50.0, -7.0], np.float32)
    examples: Any = SimpleNamespace(kind="number", scale=scale, centre=centre)
    _in_own_units(head, examples)
    torch.testing.assert_close(head.outputs(contexts), standard * torch.tensor(scale) + torch.tensor(centre))


def test_the_contrastive_loss_by_hand() -> None:
    predicted = torch.tensor([[1.0, 0.9, 0.0], [0.8, 1.0, 0.0], [2.0, 3.0, 0.0]])
    wanted = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])  # the last two are equal
    expected = list[float]()
    for row, own in zip(predicted.tolist(), ([0], [1, 2], [1, 2]), strict=True):
        cosines = [row[at] / math.hypot(*row) for at in (0, 1, 1)]
        powers = [math.exp(cosine / CONTRAST_TEMPERATURE) for cosine in cosines]
        expected.append(-math.log(sum(powers[at] for at in own) / sum(powers)))
    assert min(expected) > 1e-3
    torch.testing.assert_close(contrastive_loss(predicted, wanted), torch.tensor(expected))


def test_learned_values_beat_stored_ones_and_are_served_as_judged(plane: Collection, tmp_path: Path) -> None:
    job = TrainingJob(objective="context", field="number", epochs=4, learning_rate=3e-3)
    done = run_training(plane, job)
    trained = done.result
    assert trained.before is not None  # type: ignore[union-attr]
    assert trained.after["r2"] > trained.before["r2"] + 0.05  # type: ignore[union-attr]
    registered = done.register(plane, job)
    assert registered.live == "v1", trained.gate.to_text()
    assert trained.head.value_delta.abs().sum() > 0  # W_V has learned
    record = plane.store.model("v1").record
    assert (record["format"], record["purpose"]) == (12, "predict")
    assert record["readout"] == {"field": "number", "kind": "number", "labels": None}

    head, snapshot = plane.head("v1"), plane.snapshot
    states = torch.as_tensor(snapshot.embeddings(np.arange(3)))
    with torch.no_grad():
        keys = torch.as_tensor(snapshot.embeddings(np.arange(COUNT)))
        logits = head.queries(states)[:, 0] @ head.keys(keys).T / head.temperature
        values = (keys + keys @ head.value_delta.T) @ head.output.weight.T + head.output.bias  # type: ignore[union-attr]
        mean = logits.softmax(-1) @ values
        spread = (logits.softmax(-1) @ (values - 50).square() - (mean - 50).square()).sqrt()
    for over in ("all", "candidates"):
        answer = plane.predict(states, field="number", over=over, candidates=COUNT, mode="dense")
        assert answer.stamp.model == "v1"
        for query, one in enumerate(answer.predictions):
            assert (one.kind, one.values, one.without_field) == ("number", "learned", 0)
            assert one.mean == pytest.approx(mean[query].item(), abs=1e-3)
            assert one.spread == pytest.approx(spread[query].item(), abs=1e-2)
    found = plane.attend(states, purpose="predict", over="all", mode="dense").output
    assert found.output is not None
    torch.testing.assert_close(found.output, mean, atol=1e-3, rtol=1e-4)
    parts = attention_parts(plane, GradientQuery(states=states, purpose="predict"))
    assert parts.output is not None
    assert parts.output.shape == (3, 1)
    assert plane.predict(states, field="side").predictions[0].values == "stored"  # another field
    assert plane.search("row 3", mode="keyword").stamp.model == "v0"
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        again = other.collection("plane").predict(states, field="number", over="all", mode="dense")
        assert again.predictions[0].mean == pytest.approx(mean[0].item(), abs=1e-3)


def test_labels_are_the_softmax_of_pooled_values(plane: Collection) -> None:
    job = TrainingJob(objective="context", field="side", epochs=2, accept=True)
    run_training(plane, job).register(plane, job)
    states = torch.as_tensor(plane.snapshot.embeddings(np.arange(40)))
    truth = plane.store.field_values(plane.snapshot.rows(np.arange(40)), "side")
    right = 0
    answers = plane.predict(states, field="side", over="all", mode="dense").predictions
    logits = plane.attend(states, purpose="predict", over="all", mode="dense").output.output
    assert logits is not None
    for one, row, label in zip(answers, logits.softmax(-1).tolist(), truth, strict=True):
        assert (one.kind, one.mean) == ("label", None)
        assert one.labels is not None
        assert [one.labels["high"], one.labels["low"]] == pytest.approx(row, abs=1e-5)
        right += max(one.labels, key=lambda name: one.labels[name]) == label  # type: ignore[index]
    assert right >= 34


def test_a_vector_is_told_from_those_of_others(plane: Collection) -> None:
    options = ValueOptions(epochs=2, values="learned", contrastive=True, learning_rate=3e-3)
    trained = finetune_values(value_examples(plane, "value"), options)
    assert trained.gate.measure == "log share of the right vector"
    assert trained.gate.slice("all").queries == COUNT
    assert trained.record["readout"]["kind"] == "vector"
    head = train_on_values(ValueData(value_examples(plane, "value"), keywords=False), options)
    assert head.value_delta.abs().sum() > 0
    with pytest.raises(InvalidRequest, match="objective contrastive with 'number', a number; give a field"):
        finetune_values(value_examples(plane, "number"), options)
    with pytest.raises(InvalidRequest, match="contrastive=True with values='stored'"):
        ValueOptions(contrastive=True)
    with pytest.raises(InvalidRequest, match="context or contrastive and the field it predicts belong"):
        TrainingJob(objective="context").check()
