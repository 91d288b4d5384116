"""Bounds of a certificate: no document that was not proposed scores more."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.engine.ranking import certificate as module
from dsearch.engine.ranking.candidates import propose
from dsearch.engine.ranking.certificate import certificate_of
from dsearch.types import Document

SCORES = {
    "dot": {},
    "scaled_dot_product": {},
    "cosine": {},
    "gaussian": {"width": 0.8},
    "epanechnikov": {"width": 4.0},
    "boxcar": {"width": 2.0},
    "additive": {},
    "exact_match": {},
}
COUNT, DIM = 60, 6


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Embeddings of about the length of a query: what bounds them is how a head stretches them."""
    with SearchEngine(tmp_path_factory.mktemp("lengths"), encoder=HashingEncoder) as engine:
        made = engine.create("lengths", dimension=DIM)
        drawn = np.random.default_rng(0)
        vectors = drawn.standard_normal((COUNT, DIM))
        vectors *= np.geomspace(0.8, 1.25, COUNT)[:, None] / np.linalg.norm(vectors, axis=1, keepdims=True)
        documents = [Document(f"d{n}", f"word{n % 7} word{n % 3}") for n in range(COUNT)]
        made.store.upsert(documents[:50], vectors[:50].astype(np.float32))
        made.refresh()
        made.store.upsert(documents[50:], vectors[50:].astype(np.float32))  # fresh ones are the longest
        made.catch_up()
        yield made


def stretched(heads: int) -> Head:
    """Keys from half to twice as long as their embeddings, by their direction."""
    head = Head(DIM, heads=heads, rank=4)
    with torch.no_grad():
        head.key_delta += torch.diag(torch.linspace(-0.5, 1.0, DIM))
        for parameter in head.query_parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return head.eval()


STATES = torch.nn.functional.normalize(
    torch.randn(12, DIM, generator=torch.Generator().manual_seed(2)), dim=-1
)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", SCORES)
def test_no_unseen_document_scores_more_than_the_bound(lengths: Collection, name: str, heads: int) -> None:
    snapshot, head = lengths.snapshot, stretched(heads)
    layer = SearchLayer(snapshot, head, mode="dense", score=name, candidates=5, **SCORES[name])
    with torch.inference_mode():
        output = layer(STATES)
        positions = propose(snapshot, output.folded, None, mode="dense", candidates=5)
        bound = module._score_bound(layer, output, STATES, positions)
        keys = head.keys(torch.as_tensor(snapshot.embeddings(np.arange(COUNT))))
        scores = layer.score(head.queries(STATES), keys.expand(len(STATES), -1, -1))
    for query in range(len(STATES)):
        unseen = np.setdiff1d(np.arange(COUNT), positions[query])
        assert len(unseen) >= COUNT - 10 * heads  # of built and of fresh documents five a head
        most = scores[query][:, torch.as_tensor(unseen)].amax(-1)
        assert (most <= bound[query] + 1e-6).all()


@pytest.mark.parametrize("weight", [2.0, -2.0])
def test_words_that_count_against_a_document_lower_no_bound(lengths: Collection, weight: float) -> None:
    """One without them may lie right behind the last that the dense leg proposed."""
    snapshot, head, texts = lengths.snapshot, stretched(1), ["word1 word2"] * len(STATES)
    head.keyword_weight.data.fill_(weight)
    with torch.inference_mode():
        every = SearchLayer(snapshot, head, candidates=COUNT)(STATES, texts)
        layer = SearchLayer(snapshot, head, candidates=5)
        output = layer(STATES, texts)
        bound = output.scores[:, 0] - certificate_of(layer, output, STATES, texts, 1).margin
    for query in range(len(STATES)):
        unseen = ~np.isin(every.positions[query], output.positions[query])
        assert unseen.sum() >= COUNT - 20
        assert every.scores[query][torch.as_tensor(unseen)].max() <= bound[query] + 1e-5


def test_keys_are_stretched_by_the_extreme_singular_values() -> None:
    assert module._stretch(Head(DIM)) == (1.0, 1.0)
    smallest, largest = module._stretch(stretched(1))
    assert smallest == pytest.approx(0.5, rel=1e-4)
    assert largest == pytest.approx(2.0, rel=1e-4)
    assert smallest < 0.5
    assert largest > 2.0


def test_the_floor_is_the_last_of_all_that_were_asked_for() -> None:
    scores = torch.tensor([[[3.0, 1.0, 2.0]]])
    assert module._kth_largest(scores, 2).tolist() == [[2.0]]
    assert module._kth_largest(scores, 3).tolist() == [[1.0]]
    assert module._kth_largest(scores, 4).tolist() == [[-math.inf]]  # the leg found all there are


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("mode", ["dense", "hybrid", "keyword"])
def test_everything_proposed_is_everything_proved(lengths: Collection, mode: str, heads: int) -> None:
    texts = ["word1 word2"] * len(STATES)
    few = SearchLayer(lengths.snapshot, stretched(heads), mode=mode, candidates=COUNT)
    with torch.inference_mode():
        found = certificate_of(few, few(STATES, texts), STATES, texts, 3)
    assert found.proved.all()
    assert (found.margin == math.inf).all() or mode == "keyword"


def test_a_match_of_a_field_and_a_search_over_all_score_every_document(lengths: Collection) -> None:
    layer = SearchLayer(lengths.snapshot, Head(DIM), mode="dense", over="all", candidates=3)
    with torch.inference_mode():
        found = certificate_of(layer, layer(STATES), STATES, None, 3)
    assert found.reason == "every document was scored"
    assert found.proved.all()
    assert (found.margin == math.inf).all()


def test_more_hits_than_candidates_are_not_certified(lengths: Collection) -> None:
    layer = SearchLayer(lengths.snapshot, Head(DIM), mode="dense", candidates=3)
    with torch.inference_mode():
        output = layer(STATES)
        assert not certificate_of(layer, output, STATES, None, 4).proved.any()
        assert certificate_of(layer, output, STATES, None, 1).proved.any()
