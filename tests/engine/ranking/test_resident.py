"""Embeddings resident on the layer's device: the results of the host's, without index or host gathers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine, open_layer
from dsearch.engine.indexing.chunking import PassageOptions
from dsearch.engine.ranking.resident import ResidentEmbeddings
from dsearch.engine.snapshot import Snapshot
from dsearch.errors import Conflict, InvalidRequest
from dsearch.types import Document

WORDS = ("apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey", "ice")
QUERIES = ["apple bread", "cheese", "old honey"]


def documents(count: int) -> list[Document]:
    return [
        Document(f"d{n}", f"{WORDS[n % 9]} {WORDS[n % 4]} number{n}", metadata={"n": n % 3})
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """Built, newer and deleted documents; and a collection where nothing is hidden."""
    with SearchEngine(tmp_path_factory.mktemp("resident") / "home", encoder=HashingEncoder) as opened:
        collection = opened.create("food")
        collection.ingest(documents(120))
        collection.upsert(documents(130)[120:])
        collection.delete(["d3", "d60", "d125"])
        opened.create("whole").ingest(documents(90))
        draw = random.Random(3)
        long = opened.create("long", passages=PassageOptions(tokens=16, overlap=4))
        texts = [
            " ".join(draw.choice(WORDS) for _ in range(50 if n % 3 == 0 else 4)) + f" number{n}"
            for n in range(150)
        ]
        long.ingest([Document(f"d{n}", text) for n, text in enumerate(texts[:140])])
        long.upsert([Document(f"d{n}", text) for n, text in enumerate(texts[140:], start=140)])
        long.delete(["d6", "d7", "d141"])
        unhidden = opened.create("long-and-whole", passages=PassageOptions(tokens=16, overlap=4))
        unhidden.ingest([Document(f"d{n}", text) for n, text in enumerate(texts)])
        yield opened


def test_a_layer_over_another_state_has_the_embeddings_of_that_one(engine: SearchEngine) -> None:
    collection = engine.create("moved")
    collection.ingest(documents(30))
    layers = [open_layer(engine, "moved", candidates=12, resident=one) for one in ("float32", None)]
    collection.upsert([Document("d31", "apple bread apple bread"), Document("d2", "cheese alone")])
    of_before = [layer(layer.query_states(QUERIES), QUERIES) for layer in layers]
    moved = [layer.with_documents(collection.snapshot) for layer in layers]
    resident, host = [layer(layer.query_states(QUERIES), QUERIES) for layer in moved]
    assert resident.ids == host.ids != of_before[0].ids
    torch.testing.assert_close(resident.weights, host.weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(resident.context, host.context, rtol=1e-5, atol=1e-6)
    again = layers[0](layers[0].query_states(QUERIES), QUERIES)  # which stays where it was
    torch.testing.assert_close(again.weights, of_before[0].weights)


@pytest.mark.parametrize("name", ["food", "whole", "long"])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "dense"},
        {"mode": "hybrid"},
        {"mode": "hybrid", "hops": 2, "hop_strength": 0.5},
        {"mode": "dense", "score": "gaussian", "width": 0.5},
        {"mode": "hybrid", "over": "all"},
        {"mode": "dense", "over": "all", "pooling": "uniform"},
    ],
)
def test_results_and_gradients_are_those_of_the_host(engine: SearchEngine, name: str, options: Any) -> None:
    outputs, gradients = [], []
    for resident in (None, "float32"):
        layer = open_layer(engine, name, candidates=12, resident=resident, **options)
        states = layer.query_states(QUERIES).clone().requires_grad_()
        output = layer(states, QUERIES)
        (output.context.square().sum() + output.weights[:, 0].sum()).backward()
        outputs.append(output)
        gradients.append((states.grad, layer.head.key_delta.grad, layer.head.log_temperature.grad))
    host, own = outputs
    assert own.ids == host.ids
    torch.testing.assert_close(own.weights, host.weights, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.context, host.context, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(*gradients[::-1], strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_neither_index_nor_host_embeddings_are_read(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = open_layer(engine, "food", mode="dense", candidates=10, resident="float32")
    states = layer.query_states(QUERIES)

    def never(*_: object) -> None:
        raise AssertionError("read on the host")

    for method in ("embeddings", "dense_scores", "dense_candidates"):
        monkeypatch.setattr(Snapshot, method, never)
    assert layer(states).positions.shape == (3, 19)  # the best ten, and the nine newer ones


def test_passages_are_resident_too(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    host = open_layer(engine, "long", mode="dense", candidates=10)
    layer = open_layer(engine, "long", mode="dense", candidates=10, resident="float32")
    states = layer.query_states(QUERIES)
    passages = layer.snapshot.passages
    assert passages is not None
    assert layer.resident is not None
    assert layer.resident.size_bytes == (150 + len(passages)) * 32 * 4 + len(passages) * 8
    wanted = host(states)
    monkeypatch.setattr("dsearch.engine.ranking.resident._ROWS", 16)  # in blocks

    def never(*_: object) -> None:
        raise AssertionError("read on the host")

    monkeypatch.setattr(type(passages), "embeddings", never)
    for method in ("embeddings", "key_embeddings", "dense_scores", "dense_candidates"):
        monkeypatch.setattr(Snapshot, method, never)
    found = layer(states)
    assert found.keys is not None
    np.testing.assert_array_equal(found.positions, wanted.positions)
    np.testing.assert_array_equal(found.keys, wanted.keys)
    torch.testing.assert_close(found.context, wanted.context, rtol=1e-5, atol=1e-6)


def test_half_precision_takes_half_the_memory_and_rounds(engine: SearchEngine) -> None:
    layers = {
        kind: open_layer(engine, "food", mode="dense", candidates=10, resident=kind)
        for kind in ("float32", "bfloat16")
    }
    states = layers["float32"].query_states(QUERIES)
    sizes = [layer.resident.size_bytes for layer in layers.values() if layer.resident is not None]
    assert sizes == [130 * 32 * 4, 130 * 32 * 2]
    exact, rounded = (layer(states).context for layer in layers.values())
    assert 0 < (exact - rounded).abs().max() < 0.02
    assert not any("resident" in name for name in layers["bfloat16"].state_dict())
    assert {name for name, _ in layers["bfloat16"].named_parameters()} == {
        name for name, _ in layers["float32"].named_parameters()
    }


def test_later_writes_are_seen_after_refresh_alone(engine: SearchEngine) -> None:
    collection = engine.create("later")
    collection.ingest(documents(20))
    layer = open_layer(engine, "later", mode="dense", candidates=30, resident="float32")
    collection.upsert([Document("new", "honey honey honey")])
    layer.refresh()
    (ids,) = layer(layer.query_states(["honey"])).ids
    assert "new" in ids
    old = ResidentEmbeddings(engine.collection("whole").snapshot)
    with pytest.raises(Conflict, match=r"another state of the documents; refresh\(\) the layer"):
        old.require(layer.snapshot)
    before = ResidentEmbeddings(collection.snapshot)
    before.require(collection.snapshot)
    collection.upsert([Document("new", "lemon")])  # in the place of the other
    collection.refresh()
    assert collection.snapshot.positions == before.state[1]
    with pytest.raises(Conflict, match="another state of the documents"):
        before.require(collection.snapshot)


@pytest.mark.parametrize("name", ["food", "whole", "long", "long-and-whole"])
def test_a_query_of_zeros_finds_the_first_documents_as_on_the_host(engine: SearchEngine, name: str) -> None:
    host, own = (
        open_layer(engine, name, mode="dense", candidates=12, resident=kind) for kind in (None, "float32")
    )
    states = host.query_states(QUERIES).clone()
    states[1] = 0
    assert own(states).ids == host(states).ids


def test_what_cannot_be_resident_is_refused(engine: SearchEngine) -> None:
    with pytest.raises(InvalidRequest, match="resident='int8'; use float32 or bfloat16"):
        open_layer(engine, "food", resident="int8")  # type: ignore[arg-type]


def test_an_empty_collection_has_no_candidates(engine: SearchEngine) -> None:
    engine.create("nothing")
    layer = open_layer(engine, "nothing", mode="dense", resident="float32")
    output = layer(torch.nn.functional.normalize(torch.ones(2, 32), dim=1))
    assert output.positions.shape == (2, 0)
    assert not output.context.any()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_card_the_results_are_those_of_the_host(engine: SearchEngine) -> None:
    host = open_layer(engine, "food", mode="dense", candidates=10)
    card = open_layer(engine, "food", mode="dense", candidates=10, resident="float32").to("cuda")
    states = host.query_states(QUERIES)
    ours, theirs = card(states.cuda()), host(states)
    assert ours.ids == theirs.ids
    torch.testing.assert_close(ours.context.cpu(), theirs.context, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(ours.positions, theirs.positions)


@pytest.mark.parametrize("resident", [None, "float32"])
def test_another_version_searches_as_its_layer_does(engine: SearchEngine, resident: Any) -> None:
    options: Any = {"mode": "dense", "candidates": 7, "resident": resident}
    layer = open_layer(engine, "food", score="gaussian", width=0.5, **options)
    other = layer.with_model("v0")
    assert other.version == "v0"
    assert (other.mode, other.candidates) == ("dense", 7)
    assert (other.resident is None) == (resident is None)
    assert other.head is not layer.head
    states = layer.query_states(QUERIES)
    assert other(states).ids == layer(states).ids
    torch.testing.assert_close(other(states).weights, layer(states).weights)
