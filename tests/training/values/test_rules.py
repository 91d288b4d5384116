"""What a predictor is trained and judged by: kinds of values, folds, a constant answer, the live search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.training import Gate, examples_from_judgements, finetune_values, value_examples
from dsearch.training.options import ValueOptions
from dsearch.training.values import finetune, task
from dsearch.training.values.finetune import ValueScores, judge_values, search_by
from dsearch.training.values.task import (
    HeldEvidence,
    ValueData,
    measures_of_values,
    scores_of_values,
    train_on_values,
)
from dsearch.types import Document

COUNT = 12
ONCE = ValueOptions(epochs=1)


def with_values(engine: SearchEngine, name: str, values: list[Any]) -> Collection:
    made = engine.create(name)
    field = {"value": values} if isinstance(values[0], list) else {}
    made.ingest(
        Document(
            f"d{n}", f"word{n} about{n % 3}", metadata={"f": value}, **({"value": value} if field else {})
        )
        for n, value in enumerate(values)
    )
    return made


def test_what_is_true_or_false_is_a_label_and_labels_are_in_order(engine: SearchEngine) -> None:
    """A set's order differs between processes, and with it what a resumed training would mean by a column."""
    truths = value_examples(with_values(engine, "truths", [n % 3 == 0 for n in range(COUNT)]), "f")
    assert (truths.kind, truths.labels) == ("label", (False, True))
    assert truths.values[:3].tolist() == [[0, 1], [1, 0], [1, 0]]
    names = [f"k{n % 6}" for n in range(COUNT)]
    named = value_examples(with_values(engine, "names", names), "f")
    assert named.labels == ("k0", "k1", "k2", "k3", "k4", "k5")


def test_a_label_stands_for_several_documents_and_a_changed_value_is_other_data(engine: SearchEngine) -> None:
    labels = [f"k{n % 6}" for n in range(COUNT)]
    changed = [*labels[:3], "k4", *labels[4:]]
    digests = [
        value_examples(with_values(engine, name, values), "f").digest
        for name, values in (("one", labels), ("same", labels), ("other", changed))
    ]
    assert digests[0] == digests[1] != digests[2]
    with_seven = with_values(engine, "more", [f"k{n % 7}" for n in range(COUNT)])
    with pytest.raises(InvalidRequest, match="7 different 'f' in 12 documents"):
        value_examples(with_seven, "f")


def test_vectors_of_several_lengths_are_of_several_kinds(engine: SearchEngine) -> None:
    made = with_values(engine, "t", [[float(n)] * (2 if n else 3) for n in range(COUNT)])
    with pytest.raises(InvalidRequest, match="make it of one kind"):
        value_examples(made, "value")


def test_of_too_few_documents_none_is_held_out(engine: SearchEngine) -> None:
    examples = value_examples(with_values(engine, "t", [float(n) for n in range(COUNT)]), "f")
    assert finetune_values(examples, replace(ONCE, folds=7)).before is None
    assert finetune_values(examples, replace(ONCE, folds=6)).before is not None


