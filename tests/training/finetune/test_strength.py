"""The strength of a second stage, chosen for each query by the others, behind a tuned search."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.training.second_stages import judged_collection

from dsearch.attention.retrieval.head import Head
from dsearch.engine import SearchEngine
from dsearch.engine.models.confidence import RECORDED
from dsearch.engine.search.queries import tokens_of
from dsearch.jobs import TuningJob
from dsearch.training import run_tuning
from dsearch.training.data.examples import Examples, examples_from_judgements
from dsearch.training.finetune import second_stage as strength
from dsearch.training.finetune.second_stage import (
    FEWEST_FOR_STRENGTH,
    STRENGTH_METHODS,
    chosen_strength,
    fit_strength,
    strength_behind,
    terms_of,
)
from dsearch.training.finetune.stage_fit import METHODS
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.registry import register_second_stage, starting_version
from dsearch.training.tune import DEFAULT, TunedSearch


def test_a_query_does_not_choose_for_itself() -> None:
    """Each choice is that of a direct computation without the query."""
    values = np.random.default_rng(0).normal(0.5, 0.1, size=(len(STRENGTH_METHODS), 30))
    values[3] += 0.05
    choice = chosen_strength(values)
    for left in range(30):
        gains = np.delete(values - values[0], left, axis=1)
        best = int(gains.mean(1).argmax())
        clear = gains[best].mean() > gains[best].std() / np.sqrt(29)
        assert choice.left_out[left] == (best if clear else 0)
    assert choice.method == STRENGTH_METHODS[3]


def test_noise_chooses_no_second_stage() -> None:
    values = np.full((len(STRENGTH_METHODS), 40), 0.5)
    values[2, ::2] += 0.1
    values[2, 1::2] -= 0.1
    choice = chosen_strength(values)
    assert choice.method == METHODS[0]
    assert set(choice.left_out) <= {0, 2}


def test_one_query_that_gains_alone_chooses_for_the_others_only() -> None:
    values = np.full((len(STRENGTH_METHODS), 30), 0.5)
    values[2, 7] = 0.9
    choice = chosen_strength(values)
    assert [choice.left_out[query] for query in (6, 7, 8)] == [2, 0, 2]
    assert choice.left_out.count(0) == 1


def test_a_gain_has_to_exceed_its_standard_error() -> None:
    """Of 100 queries some gain .1 and the others lose it; the error of the mean is a hundredth or so."""
    for winners, clear in ((54, False), (58, True)):
        values = np.full((len(STRENGTH_METHODS), 100), 0.5)
        values[2] += np.where(np.arange(100) < winners, 0.1, -0.1)
        choice = chosen_strength(values)
        assert (choice.method == STRENGTH_METHODS[2]) is clear
        assert (choice.method == METHODS[0]) is not clear
        assert set(choice.left_out) == ({2} if clear else {0})


def test_the_fewest_queries_fit_and_fewer_do_not(engine: SearchEngine) -> None:
    collection, queries, judgements = judged_collection(engine)
    for count, fits in ((FEWEST_FOR_STRENGTH - 1, False), (FEWEST_FOR_STRENGTH, True)):
        some = {name: judgements[name] for name in [*judgements][:count]}
        examples = examples_from_judgements(collection, queries, some)
        tokens = tokens_of(collection, examples.texts, examples.snapshot)
        assert (fit_strength(examples, tokens, collection.head("v0"), "start") is not None) is fits


def test_tuning_offers_a_second_stage_and_training_starts_before_it(engine: SearchEngine) -> None:
    collection, queries, judgements = judged_collection(engine)
    learned = run_tuning(collection, job := TuningJob(queries=queries, judgements=judgements))
    stage = learned.second_stage
    assert stage is not None
    assert stage.method in STRENGTH_METHODS
    assert stage.stage.strength.item() == pytest.approx(terms_of(stage.method)[0].item())
    assert not stage.stage.has_features
    registered = learned.register(collection, job)
    told = learned.summary(registered)["second_stage"]
    assert told["text"].startswith("second stage (")
    if not stage.passed:
        registered = register_second_stage(collection, stage.stage, stage.record, registered)
    assert collection.head(collection.live_model).second_stage is not None
    assert starting_version(collection) == registered.parent


class Fitted:
    """In place of the fit: what it was given, and a record."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.given: list[tuple[Examples, Head, str]] = []
        monkeypatch.setattr(strength, "fit_strength", self.fit)

    def fit(self, examples: Examples, tokens: Any, head: Head, base: str, **more: Any) -> Any:
        assert len(tokens) == len(examples)
        self.given.append((examples, head, base))
        return SimpleNamespace()


def tuned_search(passed: bool) -> TunedSearch:
    gate = replace(judge(None, None), verdict="passed" if passed else "refused")
    record = {RECORDED: {"floor": 0.0}, "gate": gate.to_dict()}
    return TunedSearch(head=Head(32), record=record, gate=gate, setting=DEFAULT, scores={})


def test_the_strength_is_fitted_behind_what_answers_after_the_tuning(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuned search if it passed; else the untrained one, where it is live."""
    collection, queries, judgements = judged_collection(engine)
    examples, fitted = examples_from_judgements(collection, queries, judgements), Fitted(monkeypatch)
    passed, refused = tuned_search(True), tuned_search(False)
    assert strength_behind(collection, passed, examples, gate=Gate(), seed=0) is not None
    assert fitted.given[-1][1:] == (passed.head, "tuned")
    assert strength_behind(collection, refused, examples, gate=Gate(), seed=0) is not None
    assert fitted.given[-1][1:] == (collection.head("v0"), "start")
    collection.promote(collection.add_model(Head(32), {"scope": "head"}))
    assert strength_behind(collection, refused, examples, gate=Gate(), seed=0) is None


def test_of_many_queries_some_are_drawn_for_the_strength(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, queries, judgements = judged_collection(engine)
    examples, fitted = examples_from_judgements(collection, queries, judgements), Fitted(monkeypatch)
    monkeypatch.setattr(strength, "MOST_QUERIES", 9)
    for seed in (0, 0, 1):
        strength_behind(collection, tuned_search(True), examples, gate=Gate(), seed=seed)
    one, same, other = (given[0].states for given in fitted.given)
    assert len(one) == 9
    np.testing.assert_array_equal(one, same)
    for drawn in (other, examples.states[:9]):
        assert not np.array_equal(one, drawn)
