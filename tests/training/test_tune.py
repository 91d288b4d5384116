"""Tuning finds the better leg, the hop that helps, and never ends below the better leg."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.training.observers import Recorder

from dsearch.engine import Collection, SearchEngine, System, make_run
from dsearch.errors import InvalidRequest
from dsearch.evaluation import evaluate
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, finetune, tune
from dsearch.training.head_task import train_head
from dsearch.training.ranking import Ranking
from dsearch.training.tune import (
    DENSE,
    KEYWORD,
    MIN_QUERIES,
    WEIGHTINGS,
    Setting,
    Trials,
    head_of,
    setting_from,
    setting_of,
)
from dsearch.types import Document, Query

COUNT = 80
tuning = sys.modules[Trials.__module__]  # the package has a function of its name


@pytest.fixture
def words(engine: SearchEngine) -> Collection:
    collection = engine.create("words")
    collection.ingest([Document(id=f"d{i}", text=f"word{i} common{i % 7}") for i in range(COUNT)])
    return collection


def judged(collection: Collection, texts: list[str]) -> Examples:
    queries = {f"q{i:03}": text for i, text in enumerate(texts)}
    return examples_from_judgements(collection, queries, {f"q{i:03}": {f"d{i}": 1.0} for i in range(COUNT)})


def test_of_many_queries_some_are_drawn_wherever_they_stand(
    words: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data is often sorted; the first queries would all be of one kind."""
    monkeypatch.setattr(tuning, "MOST_QUERIES", 24)
    scored: list[list[str]] = []

    def values(examples: Examples, *_: object) -> list[dict[Setting, np.ndarray]]:
        scored.append(examples.texts)
        return [{DENSE: np.zeros(len(examples))}] * 2

    monkeypatch.setattr(tuning, "_values", values)
    examples = judged(words, [f"word{i:02}" for i in range(COUNT)])
    drawn = [Trials.of(examples, start=DENSE, seed=seed).drawn for seed in range(8)]
    assert all(len(of) == 24 and (np.diff(of) > 0).all() for of in drawn)
    assert scored == [[examples.texts[at] for at in of] for of in drawn]
    assert set(np.concatenate(drawn).tolist()) > set(range(60, COUNT))


def test_keywords_are_weighed_up_where_they_answer(words: Collection) -> None:
    """The states point at the wrong documents, the words at the right ones."""
    examples = judged(words, [f"word{i}" for i in range(COUNT)])
    corpus = words.snapshot.embeddings(np.arange(COUNT))
    misled = Examples(
        examples.snapshot,
        examples.texts,
        np.roll(corpus, 7, axis=0),
        examples.relevant,
        {},
        examples.digest,
    )
    tuned = tune(misled)
    assert tuned.setting[0] > 1
    assert tuned.gate.passed
    assert tuned.scores["tuned"] >= tuned.scores["keyword"] > tuned.scores["untuned"]