def test_a_fold_is_judged_at_the_checkpoint_that_the_others_choose(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fold is far better trained, the other far better untrained: chosen by itself each would gain."""
    examples = value_examples(with_values(engine, "t", [float(n) for n in range(COUNT)]), "f")
    gains, rest = np.linspace(1, 2, 6), [np.zeros((6, 1), np.float32)] * 2
    folds = [
        finetune._Fold(np.arange(6) + 6 * number, np.zeros(6), np.stack([np.zeros(6), gain]), rest)
        for number, gain in enumerate((gains, -3 * gains))
    ]
    monkeypatch.setattr(finetune._Session, "folds", lambda *_: folds)
    monkeypatch.setattr(finetune, "_CHECKPOINTS", 1)
    judged: list[ValueScores] = []
    real = judge_values

    def noted(scores: Any, *more: Any, **options: Any) -> Any:
        judged.append(scores)
        return real(scores, *more, **options)

    monkeypatch.setattr(finetune, "judge_values", noted)
    finetune_values(examples, ONCE)
    np.testing.assert_array_equal(judged[0].after, [*np.zeros(6), *(-3 * gains)])


def test_a_predictor_has_to_beat_the_same_answer_for_all() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 60)
    before, better = np.zeros(60), 0.5 + noise
    options: Any = {"measures": None, "canary_overlap": None, "measure": "R²", "seed": 0}
    assert judge_values(ValueScores(before, better, before), Gate(), **options).passed
    constant = judge_values(ValueScores(before, better, better + 0.1), Gate(), **options)
    assert not constant.passed
    assert "always giving the mean" in constant.reason


def test_what_becomes_of_search_is_that_of_each_head(collection: Collection) -> None:
    judged = examples_from_judgements(
        collection,
        {f"q{n}": f"number{n}" for n in range(10)},
        {f"q{n}": {f"d{n}": 1.0} for n in range(10)},
    )
    states = np.roll(judged.states, 1, axis=0)  # only words lead to the answers
    before, after = Head(32), Head(32)
    with torch.no_grad():
        before.keyword_weight.fill_(0.0)
        after.keyword_weight.fill_(30.0)
    first, last = search_by(replace(judged, states=states), before, after)
    assert last > first + 0.2
    assert search_by(replace(judged, states=states), after, before) == (last, first)


def test_keywords_count_as_in_the_search_that_it_starts_from(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    seen: list[Any] = []

    def stopped(examples: Any, **_: Any) -> None:
        seen.append(examples.snapshot)
        raise Stopped

    monkeypatch.setattr(finetune, "ValueData", stopped)
    start = Head(32)
    start.weigh_keywords(0.5, 0.4)
    with pytest.raises(Stopped):
        finetune_values(value_examples(collection, "number"), ONCE, start=start)
    own = collection.snapshot.weighed((0.5, 0.4))
    assert (seen[0].all_keyword_scores(["number3"]) == own.all_keyword_scores(["number3"])).all()


def test_a_query_that_is_no_document_leaves_none_out(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among some of the documents, too; and a predictor does not hop."""
    examples = value_examples(collection, "number")
    asked = replace(examples, own=np.full(len(examples), -1))
    data, which = ValueData(asked, keywords=True), np.array([3, 8, 15])
    held = HeldEvidence(data, which)
    head = Head(32)
    found = held.predict(head, torch.arange(4))
    keyword = torch.as_tensor(data.keyword(np.arange(4))[:, which])
    logits = (data.states[:4] @ data.corpus[which].T + keyword) / head.temperature
    expected = logits.softmax(-1) @ data.values[which]
    np.testing.assert_allclose(found.detach(), expected.detach(), rtol=1e-5)
    start = Head(32)
    with torch.no_grad():
        start.hop_strength.fill_(2.0)
    courses: list[Any] = []
    monkeypatch.setattr(task, "run_course", lambda _, course, **__: courses.append(course))
    trained = train_on_values(data, replace(ONCE, epochs=7, seed=3), start=start, epochs=2)
    assert trained.hop_strength.item() == 0.0
    course = courses[0]
    assert (course.examples, course.epochs, course.until, course.seed) == (len(examples), 7, 2, 3)
    train_on_values(data, replace(ONCE, most_examples=5))
    assert courses[1].examples == 5


def test_scores_are_of_the_pool_that_is_served(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = value_examples(collection, "number")
    held = HeldEvidence(ValueData(examples, keywords=False))
    queries = np.arange(len(examples))
    whole = held.served(Head(32), queries)
    monkeypatch.setattr(task, "CANDIDATES", 2)
    few = held.served(Head(32), queries)
    assert not np.allclose(whole, few)
    assert scores_of_values(examples, queries, examples.wanted).tolist() == [1.0] * len(examples)


def test_a_fold_is_not_learned_from(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = value_examples(with_values(engine, "t", [float(n) for n in range(COUNT)]), "f")
    seen: list[tuple[Any, Any]] = []
    real = train_on_values

    def noted(*given: Any, queries: Any, evidence: Any, **options: Any) -> Head:
        seen.append((queries, evidence))
        return real(*given, queries=queries, evidence=evidence, **options)

    monkeypatch.setattr(finetune, "train_on_values", noted)
    finetune_values(examples, replace(ONCE, folds=3))
    folds = [sorted({*range(COUNT)} - {*queries.tolist()}) for queries, _ in seen[:3]]
    assert sorted(row for fold in folds for row in fold) == [*range(COUNT)]
    assert all(queries.tolist() == evidence.tolist() for queries, evidence in seen[:3])
    assert seen[3] == (None, None)  # all of them, for what is served


def test_the_error_is_in_the_units_of_the_field(collection: Collection) -> None:
    examples = value_examples(collection, "number")
    queries = np.arange(len(examples))
    measured = measures_of_values(examples, queries, examples.wanted + np.float32(0.5))
    assert measured["rmse"] == pytest.approx(0.5 * float(examples.scale[0]), rel=1e-5)
    assert float(examples.scale[0]) > 2
    assert measured["r2"] == pytest.approx(0.75, rel=1e-5)


def test_documents_without_the_field_are_told_and_left_alone(engine: SearchEngine) -> None:
    made = engine.create("t")
    of_none = [Document(f"x{n}", f"word{n} of none") for n in range(3)]
    others = [Document(f"d{n}", f"word{n} about{n % 3}", metadata={"f": float(n)}) for n in range(COUNT)]
    made.ingest([*of_none, *others])
    made.delete(["d11"])
    examples = value_examples(made, "f")
    assert examples.left_out == {"documents without the field": 3}
    assert examples.texts == [f"word{n} about{n % 3}" for n in range(COUNT - 1)]
    told = examples.values[:, 0] * examples.scale[0] + examples.centre[0]
    np.testing.assert_allclose(told, np.arange(COUNT - 1), atol=1e-4)
