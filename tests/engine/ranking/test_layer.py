"""The layer: one backward reaches everything, hops and heads are the formulas, empty sets are zeros."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from support.engine.layers import QUERIES, opened_head
from support.fakes import HashingEncoder
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, SearchLayer, open_layer
from dsearch.errors import DimensionMismatch, InvalidRequest


@pytest.mark.parametrize("heads", [1, 3])
def test_one_backward_reaches_everything(collection: Collection, encoder: HashingEncoder, heads: int) -> None:
    """Context → values, keys, queries, fusion, temperature, both sides of the encoder; the loss falls."""
    documents = HashingEncoder()  # the document side, with weights of its own so that they can be told apart
    layer = SearchLayer(collection.snapshot, opened_head(heads), hops=2)
    texts = {
        p: d.content
        for p, d in enumerate(
            collection.store.documents(collection.snapshot.rows(collection.snapshot.visible()))
        )
    }

    def embed(positions) -> Tensor:  # type: ignore[no-untyped-def]
        flat = documents.embed([texts[p] for p in positions.ravel().tolist()], "document")
        return flat.reshape(*positions.shape, -1)

    target = torch.nn.functional.normalize(torch.ones(2, 32), dim=-1)

    def loss() -> Float[Tensor, ""]:
        out = layer(encoder.embed(QUERIES, "query"), QUERIES, embed=embed)
        return (out.context - target).square().sum()

    before = loss()
    before.backward()
    head = layer.head
    parts = {
        "values": head.value_delta,
        "keys": head.key_delta,
        "keyword weight": head.keyword_weight,
        "temperature": head.log_temperature,
        "hop strength": head.hop_strength,
        "query encoder": encoder.weight,
        "document encoder": documents.weight,
        **(
            {"queries": head.query_delta}
            if heads == 1
            else {"queries": head.query_in, "mixture": head.mixture_logits}
        ),
    }
    for name, parameter in parts.items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-8, name
    optimizer = torch.optim.Adam([*layer.parameters(), encoder.weight, documents.weight], lr=1e-2)
    states = encoder.embed(QUERIES, "query").detach()
    assert (
        layer(states, QUERIES, embed=embed).covered_mass is None
    )  # of other embeddings than all others have
    assert layer(states, QUERIES).covered_mass is not None
    for _ in range(10):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss() < before


def test_gradients_to_query_states_are_exact(collection: Collection, encoder: HashingEncoder) -> None:
    layer = SearchLayer(collection.snapshot, opened_head(2).double(), hops=2)
    states = encoder.embed(QUERIES, "query").detach().double().requires_grad_()

    def outputs(states: Tensor) -> tuple[Tensor, ...]:
        found = layer(states, QUERIES)
        return found.context, found.weights, found.scores

    assert torch.autograd.gradcheck(outputs, states, atol=1e-5)


def test_a_hop_is_the_formula(collection: Collection, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries(QUERIES))
    layer = SearchLayer(collection.snapshot, Head(32), mode="dense", hops=2, hop_strength=0.7)
    with torch.no_grad():
        every = torch.as_tensor(collection.snapshot.embeddings(collection.snapshot.visible()))
        best = (states @ every.T / 0.05).topk(10, dim=1)
        pooled = torch.einsum("bc,bcd->bd", best.values.softmax(-1), every[best.indices])
        unit = torch.nn.functional.normalize
        refined = unit(unit(states, dim=-1) + 0.7 * unit(pooled, dim=-1), dim=-1)
        found = layer(states)
        expected = (refined @ every.T).sort(dim=1, descending=True).values
    torch.testing.assert_close(found.scores, expected, atol=1e-5, rtol=0)


def test_state_dict_is_the_head_alone(collection: Collection, engine: SearchEngine) -> None:
    layer = SearchLayer(collection.snapshot, Head(32))
    assert {name.removeprefix("head.") for name in layer.state_dict()} == set(Head(32).state_dict())
    assert sum(tensor.numel() for tensor in layer.state_dict().values()) < 4 * 32 * 32
    again = open_layer(engine.home.path, "food")
    again.load_state_dict(layer.state_dict())
    again(torch.zeros(1, 32)).context.sum().backward()


def test_no_documents_give_zeros(engine: SearchEngine) -> None:
    layer = SearchLayer(engine.create("empty").snapshot, opened_head(2), hops=2)
    states = torch.randn(3, 32, requires_grad=True)
    found = layer(states, ["a", "b", "c"])
    assert found.positions.shape == (3, 0)
    assert torch.equal(found.context, torch.zeros(3, 32))
    found.context.sum().backward()
    assert states.grad is not None
    assert torch.isfinite(states.grad).all()


def test_without_texts_it_is_dense(collection: Collection, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries(QUERIES))
    hybrid = SearchLayer(collection.snapshot, Head(32))(states)
    dense = SearchLayer(collection.snapshot, Head(32), mode="dense")(states, QUERIES)
    assert torch.equal(hybrid.scores, dense.scores)


def test_errors(collection: Collection) -> None:
    layer = SearchLayer(collection.snapshot, Head(32))
    with pytest.raises(DimensionMismatch, match=r"use \[batch, 32\]"):
        layer(torch.zeros(1, 31))
    with pytest.raises(InvalidRequest, match="2 texts for 1 query states"):
        layer(torch.zeros(1, 32), ["a", "b"])
    with pytest.raises(InvalidRequest, match="mode='keyword' without texts"):
        SearchLayer(collection.snapshot, Head(32), mode="keyword")(torch.zeros(1, 32))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_same_on_cuda(collection: Collection, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries(QUERIES))
    layer = SearchLayer(collection.snapshot, opened_head())
    here = layer(states, QUERIES)
    there = layer.cuda()(states.cuda(), QUERIES)
    torch.testing.assert_close(there.context.cpu(), here.context, atol=1e-4, rtol=1e-4)
    there.context.sum().backward()
    assert layer.head.key_delta.grad is not None