def test_keywords_are_weighed_down_where_they_mislead(words: Collection) -> None:
    """The words point at the wrong documents, the states, some way off, at the right ones."""
    examples = judged(words, [f"word{(i + 9) % COUNT} common{(i + 9) % COUNT % 7}" for i in range(COUNT)])
    corpus = words.snapshot.embeddings(np.arange(COUNT))
    noisy = corpus + 0.2 * np.random.default_rng(0).standard_normal(corpus.shape)
    states = (noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype(np.float32)
    misled = Examples(examples.snapshot, examples.texts, states, examples.relevant, {}, examples.digest)
    tuned = tune(misled)
    assert tuned.setting[0] < 1
    assert tuned.gate.passed
    assert tuned.scores["cross-validated"] > tuned.scores["untuned"]


def test_a_search_that_stays_as_it_was_does_not_pass(words: Collection) -> None:
    examples = judged(words, [f"word{i}" for i in range(COUNT)])
    tuned = tune(examples.subset(range(30)))
    assert tuned.setting == tuning.DEFAULT
    assert tuned.gate.verdict == "refused"
    with pytest.raises(InvalidRequest, match="9 judged queries; tuning needs at least 10"):
        tune(examples.subset(range(9)))


@pytest.mark.parametrize("seed", range(10))
def test_never_below_the_start(words: Collection, seed: int) -> None:
    """Whatever the states and words are worth, drawn at random."""
    generator = np.random.default_rng(seed)
    texts = [f"word{i if generator.random() < 0.5 else generator.integers(COUNT)}" for i in range(COUNT)]
    examples = judged(words, texts)
    corpus = words.snapshot.embeddings(np.arange(COUNT))
    mixed = corpus + generator.uniform(0, 0.5) * generator.standard_normal(corpus.shape)
    states = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
    of = Examples(examples.snapshot, examples.texts, states, examples.relevant, {}, examples.digest)
    trials = Trials.of(of, seed=seed)
    choice = trials.choose()
    assert choice.crossed.evidence.mean() >= trials.precisions[trials.start].mean()
    assert trials.precisions[choice.setting].mean() >= trials.precisions[trials.start].mean()
    assert choice.setting.keyword_weight not in (0.0, tuning.KEYWORDS_ALONE)


def trials_of(data: Examples, values: dict[Setting, np.ndarray], start: Setting = tuning.DEFAULT) -> Trials:
    """Settings of which everything is written down."""
    return Trials(data, np.arange(len(data)), values, values, start, 0, 0.0)


@pytest.mark.parametrize("other", [Setting(1.0, 0.5), Setting(1.0, 0.0, WEIGHTINGS[0]), Setting(2.0, 0.0)])
def test_a_step_from_the_default_must_be_worth_its_price(words: Collection, other: Setting) -> None:
    data = judged(words, [f"word{i}" for i in range(COUNT)])
    plain = np.full(COUNT, 0.5)
    noise = np.random.default_rng(0).normal(0, 0.2, COUNT)
    little, much = (plain + gain + noise - noise.mean() for gain in (1e-5, 0.1))
    assert trials_of(data, {tuning.DEFAULT: plain, other: little}).choose().setting == tuning.DEFAULT
    assert trials_of(data, {tuning.DEFAULT: plain, other: much}).choose().setting == other


@pytest.mark.parametrize("leg", [DENSE, KEYWORD])
def test_neither_leg_is_dropped_on_few_queries(
    words: Collection, monkeypatch: pytest.MonkeyPatch, leg: Setting
) -> None:
    data = judged(words, [f"word{i}" for i in range(COUNT)])
    trials = trials_of(data, {tuning.DEFAULT: np.full(COUNT, 0.2), leg: np.full(COUNT, 0.9)})
    assert trials.choose().setting == tuning.DEFAULT
    monkeypatch.setattr(tuning, "_FEWEST_FOR_LEG", COUNT)
    assert trials.choose().setting == leg
    assert trials.choose(without=[0]).setting == tuning.DEFAULT


def test_the_ranking_of_a_setting_is_the_served_one(collection: Collection) -> None:
    """With every document a candidate, exact ranking with a hop and the layer's agree."""
    queries = {f"q{i}": text for i, text in enumerate(["apple bread", "honey ice", "kale lemon", "oat pear"])}
    qrels = {f"q{i}": {f"d{(3 * i) % 16}": 1.0, f"d{i}": 2.0} for i in range(4)}
    examples = examples_from_judgements(collection, queries, qrels)
    setting = Setting(0.4, 1.0)
    head = head_of(setting, collection.store.dimension)
    top = Ranking(examples).top(head, hop_strength=setting.hop_strength)
    asked = [Query(id, text) for id, text in queries.items()]
    run = make_run(collection, asked, head=head, depth=10)
    ids = collection.ids_at(examples.snapshot, top)
    assert ids == [[id for id, _ in run[query.id]] for query in asked]
    plain = make_run(collection, asked, System(hops=1), head=head, depth=10)
    assert plain != run
    assert evaluate(run, qrels)["nDCG@10"]


def test_training_starts_from_what_was_tuned(words: Collection) -> None:
    examples = judged(words, [f"word{i}" for i in range(COUNT)])
    start = head_of(Setting(2.5, 0.5), words.store.dimension)
    trained = finetune(examples, TrainingOptions(epochs=1, learning_rate=1e-6, keywords=False), start=start)
    assert trained.head.keyword_weight.tolist() == [2.5]
    assert trained.head.hop_strength.item() == 0.5
    assert not torch.equal(trained.head.query_delta, start.query_delta)


def test_k1_and_b_are_chosen_where_they_decide(engine: SearchEngine) -> None:
    """Answers are long; short documents repeat the word. Only where both count less do answers come first."""
    made = engine.create("lengths")
    filler = " ".join(f"filler{i}" for i in range(12))
    answers = [Document(f"a{i}", f"word{i} other{i} {filler}") for i in range(COUNT)]
    decoys = [Document(f"b{i}", f"word{i} word{i}") for i in range(COUNT)]
    made.ingest([*answers, *decoys])
    texts = {f"q{i:03}": f"word{i} other{i}" for i in range(COUNT)}
    examples = examples_from_judgements(made, texts, {f"q{i:03}": {f"a{i}": 1.0} for i in range(COUNT)})
    none = Examples(
        examples.snapshot,
        examples.texts,
        np.zeros_like(examples.states),
        examples.relevant,
        {},
        examples.digest,
    )
    tuned = tune(none)
    assert tuned.setting.bm25 in WEIGHTINGS
    assert tuned.gate.passed
    assert tuned.scores["tuned"] > tuned.scores["untuned"]
    k1, b = tuned.setting.bm25 or (0, 0)
    assert f"k1 {k1:g}, b {b:g}" in str(tuned.setting)
    assert setting_from(tuned.record) == tuned.setting == setting_of(tuned.head)
    head = train_head(examples, TrainingOptions(epochs=1), start=tuned.head)
    assert head.keyword_weighting == tuned.setting.bm25
    before = Ranking(none).top(tuned.head)
    np.testing.assert_array_equal(before[:, 0], [at[0] for at, _ in none.relevant])


def test_a_record_of_before_has_the_numbers_of_the_index() -> None:
    assert setting_from({"keyword_weight": 0.4, "hop_strength": 0.5}) == Setting(0.4, 0.5, None)


def test_training_on_fewer_queries_than_tuning_needs_starts_from_the_present_search(
    collection: Collection,
) -> None:
    """Ten queries are tuned by; nine are trained on as they are, and are no error."""
    queries = {f"q{i}": f"number{i}" for i in range(MIN_QUERIES)}
    data = examples_from_judgements(
        collection, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(MIN_QUERIES)}
    )
    observer = Recorder()
    options = TrainingOptions(epochs=1, folds=0)
    finetune(data.subset(list(range(MIN_QUERIES - 1))), options, observer=observer)
    assert "settings" not in {step.stage for step in observer.steps}
    finetune(data, options, observer=observer)
    assert "settings" in {step.stage for step in observer.steps}


