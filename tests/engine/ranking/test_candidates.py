"""What all documents score is computed once where they are few, and gives what the index would have given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, PassageOptions, SearchEngine, SearchLayer
from dsearch.engine.ranking import candidates, coverage
from dsearch.engine.ranking.candidates import SearchLegs
from dsearch.engine.ranking.coverage import covered_mass
from dsearch.types import Document

FOODS = ["apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey"]
QUERIES = ["apple bread", "cheese cheese honey", "nothing of it"]


@pytest.fixture(params=["short", "long"])
def collection(engine: SearchEngine, request: pytest.FixtureRequest) -> Collection:
    """Built, fresh and deleted documents, many of them alike, so that scores tie."""
    passages = PassageOptions(tokens=16, overlap=4) if request.param == "long" else PassageOptions(none=True)
    made = engine.create("notes", passages=passages)
    texts = [f"{FOODS[n % 8]} {FOODS[n % 3]} " * (12 if n % 5 == 0 else 1) for n in range(40)]
    made.ingest([Document(f"d{n}", text) for n, text in enumerate(texts)])
    made.upsert([Document(f"n{n}", text) for n, text in enumerate(texts[:12])])
    made.delete(["d3", "d11", "n4"])
    return made


def head_of(heads: int, dimension: int) -> Head:
    head = Head(dimension, heads=heads)
    with torch.no_grad():
        for delta in head.parameters():
            if delta.ndim > 1:
                delta.add_(0.05 * torch.randn(delta.shape, generator=torch.Generator().manual_seed(3)))
    return head


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
def test_the_candidates_are_those_of_the_index(
    collection: Collection, mode: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = torch.as_tensor(HashingEncoder().encode_queries(QUERIES))
    head = head_of(heads, states.shape[1])
    # Of documents that score the same the index takes any whose passage comes first.
    cut = 7 if collection.snapshot.passages is None else 30
    layer = SearchLayer(collection.snapshot, head, mode=mode, candidates=cut)
    with torch.no_grad():
        once = layer(states, QUERIES)
        monkeypatch.setattr(candidates, "SCORES_AT_ONCE", 0)
        searched = layer(states, QUERIES)
    assert (once.dense_of_all is None) == (mode == "keyword")
    assert (once.keyword_of_all is None) == (mode == "dense")
    assert searched.dense_of_all is None
    assert searched.keyword_of_all is None
    if collection.snapshot.passages is None:
        assert np.array_equal(once.positions, searched.positions)
        assert torch.equal(once.scores, searched.scores)
        assert torch.equal(once.keyword, searched.keyword)
    best = slice(0, 5)
    torch.testing.assert_close(once.scores[:2, best], searched.scores[:2, best])


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
def test_covered_mass_is_the_same_of_known_scores_at_once_and_in_blocks(
    collection: Collection, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = torch.as_tensor(HashingEncoder().encode_queries(QUERIES))
    layer = SearchLayer(collection.snapshot, head_of(2, states.shape[1]), mode=mode, candidates=5)
    with torch.no_grad():
        found = layer(states, QUERIES)
        known = covered_mass(found, layer, QUERIES)
        found = found._replace(dense_of_all=None, keyword_of_all=None)
        at_once = covered_mass(found, layer, QUERIES)
        monkeypatch.setattr(coverage, "SCORES_AT_ONCE", 0)
        in_blocks = covered_mass(found, layer, QUERIES)
    assert mode == "keyword" or (known < 1).all()
    torch.testing.assert_close(known, at_once, rtol=0, atol=1e-5)
    torch.testing.assert_close(known, in_blocks, rtol=0, atol=1e-5)


def test_words_are_looked_for_once_however_many_rounds(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    search = SearchLegs._by_words
    monkeypatch.setattr(
        SearchLegs, "_by_words", lambda self, texts: looked.append(texts) or search(self, texts)
    )
    states = torch.as_tensor(HashingEncoder().encode_queries(QUERIES))
    head = head_of(1, states.shape[1])
    SearchLayer(collection.snapshot, head, candidates=5, hops=3, hop_strength=0.5)(states, QUERIES)
    assert len(looked) == 1


def test_a_query_of_zeros_is_proposed_the_first(collection: Collection) -> None:
    states = torch.as_tensor(HashingEncoder().encode_queries(QUERIES))
    states[1] = 0
    layer = SearchLayer(collection.snapshot, head_of(1, states.shape[1]), mode="dense", candidates=5)
    found = layer(states)
    first = found.positions[1]
    assert sorted(first[first >= 0].tolist()) == [0, 1, 2, 4, 5]
    alone = layer(states[:1])
    # One query and two are multiplied in another order, so near ties may change places.
    beside = found.positions[0] >= 0
    assert sorted(alone.positions[0].tolist()) == sorted(found.positions[0][beside].tolist())
    torch.testing.assert_close(alone.scores[0], found.scores[0][beside])


def test_a_projected_index_is_asked_itself(collection: Collection) -> None:
    """Its keys are not the embeddings, so what it compares is not what logits are made of."""
    head = head_of(1, collection.store.dimension)
    states = torch.as_tensor(HashingEncoder().encode_queries(QUERIES))
    projected = collection.snapshot
    object.__setattr__(projected, "unfold", np.eye(states.shape[1], dtype=np.float32))
    assert projected.dense_scores(states.numpy()) is None
    found = SearchLayer(projected, head, candidates=5)(states, QUERIES)
    assert found.dense_of_all is None
    assert found.keyword_of_all is not None
