"""Training on collections with long documents: scores of the best passage, exact, with their gradients."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.training.opened_heads import batch_of, both_ways, opened_head, unit
from support.training.opened_heads import seeded as seeded  # a fixture for every test here

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.maxp import best_passages
from dsearch.engine import PassageOptions
from dsearch.training import TrainingOptions, examples_from_judgements, finetune, train_head
from dsearch.training.gate.gate import overlap_of_canaries
from dsearch.training.losses import listwise, objectives, passages
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.ranking import Ranking
from dsearch.types import Document, Query

DOCUMENTS, OWNERS = 20, [1, 1, 1, 5, 7, 7, 19]


path = both_ways(listwise)


def long_batch_of(heads: int, *, with_keywords: bool = True) -> objectives.Batch:
    """With relevant documents of several passages."""
    return replace(
        batch_of(opened_head(8, heads), unit(DOCUMENTS, 8), with_keywords=with_keywords),
        relevant=torch.tensor([[3, 5], [1, 0], [7, 19], [2, 0]]),
        judged=torch.tensor([1, 2, 3, 5, 7, 9, 19]),
        further=FurtherPassages(unit(len(OWNERS), 8), torch.tensor(OWNERS)),
    )


def logits_of(batch: objectives.Batch) -> torch.Tensor:
    """Document by document, the largest over its passages."""
    folded = batch.head.fold(batch.head.queries(batch.states))
    columns = []
    for document in range(DOCUMENTS):
        own = [batch.corpus[document]]
        own += [batch.further.embeddings[i] for i, owner in enumerate(OWNERS) if owner == document]
        columns.append((folded @ torch.stack(own).T).amax(-1))
    scores = torch.stack(columns, -1)
    if batch.keyword is not None:
        scores = scores + batch.head.keyword_weight[:, None] * batch.keyword[:, None]
    return scores / batch.head.temperature


def same_with_gradients(found: torch.Tensor, expected: torch.Tensor, head: Head) -> None:
    torch.testing.assert_close(found, expected)
    learning = [head.key_delta, head.keyword_weight, head.log_temperature]
    gradients = [
        torch.autograd.grad(value, learning, retain_graph=True, materialize_grads=True, allow_unused=True)
        for value in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("with_keywords", [True, False])
def test_listwise_is_its_definition(heads: int, with_keywords: bool) -> None:
    batch = long_batch_of(heads, with_keywords=with_keywords)
    weights = torch.einsum("h,bhn->bn", batch.head.mixture, logits_of(batch).softmax(-1))
    expected = -(batch.target * weights.log().gather(1, batch.relevant)).sum(-1).mean()
    same_with_gradients(objectives.OBJECTIVES["listwise"](batch), expected, batch.head)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("pool", [list(range(DOCUMENTS)), [1, 2, 3, 5, 7, 9, 19], [0, 2], [19]])
def test_weights_over_some_documents_are_those_of_their_best_passages(heads: int, pool: list[int]) -> None:
    batch = long_batch_of(heads)
    found = batch.log_weights(torch.tensor(pool))
    expected = (batch.head.mixture.log()[:, None] + logits_of(batch)[..., pool].log_softmax(-1)).logsumexp(1)
    probe = torch.randn_like(found)
    same_with_gradients((found * probe).sum(), (expected * probe).sum(), batch.head)


@pytest.mark.parametrize("heads", [1, 3])
def test_documents_that_a_teacher_scored_too(heads: int) -> None:
    batch = long_batch_of(heads)
    at = batch.scored[:, None].expand(-1, heads, -1)
    logits = logits_of(batch).gather(2, at).masked_fill(~batch.mask[:, None], -1e30)
    expected = (batch.head.mixture.log()[:, None] + logits.log_softmax(-1)).logsumexp(1)[batch.mask]
    probe = torch.randn_like(expected)
    found = batch.log_weights_of_scored()[batch.mask]
    same_with_gradients((found * probe).sum(), (expected * probe).sum(), batch.head)


@pytest.mark.parametrize("name", sorted(set(objectives.OBJECTIVES) - {"reinforce"}))
def test_without_further_passages_every_objective_is_what_it_was(name: str) -> None:
    batch = long_batch_of(2)
    nothing = FurtherPassages(torch.zeros(0, 8, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
    objective = objectives.OBJECTIVES[name]
    plain = objective(replace(batch, further=None))
    same_with_gradients(objective(replace(batch, further=nothing)), plain, batch.head)


@pytest.mark.parametrize("most_levels", [0, 64])
def test_the_best_passage_is_that_of_the_largest_score(
    most_levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passages in any order, by one pass for each of a document's or by a reduction over all."""
    monkeypatch.setattr(passages, "_MOST_LEVELS", most_levels)
    owners = torch.tensor([7, 1, 19, 1, 5, 7, 1])
    further = FurtherPassages(unit(len(owners), 8), owners)
    scores, more = torch.randn(3, 2, DOCUMENTS), torch.randn(3, 2, len(owners))
    more[..., 0] = scores[..., 7]  # of equal ones the first
    every = torch.cat([scores, more], -1)
    expected = best_passages(every, further.numbered(DOCUMENTS), DOCUMENTS)
    raised, best = further.best(scores, more)
    assert torch.equal(best, expected)
    assert torch.equal(raised, every.gather(-1, expected))
    assert torch.equal(further.raised(scores.clone(), more), raised)


