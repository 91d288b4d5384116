"""The layer inside other networks: values, precision, compilation, copies; and its behaviour at the edges."""

from __future__ import annotations

import ast
import copy
import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engine.layers import QUERIES, opened_head
from support.engine.reference import many_documents
from support.fakes import HashingEncoder
from support.sizes import by_size
from support.warm.processes import run_warm
from torch import Tensor

import dsearch
from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.errors import DimensionMismatch
from dsearch.types import Document

PICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def states_of(encoder: HashingEncoder, texts: list[str] = QUERIES) -> Tensor:
    return torch.as_tensor(encoder.encode_queries(texts))


# ---- values


def test_values_are_pooled_by_the_weights_and_get_gradients(
    collection: Collection, encoder: HashingEncoder
) -> None:
    collection.upsert([Document(id="fresh", text="cheese and honey")])
    collection.delete(["d2"])
    layer = SearchLayer(collection.snapshot, opened_head(2))
    values = torch.randn(collection.snapshot.positions, 5)
    values[2] = torch.nan  # of a document that is gone
    values.requires_grad_()
    found = layer(states_of(encoder), QUERIES, values=values)
    expected = sum(
        found.weights[:, [c]] * values[found.positions[:, c]] for c in range(found.positions.shape[1])
    )
    torch.testing.assert_close(found.context, expected)
    (gradient,) = torch.autograd.grad(found.context.sum(), values, retain_graph=True)
    weights = torch.zeros(2, len(values)).scatter(1, torch.as_tensor(found.positions), found.weights)
    torch.testing.assert_close(gradient, weights.sum(0)[:, None].expand(-1, 5))
    assert gradient[2].abs().max() == 0
    found.context.square().sum().backward()
    assert layer.head.key_delta.grad is not None
    assert layer.head.key_delta.grad.abs().max() > 0
    assert layer.head.value_delta.grad is None, "W_V projects embeddings, and none were pooled"


def test_padding_contributes_nothing(engine: SearchEngine, encoder: HashingEncoder) -> None:
    """A query that finds fewer documents than another has −1 at the end of its row."""
    collection = engine.create("many")
    collection.ingest(many_documents(150))
    layer = SearchLayer(collection.snapshot, Head(32), mode="keyword", candidates=20)
    texts = ["word1 word2", "nothing known"]
    values = torch.full((150, 2), torch.inf)
    values[np.unique(layer(states_of(encoder, texts), texts).positions[0])] = 1.0
    values[0] = torch.inf  # what −1 or a clamped index would read
    found = layer(states_of(encoder, texts), texts, values=values)
    assert (found.positions[1] == -1).all()
    assert torch.equal(found.context[1], torch.zeros(2))


def test_values_that_are_the_documents_values_change_nothing(
    collection: Collection, encoder: HashingEncoder
) -> None:
    layer = SearchLayer(collection.snapshot, opened_head())
    every = torch.as_tensor(collection.snapshot.embeddings(np.arange(collection.snapshot.positions)))
    given_values = layer(states_of(encoder), QUERIES, values=layer.head.values(every))
    torch.testing.assert_close(given_values.context, layer(states_of(encoder), QUERIES).context)


def test_gradients_through_values_are_exact(collection: Collection, encoder: HashingEncoder) -> None:
    layer = SearchLayer(collection.snapshot, opened_head(2).double())
    states = states_of(encoder).double()
    values = torch.randn(16, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: layer(states, QUERIES, values=v).context, values)


def test_values_of_another_shape_are_refused(collection: Collection, encoder: HashingEncoder) -> None:
    layer = SearchLayer(collection.snapshot, Head(32))
    with pytest.raises(DimensionMismatch, match=r"values of shape \[15, 2\]; use \[16, value_dim\]"):
        layer(states_of(encoder), values=torch.ones(15, 2))


