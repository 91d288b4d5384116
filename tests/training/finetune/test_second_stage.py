"""A second stage is pulled to nothing, chosen and judged on queries that it did not learn from."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.second_stages import judged_collection

from dsearch.attention.late_interaction import FEATURES, RerankerIdentity
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.queries import tokens_of
from dsearch.engine.snapshot import query_tokens
from dsearch.training import TrainingOptions, finetune
from dsearch.training.confidence import calibrate_by_documents, ranked_examples
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.finetune import second_stage as stages
from dsearch.training.finetune.second_stage import MIN_QUERIES, FoldHeads, train_second_stage
from dsearch.training.finetune.stage_fit import (
    METHODS,
    PULLS,
    CandidateLists,
    FitMethod,
    chosen_method,
    fitted,
    lists_of,
    stage_with,
)
from dsearch.training.gate.selection import CheckpointChoice, cross_fitted
from dsearch.training.registry import Registration, register_second_stage
from dsearch.training.relevant import ndcg_at_10

TERMS = 1 + len(FEATURES)
head_module = import_module("dsearch.training.finetune.head")  # the package has a function of this name


def drawn_lists(queries: int, *, informative: bool, seed: int = 0) -> CandidateLists:
    """Ten candidates a query, one of them relevant; its first feature is higher, or nothing is."""
    chance = np.random.default_rng(seed)
    grades = np.zeros((queries, 10))
    grades[np.arange(queries), chance.integers(10, size=queries)] = 1.0
    features = chance.normal(size=(queries, 10, TERMS)) * 0.1
    if informative:
        features[..., 0] += 0.3 * grades
    return CandidateLists(
        np.tile(np.arange(10), (queries, 1)),
        torch.as_tensor(chance.normal(size=(queries, 10)) * 0.1).float(),
        torch.as_tensor(features).float(),
        grades,
        torch.full((queries,), 0.05),
        np.arange(queries),
    )


def examples_of(lists: CandidateLists, examples: Examples) -> Examples:
    """Examples whose relevant positions are those of the lists."""
    relevant = [(np.flatnonzero(row), np.ones(1, np.float32)) for row in lists.grades]
    count = len(lists)
    states = np.zeros((count, 32), np.float32)
    return Examples(examples.snapshot, ["x"] * count, states, relevant, {}, "")


@pytest.fixture
def judged(engine: SearchEngine) -> tuple[Collection, Examples]:
    collection, queries, judgements = judged_collection(engine)
    return collection, examples_from_judgements(collection, queries, judgements)


def test_what_tells_is_learned_and_noise_is_not(judged: tuple[Collection, Examples]) -> None:
    _, examples = judged
    tells, noise = drawn_lists(200, informative=True), drawn_lists(200, informative=False)
    assert chosen_method(tells, examples_of(tells, examples), 0) != METHODS[0]
    assert chosen_method(noise, examples_of(noise, examples), 0) == METHODS[0]
    weights = fitted(tells, FitMethod(pull=PULLS[0]))
    assert weights[0] > 5 * weights[1:].abs().max()


def test_a_larger_pull_leaves_less() -> None:
    lists = drawn_lists(200, informative=True)
    sizes = [float(fitted(lists, FitMethod(pull=pull)).norm()) for pull in (*PULLS, 1e6)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 1e-3


def test_weights_are_on_the_scale_of_the_first_stage() -> None:
    lists = drawn_lists(100, informative=True)
    weights = fitted(lists, FitMethod(pull=PULLS[0]))
    tenfold = fitted(replace(lists, scores=10 * lists.scores), FitMethod(pull=PULLS[0]))
    torch.testing.assert_close(tenfold, 10 * weights, rtol=1e-3, atol=1e-4)


def test_each_part_is_answered_in_its_place_by_what_the_others_choose(
    judged: tuple[Collection, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that were fitted without the first part rank its queries right; no others change any."""
    lists = drawn_lists(60, informative=False)
    examples = examples_of(lists, judged[1])
    lists.features[..., 0] = torch.as_tensor(lists.grades).float()
    first = next(iter(stages._parts(lists, examples, 0)))[0]  # pyright: ignore[reportPrivateUsage]

    def fitted_without_first(of: CandidateLists, _: FitMethod) -> torch.Tensor:
        weights = torch.zeros(TERMS)
        weights[0] = 0.0 if np.isin(first, of.queries).any() else 9.0
        return weights

    monkeypatch.setattr(stages, "chosen_method", lambda *_: METHODS[0])
    monkeypatch.setattr(stages, "fitted", fitted_without_first)
    before, after = stages._crossed(lists, examples, 0, ())  # pyright: ignore[reportPrivateUsage]
    plain = ndcg_at_10(lists.ranked(torch.zeros(TERMS)), examples.relevant)
    np.testing.assert_allclose(before.all, plain)
    np.testing.assert_allclose(after.all, np.where(np.isin(np.arange(60), first), 1.0, plain))


