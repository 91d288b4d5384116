"""A head learns to predict a field: against definitions, where the optimum is known, and through its gate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.training.observers import StopWhen
from support.training.opened_heads import both_ways, opened_head, unit
from support.training.opened_heads import seeded as seeded  # a fixture for every test here

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Cancelled, InvalidRequest
from dsearch.training import Gate, ValueExamples, finetune_values, value_examples
from dsearch.training.gate.gate import judge
from dsearch.training.loop.run_folder import RunFolder
from dsearch.training.options import ValueOptions
from dsearch.training.values import finetune as finetuning
from dsearch.training.values import losses as values
from dsearch.training.values.finetune import unseen_answers
from dsearch.training.values.losses import log_loss, loss_of_values, pooled_values, squared_error
from dsearch.training.values.task import HeldEvidence, ValueData, train_on_values
from dsearch.types import Document

FAST = ValueOptions(epochs=8, learning_rate=3e-2, batch_size=32)


path = both_ways(values)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("with_keywords", [True, False])
def test_pooled_values_are_their_definition(heads: int, with_keywords: bool) -> None:
    head, states, corpus, pooled = opened_head(6, heads), unit(4, 6), unit(9, 6), torch.randn(9, 2).double()
    keyword = torch.rand(4, 9, dtype=torch.float64) if with_keywords else None
    own = torch.tensor([3, -1, 0, 8])
    found = pooled_values(head, states, corpus, pooled, own, keyword=keyword)
    for row in range(4):
        others = [d for d in range(9) if d != own[row]]
        raw = head.queries(states)[row] @ head.keys(corpus[others]).T
        if keyword is not None:
            raw = raw + head.keyword_weight[:, None] * keyword[row, others]
        expected = head.mixture @ ((raw / head.temperature).softmax(-1) @ pooled[others])
        torch.testing.assert_close(found[row], expected)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kind", ["number", "label"])
def test_the_gradient_agrees_with_finite_differences(kind: str) -> None:
    head, corpus = opened_head(6, 2), unit(7, 6)
    pooled = torch.eye(3, dtype=torch.float64)[torch.arange(7) % 3]
    keyword = torch.rand(7, 7, dtype=torch.float64)

    def loss() -> torch.Tensor:
        found = pooled_values(head, corpus, corpus, pooled, torch.arange(7), keyword=keyword)
        return loss_of_values(kind, found, pooled).mean()  # type: ignore[arg-type]

    parameters = [head.key_delta, head.query_in, head.log_temperature, head.keyword_weight]
    gradients = torch.autograd.grad(loss(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            parameter += 1e-5 * direction
            above = loss()
            parameter -= 2e-5 * direction
            below = loss()
            parameter += 1e-5 * direction
        torch.testing.assert_close((gradient * direction).sum(), (above - below) / 2e-5, rtol=1e-5, atol=1e-8)


def test_losses_by_hand() -> None:
    predicted, wanted = torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]])
    assert squared_error(predicted, wanted).tolist() == [2.5]
    shares = torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    right = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    expected = -np.log([0.99 * 0.8 + 0.005, 0.005])  # s = .01, shared among two labels
    np.testing.assert_allclose(log_loss(shares, right).numpy(), expected, rtol=1e-6)


def test_a_document_that_is_alone_pools_nothing() -> None:
    head, corpus = Head(4), torch.eye(4)[:1]
    head.key_delta.requires_grad_()
    found = pooled_values(head, corpus, corpus, torch.ones(1, 1), torch.tensor([0]))
    found.sum().backward()
    assert found.tolist() == [[0.0]]
    assert head.key_delta.grad is not None
    assert head.key_delta.grad.isfinite().all()


def one_informative_direction(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings with ±.5 in their first number, .25 of noise on it, and a good deal of noise beside it."""
    generator = np.random.default_rng(seed)
    sign = generator.choice([-1.0, 1.0], count)
    first = 0.5 * sign + 0.25 * generator.standard_normal(count)
    rest = 0.5 * generator.standard_normal((count, 15))
    embeddings = np.hstack([first[:, None], rest])
    return (embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).astype(np.float32), sign


BAYES = 0.977  # Φ(.5 / .25): nobody can name the sign more often


@pytest.fixture
def signs(engine: SearchEngine) -> Collection:
    embeddings, sign = one_informative_direction(400)
    made = engine.create("signs", dimension=16)
    documents = [
        Document(
            f"d{n}", f"number {n}", value=float(sign[n]), metadata={"side": "left" if s < 0 else "right"}
        )
        for n, s in enumerate(sign)
    ]
    made.upsert(documents, embeddings)
    return made


