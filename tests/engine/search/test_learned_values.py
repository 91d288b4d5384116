"""Values that a version learned: read from its record, computed for positions, and labels as shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.engine.search import predict as module
from dsearch.engine.search.predict import LearnedValues
from dsearch.results import Evidence, FieldPrediction


def opened(width: int) -> Head:
    head = Head(32)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(width)
        head.open_output(width)
        head.value_delta += 0.1 * torch.randn(32, 32)
    return head.eval()


def outputs(collection: Collection, head: Head, positions: np.ndarray) -> np.ndarray:
    embeddings = torch.as_tensor(collection.snapshot.embeddings(positions))
    with torch.no_grad():
        return (head.values(embeddings) @ head.output.weight.T + head.output.bias).numpy()  # type: ignore[union-attr]


@pytest.mark.parametrize("block", [1, 3, 100])
def test_values_of_documents_and_none_where_there_is_none(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(module, "_AT_A_TIME", block)
    positions = np.array([4, -1, 0, 7, -1])
    at = positions >= 0
    with torch.no_grad():
        single = LearnedValues(opened(1), "number", ()).at(collection.snapshot, positions)
        vectors = LearnedValues(opened(3), "vector", ()).at(collection.snapshot, positions)
    assert [value is None for value in single] == [value is None for value in vectors] == (~at).tolist()
    expected = outputs(collection, opened(1), positions[at])[:, 0].tolist()
    assert [value for value in single if value is not None] == pytest.approx(expected, abs=1e-5)
    of_three = outputs(collection, opened(3), positions[at])
    np.testing.assert_allclose([value for value in vectors if value is not None], of_three, atol=1e-5)


def test_a_version_has_values_of_the_field_that_it_learned(collection: Collection) -> None:
    readout = {"readout": {"field": "price", "kind": "label", "labels": ["low", "high"]}}
    version = collection.add_model(opened(2), readout)
    bare = collection.add_model(Head(32), {"readout": {"field": "price", "kind": "number"}})
    _, stamp = collection.layer_and_stamp()

    def learned(named: str, field: str) -> LearnedValues | None:
        return LearnedValues.of(collection, replace(stamp, model=named), collection.head(named), field)

    found = learned(version, "price")
    assert found is not None
    assert (found.kind, list(found.labels)) == ("label", ["low", "high"])
    assert learned(version, "year") is None
    assert learned(bare, "price") is None  # without an output projection
    assert learned("v0", "price") is None
    number = collection.add_model(opened(1), {"readout": {"field": "price", "kind": "number"}})
    of_number = learned(number, "price")
    assert of_number is not None
    assert (of_number.kind, of_number.labels) == ("number", ())


def prediction(mean: Any, kind: Any, evidence: list[Evidence]) -> FieldPrediction:
    return FieldPrediction(kind, mean, 0.5, None, evidence, candidates=9, without_field=4, covered_mass=0.75)


def test_labels_are_the_softmax_of_the_pooled_values_largest_first() -> None:
    evidence = [Evidence("a", 0.6, [3.0, 1.0, 2.0]), Evidence("b", 0.4, [0.0, 5.0, 1.0])]
    values = LearnedValues(Head(4), "label", ["low", True, "high"])
    marked = values.marked(prediction([1.0, 3.0, 2.0], "vector", evidence))
    expected = np.exp([3.0, 2.0, 1.0]) / np.exp([3.0, 2.0, 1.0]).sum()
    assert marked.labels is not None
    assert list(marked.labels) == [True, "high", "low"]
    assert list(marked.labels.values()) == pytest.approx(expected.tolist())
    assert [(row.id, row.weight, row.value) for row in marked.evidence] == [
        ("a", 0.6, "low"),
        ("b", 0.4, True),
    ]
    assert (marked.kind, marked.mean, marked.spread) == ("label", None, None)
    assert (marked.values, marked.without_field, marked.candidates) == ("learned", 0, 9)
    assert marked.covered_mass == 0.75


def test_large_values_of_labels_do_not_overflow() -> None:
    marked = LearnedValues(Head(4), "label", ["low", "high"]).marked(
        prediction([900.0, 1000.0], "vector", [])
    )
    assert marked.labels == {"high": pytest.approx(1.0), "low": pytest.approx(0.0)}


@pytest.mark.parametrize(("kind", "mean"), [("number", 2.0), ("vector", [1.0, 2.0]), ("label", None)])
def test_numbers_and_vectors_are_only_marked(kind: str, mean: Any) -> None:
    """A label without any candidate has no mean either."""
    before = prediction(mean, None if mean is None else kind, [])
    after = LearnedValues(Head(4), kind, ["low", "high"]).marked(before)
    assert after == replace(before, values="learned", without_field=0)