def test_lists_are_what_is_served(judged: tuple[Collection, Examples]) -> None:
    """The order of the lists under some weights is that of a search with a stage of these weights."""
    collection, examples = judged
    texts = examples.texts[:6]
    raw = collection.query_token_cache.of(collection.encoder, texts)
    tokens = [query_tokens(one, text, examples.snapshot) for one, text in zip(raw, texts, strict=True)]
    head = collection.head("v0")
    lists = lists_of(examples, tokens, head, range(6))
    weights = torch.linspace(0.5, -0.1, TERMS)
    version = collection.add_model(head.reranking(stage_with(weights)), {"scope": "test"})
    collection.promote(version)
    assert collection.store.model(version).record["format"] == 17
    ranked = collection.ids_at(examples.snapshot, lists.ranked(weights))
    for text, expected in zip(texts, ranked, strict=True):
        hits = collection.search(text, limit=20).hits  # the model's own: two stages
        assert [hit.id for hit in hits] == expected[:20]


def test_a_stage_goes_live_behind_what_answers(judged: tuple[Collection, Examples]) -> None:
    collection, examples = judged
    raw = collection.query_token_cache.of(collection.encoder, examples.texts)
    tokens = [
        query_tokens(one, text, examples.snapshot) for one, text in zip(raw, examples.texts, strict=True)
    ]
    folds = [FoldHeads(list(range(start, start + 24)), {"start": collection.head("v0")}) for start in (0, 24)]
    trained = train_second_stage(examples, tokens, folds, "start")
    assert trained is not None
    assert trained.gate.slice("all").queries == 48
    assert train_second_stage(examples, tokens, folds, "head") is None
    calibration = calibrate_by_documents(collection)
    registered = register_second_stage(
        collection, trained.stage, trained.record, Registration("v0", None, "v0", "kept")
    )
    assert collection.live_model == registered.live
    answer = collection.search("a1 c1", explain=True)
    assert answer.stamp.model == registered.live
    assert (answer.confidence is None) == (calibration is None)
    assert collection.calibrations.of(collection.live_model) == calibration


@pytest.mark.parametrize("reranked", [False, True])
def test_a_model_is_asked_only_by_a_stage_that_weighs_it(
    judged: tuple[Collection, Examples], monkeypatch: pytest.MonkeyPatch, reranked: bool
) -> None:
    """Its scores, which are made up here, cost every search their time."""
    collection, examples = judged
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    model = RerankerIdentity("some/model", "cross-encoder", "0" * 64)

    def with_scores(*given: Any) -> CandidateLists:
        lists = lists_of(*given[:4])
        scores = torch.as_tensor(lists.grades).float()[..., None]
        return replace(lists, features=torch.cat([lists.features, scores], 2), reranked=True)

    way = FitMethod(pull=0.1, reranked=True) if reranked else METHODS[2]
    monkeypatch.setattr(stages, "lists_of", with_scores)
    monkeypatch.setattr(stages, "chosen_method", lambda *_: way)
    folds = [FoldHeads([*range(len(examples))], {"start": collection.head("v0")})]
    trained = train_second_stage(examples, tokens, folds, "start", reranker=model)
    assert trained is not None
    assert trained.stage.reranker == (model if reranked else None)
    weight = trained.stage.reranker_weight
    assert (weight is not None and weight.item() > 0) is reranked


