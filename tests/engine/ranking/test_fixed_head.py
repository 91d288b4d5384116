"""Searches in NumPy answer as the layer that gradients flow through: whole answers are compared."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.search_options import SearchOptions
from dsearch.types import Document

QUERIES = ["cheese and bread", 'honey "number3"', "-apple", "grape juice -kale", "unheard-of words"]
HEADS: dict[str, dict[str, Any]] = {
    "linear": {},
    "one low-rank": {"query_side": "low-rank", "rank": 3},
    "two": {"heads": 2, "rank": 4},
    "four mlp": {"heads": 4, "rank": 5, "query_side": "mlp"},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "dense": {"mode": "dense"},
    "keyword": {"mode": "keyword"},
    "hops": {"hops": 3, "hop_strength": 0.7},
    "few candidates": {"candidates": 3, "limit": 2, "coverage": True},
    "filter": {"filter": {"number": {"gte": 6}}, "limit": 50},
    "nothing left": {"filter": {"number": {"eq": 1000}}},
    "diverse": {"diversity": 0.4, "limit": 8},
    "thresholds": {"weight_threshold": 0.01, "limit": 50},
    "sorted": {"sort": "number", "limit": 6},
}


def random_head(seed: int, *, slot: bool, weighting: bool, **shape: Any) -> Head:
    torch.manual_seed(seed)
    head = Head(32, **shape)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.25 * torch.randn_like(parameter)
    if slot:
        head.open_null_slot(2.0, 0.8)
    if weighting:
        head.weigh_keywords(0.9, 0.3)
    return head


def close(one: Any, other: Any, path: str = "") -> None:
    """Equal texts, ids and orders; numbers within the rounding of single precision."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one:
            if name not in ("took_ms", "next_cursor"):
                close(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for place, (first, second) in enumerate(zip(one, other, strict=True)):
            close(first, second, f"{path}.{place}")
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=2e-4, abs=2e-5, nan_ok=True), path
    else:
        assert one == other, path


def compare(collection: Collection, version: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    chosen = SearchOptions(model=version, **options)
    assert isinstance(collection.ranking_head(version), FixedHead)
    by_numpy = collection.answer(QUERIES, chosen)
    with monkeypatch.context() as patched:
        patched.setattr(type(collection), "ranking_head", type(collection).head)
        collection.layers.forget()
        by_torch = collection.answer(QUERIES, chosen)
    collection.layers.forget()
    for one, other in zip(by_torch, by_numpy, strict=True):
        assert [hit.id for hit in one.hits] == [hit.id for hit in other.hits]
        close(asdict(one), asdict(other))


@pytest.mark.parametrize("shape", HEADS)
@pytest.mark.parametrize("seed", range(3))
def test_random_heads_answer_as_in_torch(
    collection: Collection, shape: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.upsert([Document("fresh", "cheese and bread and numbers", title="honey bread")])
    head = random_head(seed, slot=seed == 1, weighting=seed == 2, **HEADS[shape])
    version = collection.add_model(head, {})
    for options in SEARCHES.values():
        compare(collection, version, monkeypatch, explain=True, **options)


@pytest.mark.parametrize("shape", HEADS)
def test_documents_of_several_passages_too(
    long: Collection, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = long.add_model(random_head(5, slot=True, weighting=False, **HEADS[shape]), {})
    for options in (
        {},
        {"mode": "dense", "candidates": 3, "coverage": True},
        {"hops": 2, "hop_strength": 1.0},
    ):
        compare(long, version, monkeypatch, explain=True, **options)


def test_the_untrained_version(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in SEARCHES.values():
        compare(collection, "v0", monkeypatch, explain=True, **options)


def test_vectors_in_place_of_texts(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    version = collection.add_model(random_head(7, slot=False, weighting=False, heads=2), {})
    vectors = np.random.default_rng(0).normal(size=(2, 32))
    answers = [
        collection.answer(["", "bread"], SearchOptions(model=version), given)
        for given in (vectors, vectors.tolist(), torch.as_tensor(vectors))
    ]
    for other in answers[1:]:
        for one, same in zip(answers[0], other, strict=True):
            close(asdict(one), asdict(same))


@pytest.mark.parametrize("part", ["score", "excitation", "second stage"])
def test_parts_that_numpy_lacks_are_left_to_torch(collection: Collection, part: str) -> None:
    head = random_head(0, slot=False, weighting=False, heads=2)
    if part == "score":
        head.learn_score("general")
    elif part == "excitation":
        head.open_excitation(4)
    else:
        from dsearch.attention.retrieval.second_stage import SecondStage

        head.second_stage = SecondStage(8)
    version = collection.add_model(head, {})
    assert isinstance(collection.ranking_head(version), Head)
    assert collection.search("bread", model=version).hits
