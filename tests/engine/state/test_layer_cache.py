"""Layers that answered are kept: for one state, one head and the same options, and no longer than that."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from support.guarded import guarded

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.state.caches import LayerCache
from dsearch.errors import InvalidRequest
from dsearch.lru_cache import LruCache
from dsearch.types import Document

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


@pytest.fixture
def collection(engine: SearchEngine) -> Collection:
    made = engine.create("notes")
    made.ingest([Document(f"d{n}", f"honey number {n}") for n in range(5)])
    return made


def test_equal_searches_share_a_layer(collection: Collection) -> None:
    layers, state, head = LayerCache(), collection.snapshot, collection.head("v0")
    one = layers.over(state, head, {"mode": "dense", "candidates": 7})
    assert layers.over(state, head, {"mode": "dense", "candidates": 7}) is one
    assert layers.over(state, head, {"mode": "hybrid", "candidates": 7}) is not one
    assert layers.over(state, Head(head.encoder_dim), {"mode": "dense", "candidates": 7}) is not one
    with pytest.raises(InvalidRequest, match="candidates"):
        layers.over(state, head, {"candidates": 0})


def test_a_state_that_was_replaced_is_let_go(collection: Collection) -> None:
    before = collection.search("honey", limit=10)
    layer = weakref.ref(collection.layers.over(collection.snapshot, collection.head("v0"), {"mode": "dense"}))
    collection.upsert([Document("new", "honey honey")])
    after = collection.search("honey", limit=10)
    gc.collect()
    assert layer() is None
    assert {hit.id for hit in after.hits} - {hit.id for hit in before.hits} == {"new"}
    collection.filtered(collection.snapshot, {"n": {"exists": False}})
    collection.forget_states()
    assert len(collection.layers) == len(collection._filtered.recent) == 0


def test_they_are_bounded(collection: Collection) -> None:
    layers, head = LayerCache(), collection.head("v0")
    for candidates in range(1, 100):
        layers.over(collection.snapshot, head, {"candidates": candidates})
    assert len(layers) <= 16


def test_what_searched_under_inference_mode_can_still_train(collection: Collection) -> None:
    """A layer that the service made is not handed out to be trained, and its head is as it was."""
    collection.search("honey")
    layer, _ = collection.layer_and_stamp()
    layer(torch.randn(1, collection.store.dimension), ["honey"]).weights.max().backward()
    assert layer.head.query_delta.grad is not None
    layer.head.zero_grad()
