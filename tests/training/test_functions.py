"""A function scores examples by a layer, which is afterwards as it was before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine import Collection, EncodedDocuments, SearchLayer
from dsearch.errors import InvalidRequest
from dsearch.training.saving import scores_by, scores_over


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_is_scored_as_it_is_used_and_left_as_it_was(training: bool) -> None:
    layer = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1)).train(training)
    modes: list[tuple[bool, bool]] = []

    def score(given: torch.nn.Module) -> list[float]:
        assert given is layer
        modes.append((given.training, torch.is_grad_enabled()))
        return [0.5, 1]

    assert scores_by(score, layer) == [0.5, 1.0]
    assert modes == [(False, False)]
    assert layer.training is training
    assert layer[0].training is training


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_whose_function_fails_is_left_as_it_was(training: bool) -> None:
    layer = torch.nn.Linear(2, 1).train(training)

    def score(_: Any) -> list[float]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scores_by(score, layer)
    assert layer.training is training


@pytest.mark.parametrize(
    ("score", "shape"),
    [(lambda _: [[1.0]], r"\[1, 1\]"), (lambda _: torch.tensor(1.0), r"\[\]")],
)
def test_there_is_one_number_for_each_example(score: Callable[[Any], Any], shape: str) -> None:
    with pytest.raises(InvalidRequest, match=f"scores of shape {shape}; give one number for each held-out"):
        scores_by(score, torch.nn.Linear(2, 1))


def test_scores_may_be_tensors_of_any_kind_that_are_part_of_a_graph() -> None:
    scores = torch.ones(2, dtype=torch.bfloat16, requires_grad=True) * 2
    assert scores_by(lambda _: scores, torch.nn.Linear(2, 1)) == [2.0, 2.0]
    assert scores_by(lambda _: [], torch.nn.Linear(2, 1)) == []


def test_a_layer_is_scored_over_the_documents_that_it_would_be_served_with(collection: Collection) -> None:
    """Each document has the embedding of its neighbour; the layer itself stays over those of now."""
    snapshot = collection.snapshot
    layer = SearchLayer(snapshot, collection.head("v0"))
    every = snapshot.visible()
    stored = snapshot.embeddings(every)
    documents = EncodedDocuments(snapshot, np.roll(stored, 1, axis=0))

    def first(given: SearchLayer) -> list[float]:
        found = given.ranked(torch.as_tensor(stored), [""] * len(stored)).positions[:, :1]
        return [float(id[1:]) for [id] in collection.ids_at(given.snapshot, found)]

    ids = scores_by(first, layer)
    assert ids == [float(id[1:]) for id in collection.ids_at(snapshot, every[None])[0]]
    encoder = collection.encoder.identity
    assert scores_over(collection, layer, encoder, documents, first) == np.roll(ids, -1).tolist()
    assert layer.snapshot is snapshot