def test_the_fewest_queries_fit_and_what_all_heads_learned_counts_as_seen(
    judged: tuple[Collection, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents of ten further queries, which no fold has, are those of ten that folds have."""
    monkeypatch.setattr(import_module("dsearch.training.finetune.stage_fit"), "METHODS", METHODS[:2])
    collection, examples = judged
    again = [*range(MIN_QUERIES), *range(10)]
    examples = replace(
        examples,
        texts=[examples.texts[at] for at in again],
        states=examples.states[again],
        relevant=[examples.relevant[at] for at in again],
        cache=None,
    )
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    folds = [FoldHeads(list(range(start, start + 20)), {"start": collection.head("v0")}) for start in (0, 20)]
    for learned, seen in (((), 0), (range(MIN_QUERIES, len(again)), 10)):
        trained = train_second_stage(examples, tokens, folds, "start", learned=learned)
        assert trained is not None
        slices = {of.name: of.queries for of in trained.gate.slices}
        assert (slices["all"], slices.get("seen", 0)) == (MIN_QUERIES, seen)
    fewer = [FoldHeads(folds[0].queries, folds[0].heads), FoldHeads(folds[1].queries[1:], folds[1].heads)]
    assert train_second_stage(examples, tokens, fewer, "start") is None


def test_lists_are_of_the_queries_that_they_name(judged: tuple[Collection, Examples]) -> None:
    collection, examples = judged
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    tokens = [of._replace(weights=of.weights * (1 + at)) for at, of in enumerate(tokens)]
    head = collection.head("v0")
    whole, part = lists_of(examples, tokens, head, range(6)), lists_of(examples, tokens, head, [4, 5])
    np.testing.assert_array_equal(part.positions, whole.positions[4:])
    np.testing.assert_array_equal(part.grades, whole.grades[4:])
    torch.testing.assert_close(part.scores, whole.scores[4:])
    torch.testing.assert_close(part.features, whole.features[4:])
    assert whole.grades[4:].any()


def test_documents_that_are_excluded_for_a_query_are_in_no_list(judged: tuple[Collection, Examples]) -> None:
    collection, examples = judged
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    head = collection.head("v0")
    lists = lists_of(examples, tokens, head, [4, 5])
    best = lists.positions[1, lists.scores[1].argsort(descending=True)[:2].numpy()]
    hidden = [np.zeros(0, np.int64) for _ in range(len(examples))]
    hidden[5] = best
    without = lists_of(replace(examples, hidden=hidden), tokens, head, [4, 5])
    assert np.isin(best, lists.positions[1]).all()
    assert np.isin(best, without.positions[0]).all()  # for another query they stay
    assert not np.isin(best, without.positions[1]).any()


def test_training_offers_one_where_there_are_tokens(
    tmp_path: Path, judged: tuple[Collection, Examples], encoder: HashingEncoder
) -> None:
    from dsearch.jobs import TrainingJob
    from dsearch.training.run import run_training

    collection, _ = judged
    queries = {f"q{i}": f"a{i % 7} c{i % 13}" for i in range(48)}
    judgements = {f"q{i}": {f"d{i}": 1} for i in range(48)}
    job = TrainingJob(queries=queries, judgements=judgements, epochs=2, memory=False, tune=False)
    learned = run_training(collection, job)
    assert learned.second_stage is not None
    registered = learned.register(collection, job)
    if learned.second_stage.passed:
        assert collection.head(collection.live_model).second_stage is not None
    else:
        assert registered.live is None or collection.head(registered.live).second_stage is None


def test_a_head_of_an_earlier_checkpoint_is_followed_and_calibrated(
    judged: tuple[Collection, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many queries an early epoch is best: its head had no second stage, and no judged calibration."""
    _, examples = judged
    options = TrainingOptions(epochs=3, folds=2, tune=False, memory=False)
    changes: list[float] = []
    for number in (1, 3):
        monkeypatch.setattr(
            head_module,
            "cross_fitted",
            lambda *given, number=number, **more: replace(
                cross_fitted(*given, **more), choice=CheckpointChoice(number)
            ),
        )
        trained = finetune(examples, options)
        assert trained.epochs == number
        assert trained.held_out is not None
        assert len(trained.held_out.right) == len(examples)
        of_folds = [
            ranked_examples(examples.subset(fold.queries), fold.heads["head"]).rows for fold in trained.folds
        ]
        np.testing.assert_allclose(trained.held_out.rows, np.concatenate(of_folds), atol=1e-5)
        assert sorted(query for fold in trained.folds for query in fold.queries) == [*range(len(examples))]
        changes.append(sum(float(fold.heads["head"].query_delta.detach().norm()) for fold in trained.folds))
    assert 0 < changes[0] < changes[1]