def test_labels_one_direction_counts_and_the_metric_finds_it(signs: Collection) -> None:
    trained = finetune_values(value_examples(signs, "side"), FAST)
    assert trained.before is not None
    assert trained.after is not None
    assert trained.before["accuracy"] < 0.9
    assert trained.after["accuracy"] > BAYES - 0.03
    head = trained.head
    metric = (torch.eye(16) + head.query_delta[0]).T @ head.key_projection()
    assert metric[0, 0] > 2 * metric.diagonal()[1:].mean()  # at the start both are 1
    assert trained.gate.p_value is not None
    assert trained.gate.p_value < 0.001
    # Search would have changed beyond recognition; the version answers predictions alone.
    assert trained.gate.canary_overlap is not None
    assert trained.gate.canary_overlap < 0.5
    assert trained.gate.passed
    assert trained.record["purpose"] == "predict"


def test_numbers_fall_to_the_least_error(signs: Collection) -> None:
    trained = finetune_values(value_examples(signs, "value"), FAST)
    assert trained.before is not None
    assert trained.after is not None
    assert trained.after["r2"] > trained.before["r2"] + 0.2
    # E[Var(y | x₀)] of this mixture is about .065 of the variance; noise in its neighbours costs a little.
    assert trained.after["r2"] > 0.8
    assert json.loads(json.dumps(trained.record))["values"]["after"]["r2"] == trained.after["r2"]
    assert "r2" in trained.to_text()


TEMPERATURES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.005, 0.001)


def test_without_leaving_itself_out_the_bandwidth_collapses(signs: Collection) -> None:
    """Each its own neighbour: the loss has its optimum, 0, at temperature 0, and nothing is learned."""
    examples = value_examples(signs, "side")
    itself = replace(examples, own=np.full(len(examples), -1))
    half, rest = np.arange(200), np.arange(200, 400)

    def losses(of: ValueExamples) -> list[float]:
        head, evidence = Head(16), HeldEvidence(ValueData(of, keywords=False), half)
        found = []
        for temperature in TEMPERATURES:
            with torch.no_grad():
                head.log_temperature.fill_(np.log(temperature))
                predicted = evidence.predict(head, torch.as_tensor(half))
            found.append(log_loss(predicted, torch.as_tensor(of.wanted[half])).mean().item())
        return found

    def accuracy(of: ValueExamples) -> float:
        data = ValueData(of, keywords=False)
        head = train_on_values(data, FAST, queries=half, evidence=half)
        predicted = HeldEvidence(data, half).served(head, rest)
        return float((predicted.argmax(1) == examples.wanted[rest].argmax(1)).mean())

    fooled, honest = losses(itself), losses(examples)
    assert fooled == sorted(fooled, reverse=True)
    assert fooled[-1] < 0.01
    assert 0 < int(np.argmin(honest)) < len(TEMPERATURES) - 1
    assert accuracy(itself) < accuracy(examples) - 0.03


def test_held_out_documents_are_no_evidence(signs: Collection) -> None:
    """Labels by chance cannot be predicted; were they pooled from each other's fold, they could not either,
    but a document among its own evidence would be: R² near 1.
    """
    examples = value_examples(signs, "side")
    order = np.random.default_rng(1).permutation(len(examples))
    shuffled = replace(examples, values=examples.values[order], wanted=examples.wanted[order])
    trained = finetune_values(shuffled, FAST)
    assert not trained.gate.passed
    assert trained.after is not None
    assert trained.after["accuracy"] < 0.65