def test_too_few_queries_outside_a_fold_choose_no_setting(collection: Collection) -> None:
    """Without a fold fewer may be left than a choice needs: the start stays, however good another is."""
    queries = {f"q{i}": f"number{i}" for i in range(16)}
    data = examples_from_judgements(collection, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(16)})
    trials = Trials.of(data)
    better = Setting(2.5, 0.0)
    values = {setting: np.zeros(16) for setting in trials.values} | {better: np.ones(16)}
    trials = replace(trials, values=values, precisions=values)
    assert trials.choose(without=list(range(6))).setting == better
    assert trials.choose(without=list(range(7))).setting == trials.start


def test_a_setting_is_not_chosen_on_the_query_that_it_is_judged_on(words: Collection) -> None:
    """Each of ten settings is right for two queries, and one is half right everywhere."""
    data = judged(words, [f"word{i}" for i in range(COUNT)]).subset(range(20))
    values = {tuning.DEFAULT: np.zeros(20), Setting(0.5, 0.0): np.full(20, 0.5)}
    values |= {Setting(1.0, 0.1 + number): (np.arange(20) % 10 == number) * 1.0 for number in range(10)}
    choice = trials_of(data, values).choose()
    assert choice.setting == Setting(0.5, 0.0)
    assert choice.crossed.all.tolist() == [0.5] * 20


def test_the_start_is_scored_as_it_is_and_no_query_is_left_out_that_can_be_afforded(
    words: Collection,
) -> None:
    """With k1 and b of its own every setting is tried with them too."""
    start = Setting(0.8, 0.25, (1.7, 0.0))
    examples = judged(words, [f"word{i}" for i in range(COUNT)])
    trials = Trials.of(examples, start=start)
    assert trials.drawn.tolist() == [*range(COUNT)]
    assert {Setting(weight, 0.0, start.bm25) for weight in (0.8, 1.3)} < {*trials.values}
    assert setting_from(tuning.recorded(start)) == start  # b = 0 is a choice


def test_a_choice_that_is_worse_on_the_other_queries_leaves_the_start(words: Collection) -> None:
    """Each setting fails on one query only, for which the others choose it."""
    data = judged(words, [f"word{i}" for i in range(COUNT)]).subset(range(20))
    values = {tuning.DEFAULT: np.full(20, 0.6)}
    for number in range(20):
        values[Setting(1.0, 0.001 * (number + 1))] = (np.arange(20) != number) * 0.9
    choice = trials_of(data, values).choose()
    assert choice.setting == tuning.DEFAULT
    assert choice.crossed.all.tolist() == [0.6] * 20


def test_queries_are_left_out_by_their_places_among_all(words: Collection) -> None:
    data = judged(words, [f"word{i}" for i in range(COUNT)])
    start = np.arange(20) / 20
    values = {DENSE: np.zeros(20), KEYWORD: np.zeros(20), tuning.DEFAULT: start}
    trials = replace(trials_of(data.subset(range(20)), values), examples=data, drawn=np.arange(0, 80, 4))
    choice = trials.choose(without=[4, 5])
    assert choice.setting == tuning.DEFAULT
    assert choice.crossed.all.tolist() == np.delete(start, 1).tolist()