# ---- precision


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("score", ["dot", "cosine", "gaussian"])
def test_single_equals_double(
    collection: Collection, encoder: HashingEncoder, heads: int, score: str
) -> None:
    single = SearchLayer(collection.snapshot, opened_head(heads), hops=2, score=score)
    double = copy.deepcopy(single).double()
    states = states_of(encoder)
    one, two = single(states, QUERIES), double(states.double(), QUERIES)
    assert (one.positions == two.positions).all()
    for a, b in ((one.context, two.context), (one.weights, two.weights), (one.scores, two.scores)):
        assert b.dtype == torch.float64
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    one.context.square().sum().backward()
    two.context.square().sum().backward()
    for (name, a), b in zip(single.named_parameters(), double.parameters(), strict=True):
        if b.grad is not None:
            assert a.grad is not None
            torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_autocast_does_not_round_the_search(collection: Collection, encoder: HashingEncoder) -> None:
    layer = SearchLayer(collection.snapshot, opened_head(2), hops=2)
    network = torch.nn.Linear(32, 32)
    states = states_of(encoder)
    plain = layer(network(states), QUERIES)
    with torch.autocast("cpu", torch.bfloat16):
        given_states = network(states)
        assert given_states.dtype == torch.bfloat16
        cast = layer(given_states, QUERIES)
    same = layer(given_states.float(), QUERIES)
    assert cast.scores.dtype == torch.float32
    assert torch.equal(cast.scores, same.scores)
    assert torch.isfinite(cast.context).all()
    torch.testing.assert_close(cast.context, plain.context, atol=0.05, rtol=0.05)
    cast.context.square().sum().backward()
    assert network.weight.grad is not None
    assert torch.isfinite(network.weight.grad).all()
    assert network.weight.grad.abs().max() > 0


def test_under_autocast_an_encoder_in_the_graph_keeps_its_precision(
    collection: Collection, encoder: HashingEncoder
) -> None:
    layer = SearchLayer(collection.snapshot, Head(32))
    seen = []

    def embed(positions: np.ndarray) -> Tensor:
        stored = torch.as_tensor(collection.snapshot.embeddings(positions))
        seen.append((stored @ torch.eye(32)).dtype)
        return stored

    states = states_of(encoder)
    with torch.autocast("cpu", torch.bfloat16):
        layer(states, QUERIES, embed=embed)
    assert seen == [torch.bfloat16]


# ---- compiled, copied, never pickled


def test_compiled_equals_eager(collection: Collection, engine: SearchEngine) -> None:
    """In a process of its own: the checks of shapes that this suite adds cannot be traced."""
    code = """
import sys, torch
from dsearch.engine import SearchLayer, open_layer
from dsearch.attention.retrieval.head import Head

torch.manual_seed(0)
for heads, score in ((1, "dot"), (2, "gaussian")):
    layer = SearchLayer(open_layer(sys.argv[1], "food").snapshot, Head(32, heads=heads, rank=4),
                        candidates=5, hops=2, hop_strength=0.5, score=score)
    network = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
    labels = torch.randn(16, 3, requires_grad=True)
    texts = ["cheese and bread", "lemon honey tea"]

    def loss(states):
        out = layer(network(states), texts[: len(states)], values=labels)
        return (torch.relu(out.context) + out.context.square()).sum() + out.weights.square().sum()

    compiled = torch.compile(loss, backend="aot_eager")
    for batch in (2, 1):
        states = torch.randn(batch, 32)
        wanted = [*network.parameters(), labels, layer.head.key_delta, layer.head.keyword_weight]
        one, two = loss(states), compiled(states)
        torch.testing.assert_close(one, two)
        for a, b in zip(torch.autograd.grad(one, wanted), torch.autograd.grad(two, wanted), strict=True):
            torch.testing.assert_close(a, b)
    whole = torch.compile(layer, backend="aot_eager")
    assert (whole(states, texts[:1]).positions == layer(states, texts[:1]).positions).all()
"""
    done = run_warm([sys.executable, "-c", code, engine.home.path])
    assert done.returncode == 0, done.stderr[-2000:]


def test_it_moves(collection: Collection, encoder: HashingEncoder) -> None:
    layer = SearchLayer(collection.snapshot, opened_head()).to(torch.float64)
    found = layer(states_of(encoder).double(), QUERIES, values=torch.ones(16, 1))
    assert found.context.dtype == torch.float64
    assert found.context[0].item() == pytest.approx(1, abs=1e-12)


def test_documents_are_never_pickled(collection: Collection) -> None:
    layer = SearchLayer(collection.snapshot, Head(32))
    for write in (pickle.dumps, lambda whole: torch.save(whole, io.BytesIO())):
        with pytest.raises(TypeError, match=r"not pickled: keep layer.state_dict\(\)"):
            write(layer)


def test_nothing_of_ours_pickles() -> None:
    """Neither reads nor writes: a pickle is a program, and a collection may come from anywhere.

    processes.py is no exception to that: what it unpickles comes from a process that it has started itself.
    """
    package = Path(dsearch.__file__).parent
    sources = [*package.rglob("*.py"), *(package.parent / "scripts").glob("*.py")]
    assert len(sources) > 50
    sources.remove(package / "processes.py")
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                assert not {name.name.split(".")[0] for name in node.names} & PICKLERS, source
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in PICKLERS, source
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "save"), ("torch", "load")}, source
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), source
                assert node.value.value is False, source