def test_the_evidence_of_a_fold_is_all_documents_but_its_own(
    signs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 0 as well, and with it each of them is left out of its own fold alone."""
    examples = value_examples(signs, "side")
    seen: list[set[int]] = []

    class Recorded(HeldEvidence):
        def __init__(self, data: ValueData, evidence: np.ndarray):
            super().__init__(data, evidence)
            seen.append(set(evidence.tolist()))

        def served(self, head: Head, queries: np.ndarray) -> np.ndarray:
            assert not seen[-1] & set(examples.own[queries].tolist())
            return super().served(head, queries)

    monkeypatch.setattr(finetuning, "HeldEvidence", Recorded)
    finetune_values(examples, replace(FAST, epochs=1, folds=3))
    everything = set(range(len(examples.positions)))
    assert sorted(row for evidence in seen for row in everything - evidence) == sorted(everything)


def test_served_predictions_are_those_that_the_gate_saw(signs: Collection) -> None:
    """The served path is the training path: `predict` gives what `HeldEvidence.served` said."""
    examples = value_examples(signs, "value")
    embeddings, _ = one_informative_direction(20, seed=5)
    head = train_on_values(ValueData(examples, keywords=False), FAST)
    version = signs.add_model(head, {"objective": "value"})
    predicted = signs.predict(torch.as_tensor(embeddings), field="value", model=version).predictions
    asked = replace(
        examples,
        states=embeddings,
        wanted=np.zeros((20, 1), np.float32),
        own=np.full(20, -1),
        texts=[],
    )
    served = HeldEvidence(ValueData(asked, keywords=False)).served(head, np.arange(20))
    mean = one_informative_direction(400)[1].mean()
    expected = served[:, 0] * examples.scale[0] + mean
    np.testing.assert_allclose(np.array([one.mean for one in predicted]), expected, atol=1e-4)


def test_keywords_have_a_part_where_they_are_asked_for(collection: Collection) -> None:
    examples = value_examples(collection, "number")
    assert examples.kind == "number"
    data = ValueData(examples, keywords=True)
    head = Head(32)
    dense = HeldEvidence(ValueData(examples, keywords=False)).predict(head, torch.arange(16))
    both = HeldEvidence(data).predict(head, torch.arange(16))
    assert not torch.allclose(dense, both)
    keyword = torch.as_tensor(collection.snapshot.all_keyword_scores(examples.texts))
    states = torch.as_tensor(examples.states)
    expected = pooled_values(
        head, states, states, torch.as_tensor(examples.values), torch.arange(16), keyword=keyword
    )
    torch.testing.assert_close(both, expected)


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_learned_from_is_refused(engine: SearchEngine, collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match=r"the field 'price' is in 0 documents .*; at least 10"):
        value_examples(collection, "price")
    collection.ingest(Document(f"d{i}", text=f"x{i}", metadata={"number": 5, "kind": "a"}) for i in range(16))
    with pytest.raises(InvalidRequest, match="the same 'number'"):
        value_examples(collection, "number")
    with pytest.raises(InvalidRequest, match="the same 'kind'"):
        value_examples(collection, "kind")
    collection.ingest(Document(f"d{i}", text=f"y{i}", metadata={"kind": f"k{i}"}) for i in range(16))
    with pytest.raises(InvalidRequest, match="16 different 'kind' in 16 documents"):
        value_examples(collection, "kind")
    collection.ingest([Document("d0", text="z", metadata={"kind": 3})])
    with pytest.raises(InvalidRequest, match="make it of one kind"):
        value_examples(collection, "kind")
    for wrong in ({"epochs": 0}, {"learning_rate": 1.0}, {"folds": 1}, {"retention": -1.0}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            ValueOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_a_number_that_is_the_same_everywhere_tells_nothing_apart(collection: Collection) -> None:
    """Of 3.7 twelve times the mean is not 3.7, and the deviation not 0."""
    price = {"price": 3.7}
    collection.ingest(Document(f"d{i}", f"x{i}", metadata=price, value=[i, 3.7]) for i in range(12))
    with pytest.raises(InvalidRequest, match="every document has the same 'price'"):
        value_examples(collection, "price")
    sizes = value_examples(collection, "value")
    np.testing.assert_allclose(sizes.scale, [np.std(range(12)), 1.0], rtol=1e-6)  # each number has its own
    np.testing.assert_allclose(sizes.values[:, 1], 0.0, atol=1e-6)


def test_retention_keeps_search_and_a_passed_gate_promotes(signs: Collection) -> None:
    kept = finetune_values(value_examples(signs, "side"), replace(FAST, learning_rate=2e-3, retention=1.0))
    assert kept.gate.canary_overlap is not None
    assert kept.gate.canary_overlap > 0.5
    assert kept.gate.passed, kept.gate.to_text()


def test_a_run_goes_on_to_the_same_head(signs: Collection, tmp_path: Path) -> None:
    examples, options = value_examples(signs, "side"), replace(FAST, epochs=4)
    whole = finetune_values(examples, options)
    steps = iter(range(1000))
    with pytest.raises(Cancelled):
        finetune_values(
            examples,
            options,
            run=RunFolder(tmp_path / "run", {}),
            observer=StopWhen(lambda: next(steps) > 30),
        )
    resumed = finetune_values(examples, options, run=RunFolder(tmp_path / "run", {}, resume=True))
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(tensor, resumed.head.state_dict()[name])
    assert resumed.record["gate"] == whole.record["gate"]


def test_null_labels_pass_the_gate_no_more_often_than_alpha() -> None:
    """Differences by chance alone, judged as values are: one-sided, two hundred times."""
    generator, passed = np.random.default_rng(0), 0
    for trial in range(200):
        before = generator.normal(size=80)
        report = judge(
            unseen_answers(before),
            unseen_answers(before + generator.normal(0, 0.1, 80)),
            Gate(),
            samples=500,
            seed=trial,
        )
        passed += report.passed
    assert passed <= 20  # 10 expected; above 20 has a probability of .001
