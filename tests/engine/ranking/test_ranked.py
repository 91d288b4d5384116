"""`SearchLayer.ranked` finds what the layer itself finds, without embeddings where it can."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import PassageOptions, SearchLayer
from dsearch.engine.ranking.scoring import Scoring
from dsearch.types import Document

FOODS = "apple bread cheese dough egg flour grape honey ice juice kale lemon mango nut oat pear"
WORDS = FOODS.split()
QUERIES = ["apple pear", "mango kale lemon", "honey"]


def words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


@pytest.fixture
def collection(engine: Any) -> Any:
    """150 built documents, every fourth a long one, newer ones, and deleted ones."""
    made = engine.create("some", passages=PassageOptions(tokens=16, overlap=4))
    made.ingest([Document(f"d{n}", words(60 if n % 4 == 0 else 8, n)) for n in range(150)])
    made.upsert([Document("new", words(70, 900)), Document("tiny", "apple honey")])
    made.delete(["d8", "d9"])
    return made


def head_of(heads: int) -> Head:
    head = Head(32, heads=heads, rank=4)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=draw)
    return head


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
@pytest.mark.parametrize(("heads", "hops", "candidates"), [(1, 1, 20), (3, 1, 20), (2, 2, 20), (1, 1, 500)])
def test_what_is_ranked_is_what_the_layer_finds(
    collection: Any, encoder: HashingEncoder, mode: Any, heads: int, hops: int, candidates: int
) -> None:
    layer = SearchLayer(
        collection.snapshot, head_of(heads), mode=mode, hops=hops, hop_strength=0.5, candidates=candidates
    )
    states = torch.as_tensor(encoder.encode_queries(QUERIES))
    with torch.no_grad():
        whole = layer(states, QUERIES)
    ranked = layer.ranked(states, QUERIES)
    assert np.array_equal(np.sort(ranked.positions, 1), np.sort(whole.positions, 1))
    for query in range(len(QUERIES)):
        # Documents of equal scores may change places in the last bits: held against each other by position.
        places = [np.argsort(found.positions[query], kind="stable") for found in (ranked, whole)]
        for name in ("weights", "scores"):
            mine, theirs = (
                getattr(found, name)[query][place]
                for found, place in zip((ranked, whole), places, strict=True)
            )
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
        for name in ("dense", "keyword", "head_weights"):
            mine, theirs = (
                getattr(found, name)[query][:, place]
                for found, place in zip((ranked, whole), places, strict=True)
            )
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert ranked.context.shape == (len(QUERIES), 0)
    if mode == "keyword":
        return
    keys = layer.keys_of(whole._replace(keys=None), 10)
    assert keys is not None
    assert whole.keys is not None
    assert np.array_equal(keys, whole.keys[:, :, :10])


def test_further_documents_are_listed_and_share_nothing(collection: Any, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries(QUERIES))
    plain, deep = (
        SearchLayer(collection.snapshot, head_of(1), hops=1, candidates=6, depth=depth).ranked(
            states, QUERIES
        )
        for depth in (None, 20)
    )
    assert deep.is_extra is not None
    assert (deep.is_extra.sum(1) > 5).all()
    assert deep.documents is not None
    assert deep.documents.tolist() == (deep.sharing != -1).sum(1).tolist()
    for query in range(len(QUERIES)):
        inside = deep.sharing[query] != -1
        assert set(deep.positions[query][inside]) == set(plain.positions[query]) - {-1}
        assert deep.weights[query][torch.as_tensor(inside)].sum() == pytest.approx(1.0, abs=1e-5)


def test_keys_are_those_that_the_score_took(collection: Any, encoder: HashingEncoder) -> None:
    """Keys have lengths, which an inner product counts and a cosine does not."""
    layer = SearchLayer(collection.snapshot, head_of(2), mode="dense", score="cosine", candidates=20)
    states = torch.as_tensor(encoder.encode_queries(QUERIES))
    with torch.no_grad():
        whole = layer(states, QUERIES)
    ranked = layer.ranked(states, QUERIES)
    keys = layer.keys_of(ranked, 10)
    assert keys is not None
    assert whole.keys is not None
    assert np.array_equal(keys, whole.keys[:, :, :10])


def test_no_embedding_is_read_where_every_score_is_known(
    collection: Any, encoder: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> Any:
        raise AssertionError("an embedding was read")

    layer = SearchLayer(collection.snapshot, head_of(1), hops=1, candidates=20)
    states = torch.as_tensor(encoder.encode_queries(QUERIES))
    monkeypatch.setattr(Scoring, "_embeddings", read)
    assert layer.ranked(states, QUERIES).positions.shape[0] == len(QUERIES)
    with pytest.raises(AssertionError, match="was read"):
        layer(states, QUERIES)