# ---- edges


def test_k_above_the_number_of_documents(collection: Collection, encoder: HashingEncoder) -> None:
    exact = SearchLayer(collection.snapshot, opened_head(2), candidates=16)(states_of(encoder), QUERIES)
    more = SearchLayer(collection.snapshot, opened_head(2), candidates=10_000)(states_of(encoder), QUERIES)
    for a, b in zip(exact, more, strict=True):
        if a is None:  # no passages, no keys to tell apart
            assert b is None
            continue
        assert np.array_equal(
            np.asarray(a if isinstance(a, np.ndarray) else a.detach()),
            np.asarray(b if isinstance(b, np.ndarray) else b.detach()),
        )
    assert more.positions.shape == (2, 16)


@pytest.mark.parametrize("candidates", [7, 100])
def test_duplicates_share_their_weight(
    engine: SearchEngine, documents: list[Document], encoder: HashingEncoder, candidates: int
) -> None:
    """Equal documents weigh the same up to rounding, and c copies together as one with log c added."""
    collection = engine.create("twice")
    twins = [Document(id=f"twin{i}", title=documents[1].title, text=documents[1].text) for i in range(3)]
    collection.ingest([*documents, *twins])
    states = states_of(encoder, [documents[1].content])
    found = SearchLayer(collection.snapshot, Head(32), mode="dense", candidates=candidates)(states)
    assert sorted(found.positions[0, :4].tolist()) == [1, 16, 17, 18]
    torch.testing.assert_close(found.weights[0, :4], found.weights[0, [0]].expand(4), rtol=1e-5, atol=0)
    single = engine.create("once")
    single.ingest(documents)
    once = SearchLayer(single.snapshot, Head(32), mode="dense", candidates=100)(states)
    if candidates == 100:
        odds = once.weights[0, 0] / (1 - once.weights[0, 0])
        share = found.weights[0, :4].sum()
        assert (share / (1 - share)).item() == pytest.approx(4 * odds.item(), rel=1e-3)


@settings(max_examples=by_size(15, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heads=st.integers(1, 3),
    hops=st.integers(1, 2),
    candidates=st.sampled_from([1, 3, 16, 50]),
    mode=st.sampled_from(["dense", "hybrid", "keyword"]),
    pooling=st.sampled_from(["soft", "hard", "uniform", "exp", "relu", "sigmoid"]),
    batch=st.integers(0, 3),
)
def test_what_always_holds(
    collection: Collection,
    encoder: HashingEncoder,
    heads: int,
    hops: int,
    candidates: int,
    mode: str,
    pooling: str,
    batch: int,
) -> None:
    texts = ["cheese and bread", "nothing known", "lemon"][:batch]
    layer = SearchLayer(
        collection.snapshot, opened_head(heads), mode=mode, hops=hops, candidates=candidates, pooling=pooling
    )
    values = torch.rand(16, 2)
    found = layer(states_of(encoder, texts), texts, values=values)
    there = torch.as_tensor(found.positions >= 0)
    assert found.weights.shape == found.positions.shape
    assert (found.weights >= 0).all()
    assert (found.weights[~there] == 0).all()
    sums_to_one = pooling in ("soft", "hard", "uniform")
    if sums_to_one:
        torch.testing.assert_close(found.weights.sum(1), there.any(1).float())
    for row in found.positions:
        assert len(set(row[row >= 0])) == (row >= 0).sum(), "each document once"
        assert (row[: (row >= 0).sum()] >= 0).all(), "padding last"
    assert (found.scores[:, :-1] >= found.scores[:, 1:]).all()
    inside = there.any(1)
    if sums_to_one:
        assert (found.context[inside] <= values.max(0).values + 1e-6).all(), "in the hull of the values"
        assert (found.context[inside] >= values.min(0).values - 1e-6).all()
    assert (found.context >= 0).all(), "in the cone of the values"
    assert (found.context[~inside] == 0).all()
    for query in range(batch):
        alone = layer(states_of(encoder, texts[query : query + 1]), texts[query : query + 1], values=values)
        torch.testing.assert_close(found.context[query], alone.context[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_of_half_precision_are_searched_in_single(collection: Collection, dtype: torch.dtype) -> None:
    layer = SearchLayer(collection.snapshot, Head(32), mode="dense")
    states = torch.nn.functional.normalize(torch.randn(2, 32), dim=-1).to(dtype)
    half, single = layer(states), layer(states.float())
    assert half.scores.dtype == torch.float32
    assert half.positions.tolist() == single.positions.tolist()
    assert torch.equal(half.scores, single.scores)
