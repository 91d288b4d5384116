"""A bias for each document: part of the exact softmax over all, with gradients, and of no version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsearch.engine import Collection, SearchEngine, open_layer
from dsearch.engine.ranking.scores import check_bias, check_finite_bias
from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.training import save_model


@pytest.mark.parametrize("over", ["all", "candidates"])
def test_it_is_added_to_the_scores_of_its_documents(
    engine: SearchEngine, collection: Collection, over: str
) -> None:
    """Against softmax(q K^T / t + b / t) written out, context and gradients."""
    layer = open_layer(engine, "food", mode="dense", over=over, candidates=16)
    states = layer.query_states(["bread and cheese", "honey"]).clone().requires_grad_()
    torch.manual_seed(0)
    layer.bias = torch.nn.Parameter(torch.randn(layer.snapshot.positions))
    assert "bias" in dict(layer.named_parameters())
    found = layer(states)
    (found.context[:, :3].sum() + found.weights[:, 0].sum()).backward()
    embeddings = torch.as_tensor(collection.store.embeddings(collection.store.rows()))
    own_states, bias = states.detach().clone().requires_grad_(), layer.bias.detach().clone().requires_grad_()
    weights = ((own_states @ embeddings.T + bias) / layer.temperature.detach()).softmax(-1)
    torch.testing.assert_close(found.context, weights @ embeddings, rtol=1e-4, atol=1e-5)
    assert found.positions[:, 0].tolist() == weights.argmax(1).tolist()
    ((weights @ embeddings)[:, :3].sum() + weights.max(1).values.sum()).backward()
    torch.testing.assert_close(layer.bias.grad, bias.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states.grad, own_states.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("learns", [False, True])
def test_covered_mass_is_a_share_of_the_softmax_with_it(
    engine: SearchEngine, collection: Collection, learns: bool
) -> None:
    layers = [open_layer(engine, "food", mode="dense", over="candidates", candidates=4)]
    layers.append(open_layer(engine, "food", mode="dense", over="all", candidates=16))
    states = layers[0].query_states(["bread and cheese", "honey"])
    for layer in layers:
        layer.bias = torch.linspace(-1, 1, layer.snapshot.positions)
    with torch.set_grad_enabled(learns):
        few, every = (layer(states) for layer in layers)
    assert few.covered_mass is not None
    shown = layers[0].ranked(states, None)
    assert shown.positions.tolist() == few.positions.tolist()
    torch.testing.assert_close(shown.scores, few.scores.detach(), atol=1e-6, rtol=1e-5)
    for query in range(2):
        weights = dict(zip(every.positions[query].tolist(), every.weights[query].tolist(), strict=True))
        share = sum(weights[at] for at in few.positions[query].tolist())
        assert few.covered_mass[query].item() == pytest.approx(share, abs=1e-5)
        assert share < 0.999


def test_another_length_and_a_version_are_refused(engine: SearchEngine, collection: Collection) -> None:
    layer = open_layer(engine, "food", mode="dense")
    layer.bias = torch.zeros(3)
    with pytest.raises(DimensionMismatch, match=r"a bias of shape \[3\]; use \[16\]"):
        layer(layer.query_states(["bread"]))
    with pytest.raises(InvalidRequest, match="a bias for each document, which no version has"):
        save_model(collection, layer)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ([1.0, 2.0, np.inf, np.nan], "a bias of inf at position 2"),
        ([np.nan, 0.0, np.inf], "a bias of nan at position 0"),
        ([0.0, 0.0, -np.inf], "a bias of -inf at position 2"),
    ],
)
def test_the_first_number_that_is_not_finite_is_named(numbers: list[float], named: str) -> None:
    for bias in (np.array(numbers), torch.tensor(numbers)):
        with pytest.raises(InvalidRequest, match=named):
            check_finite_bias(bias)
        with pytest.raises(DimensionMismatch, match=rf"use \[{len(numbers) + 1}\]"):
            check_bias(bias, len(numbers) + 1)
    check_finite_bias(None)
    check_finite_bias(torch.tensor([1e30, 1e30, -1e4]))
    check_bias(np.zeros(3), 3)
