"""W learns on the candidates of judged queries, and is served as it was fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.training.second_stages import judged_collection

from dsearch.attention.late_interaction import FEATURES
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.queries import tokens_of
from dsearch.engine.snapshot.tokens_of_query import QueryTokens
from dsearch.errors import InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training import run_training
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.finetune.lists import lists_of
from dsearch.training.finetune.second_stage import FoldHeads, stage_with, train_second_stage
from dsearch.training.finetune.token_matrix import TokenLists, fit_matrix, with_matrix

Judged = tuple[Collection, Examples, list[QueryTokens]]
WEIGHTS = torch.tensor([0.75, *(0.0 for _ in FEATURES)])


@pytest.fixture
def judged(engine: SearchEngine) -> Judged:
    collection, queries, judgements = judged_collection(engine)
    examples = examples_from_judgements(collection, queries, judgements)
    return collection, examples, tokens_of(collection, examples.texts, examples.snapshot)


def test_the_identity_changes_nothing(judged: Judged) -> None:
    collection, examples, tokens = judged
    lists = lists_of(examples, tokens, collection.head("v0"), range(12))
    candidates = TokenLists(examples.snapshot, tokens, lists)
    same = with_matrix(lists, candidates, torch.zeros(candidates.dims, candidates.dims))
    torch.testing.assert_close(same.features, lists.features)


def test_tokens_are_those_of_the_queries_and_candidates_of_a_list(judged: Judged) -> None:
    """Behind other queries, and with nothing behind the candidates."""
    collection, examples, tokens = judged
    lists = lists_of(examples, tokens, collection.head("v0"), [5, 3, 8])
    lists = lists.padded(lists.positions.shape[1] + 7)
    candidates = TokenLists(examples.snapshot, tokens, lists)
    same = with_matrix(lists, candidates, torch.zeros(candidates.dims, candidates.dims))
    torch.testing.assert_close(same.features, lists.features)


def test_a_query_without_a_right_candidate_teaches_nothing(judged: Judged) -> None:
    collection, examples, tokens = judged
    lists = lists_of(examples, tokens, collection.head("v0"), range(3))
    lists.grades[1] = 0.0
    candidates = TokenLists(examples.snapshot, tokens, lists)
    delta = fit_matrix(lists, candidates, WEIGHTS, epochs=1)
    assert delta.any()
    assert torch.isfinite(delta).all()


def test_what_judgements_say_of_words_is_learned(judged: Judged) -> None:
    """Of two words of each query one counts: W takes the match of the other away, as far as it may."""
    collection, examples, tokens = judged
    rows = collection.store.rows_of([f"d{at}" for at in range(60)])
    places = examples.snapshot.positions_of(np.array([rows[f"d{at}"] for at in range(60)], np.int64))
    relevant = []
    for i in range(len(examples)):
        of_word = np.sort(places[i % 13 :: 13])  # documents of c{i % 13}, whatever a they have
        relevant.append((of_word, np.ones(len(of_word), np.float32)))
    taught = Examples(examples.snapshot, examples.texts, examples.states, relevant, {}, "")
    lists = lists_of(taught, tokens, collection.head("v0"), range(len(taught)))
    candidates = TokenLists(examples.snapshot, tokens, lists)
    delta = fit_matrix(lists, candidates, WEIGHTS, pull=0.0, epochs=12)
    right = torch.as_tensor(lists.grades > 0)

    def margin(of: torch.Tensor) -> float:
        match = of[..., 0]
        return float(match[right].mean() - match[~right].mean())

    learned = with_matrix(lists, candidates, delta)
    assert margin(learned.features) > margin(lists.features) + 0.02
    pulled = fit_matrix(lists, candidates, WEIGHTS, pull=100.0, epochs=12)
    assert pulled.norm() < 0.2 * delta.norm()


def test_candidates_that_a_query_does_not_have_are_no_part_of_the_loss(judged: Judged) -> None:
    """However low the others score: what all of a query have in common cancels."""
    collection, examples, tokens = judged
    lists = lists_of(examples, tokens, collection.head("v0"), range(2))
    lists = replace(lists, scores=lists.scores - 2.0)
    wider = lists.padded(lists.positions.shape[1] + 20)
    delta, same = (
        fit_matrix(of, TokenLists(examples.snapshot, tokens, of), WEIGHTS, epochs=2) for of in (lists, wider)
    )
    assert delta.any()
    torch.testing.assert_close(same, delta, atol=1e-5, rtol=1e-3)


def test_the_order_is_that_of_a_search_with_it(judged: Judged) -> None:
    collection, examples, tokens = judged
    head = collection.head("v0")
    lists = lists_of(examples, tokens, head, range(6))
    candidates = TokenLists(examples.snapshot, tokens, lists)
    generator = torch.Generator().manual_seed(3)
    delta = 0.2 * torch.randn(candidates.dims, candidates.dims, generator=generator)
    stage = stage_with(examples.snapshot, WEIGHTS, delta)
    version = collection.add_model(head.reranking(stage), {"scope": "test"})
    collection.promote(version)
    expected = with_matrix(lists, candidates, delta).ranked(WEIGHTS)
    for text, ids in zip(examples.texts[:6], collection.ids_at(examples.snapshot, expected), strict=True):
        assert [hit.id for hit in collection.search(text, limit=20).hits] == ids[:20]


def test_a_training_with_it_keeps_it_only_where_others_gain(judged: Judged) -> None:
    collection, examples, tokens = judged
    head = collection.head("v0")
    folds = [FoldHeads([*range(start, start + 24)], {"start": head}) for start in (0, 24)]
    trained = train_second_stage(examples, tokens, folds, "start", matrix=True)
    assert trained is not None
    size = trained.record["second_stage"]["token_matrix"]
    assert (size > 0) == bool(trained.stage.token_delta.any())


def test_it_needs_tokens_and_judgements(engine: SearchEngine) -> None:
    collection = engine.create("plain")
    job = TrainingJob(queries={"q": "a"}, judgements={"q": {"d": 1.0}}, token_matrix=True)
    with pytest.raises(InvalidRequest, match="--second-stage"):
        run_training(collection, job)