# --- a collection


@pytest.fixture
def buried(engine):
    """Queries share no word with the ends of the long documents that answer them; training can help."""
    chance = random.Random(0)
    collection = engine.create("buried", passages=PassageOptions(tokens=16, overlap=2))

    def body(number: int) -> str:
        noise = " ".join(f"noise{chance.randrange(40)}" for _ in range(36))
        return f"{noise} answer{number % 20} colour{number % 3} filler{number}"

    collection.ingest([Document(f"d{i}", body(i)) for i in range(60)])
    queries = {f"q{i}": f"question{i % 20} colour{i % 3} asked{i}" for i in range(60)}
    return collection, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(60)}


def test_training_learns_passages_and_the_served_search_shows_it(buried) -> None:
    collection, queries, qrels = buried
    assert len(collection.snapshot.passages) >= 120

    def answered() -> int:
        results = collection.search_batch(list(queries.values()), limit=1)
        return sum(result.hits[0].id == f"d{i}" for i, result in enumerate(results))

    before = answered()
    options = TrainingOptions(epochs=40, learning_rate=1e-2, retention=0.1, decay=0.0, folds=0)
    trained = finetune(examples_from_judgements(collection, queries, qrels), options)
    collection.promote(collection.add_model(trained.head, trained.record))
    assert answered() > before + 30
    shown = [
        result.hits[0].passage.text for result in collection.search_batch(list(queries.values()), limit=1)
    ]
    # Nobody said which passage answers, and noise fits too: one in four would be chance.
    assert sum("answer" in text for text in shown) > 25


@pytest.mark.parametrize("objective", objectives.OBJECTIVES)
def test_each_objective_is_given_the_passages(
    buried, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[objectives.Batch] = []
    real = objectives.OBJECTIVES[objective]
    scope = importlib.import_module("dsearch.training.head_task")
    monkeypatch.setattr(scope, "OBJECTIVES", {objective: lambda batch: given.append(batch) or real(batch)})
    collection, queries, qrels = buried
    examples = examples_from_judgements(collection, queries, qrels, teacher=qrels)
    train_head(examples, TrainingOptions(epochs=1, batch_size=256, objective=objective))
    (batch,) = given
    assert batch.further is not None
    assert len(batch.further.embeddings) == len(
        FurtherPassages.of(examples.snapshot, batch.corpus).embeddings
    )


@pytest.mark.parametrize("hop_strength", [0.0, 0.8])
@pytest.mark.parametrize("heads", [1, 2])
def test_validation_ranks_like_the_served_search(buried, heads: int, hop_strength: float) -> None:
    collection, queries, qrels = buried
    collection.upsert([Document("new", " ".join(f"noise{n}" for n in range(40)))])
    collection.delete(["d3"])
    examples = examples_from_judgements(collection, queries, qrels)
    head = Head(collection.store.dimension, heads=heads)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name not in ("log_temperature", "hop_strength"):
                parameter += 0.1 * torch.randn_like(parameter)
    found = Ranking(examples).top(head, 5, hop_strength=hop_strength)
    asked = [Query(str(n), text) for n, text in enumerate(examples.texts)]
    hops = 2 if hop_strength else 1
    layer, _ = collection.layer_and_stamp(hops=hops, hop_strength=hop_strength, candidates=1000)
    layer.head = head
    with torch.inference_mode():
        served = layer(torch.as_tensor(examples.states), [query.text for query in asked]).positions[:, :5]
    assert (found == served).mean() > 0.99  # ties within rounding


def test_canaries_see_passages(buried) -> None:
    collection, _, _ = buried
    head = Head(collection.store.dimension)
    assert overlap_of_canaries(collection.snapshot, head, head) == 1.0
    other = Head(collection.store.dimension)
    with torch.no_grad():
        other.key_delta += 0.3 * torch.randn_like(other.key_delta)
    found = overlap_of_canaries(collection.snapshot, head, other)
    assert found == pytest.approx(overlap_by_hand(collection, head, other))
    assert 0 < found < 0.9


def overlap_by_hand(collection, *heads: Head) -> float:
    snapshot = collection.snapshot
    rows = snapshot.rows(snapshot.visible())
    first, passages = collection.store.embeddings(rows), collection.store.passages(rows)
    nearest = []
    for head in heads:
        folded = head.fold(head.queries(torch.as_tensor(first)))[:, 0].detach().numpy()
        own = [
            np.concatenate([e[None], passages[r].embeddings])
            for e, r in zip(first, rows.tolist(), strict=True)
        ]
        scores = np.stack([(folded @ every.T).max(1) for every in own], 1)
        np.fill_diagonal(scores, -np.inf)
        nearest.append([set(line) for line in np.argsort(-scores, 1)[:, :10].tolist()])
    return float(np.mean([len(a & b) / 10 for a, b in zip(*nearest, strict=True)]))


def test_deleted_documents_leave_no_passage_behind(buried) -> None:
    collection, _, _ = buried
    collection.delete(["d3"])
    snapshot = collection.snapshot
    further = FurtherPassages.of(snapshot, torch.zeros(snapshot.positions, collection.store.dimension))
    (gone,) = np.flatnonzero(snapshot.excluded).tolist()
    assert not further.embeddings[further.owners == gone].any()
    assert further.embeddings[further.owners != gone].any(-1).all()
