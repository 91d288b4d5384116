"""What "nothing fits" is learned from, that it is worth it, and that ranking does not change for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dsearch.attention import fit_null_slot
from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.evaluation.calibration import answerability
from dsearch.training import (
    TrainingOptions,
    examples_from_judgements,
    finetune,
    learn_null_slot,
    unanswerable_queries,
    with_null_slot,
)
from dsearch.training.finetune import null_slot
from dsearch.training.finetune.null_slot import evidence_of
from dsearch.types import Document

ABSENT = [f"zebra{n} quantum{n} tunnel{n}" for n in range(40)]


@pytest.fixture
def papers(collection: Collection) -> Collection:
    collection.ingest(
        Document(f"p{n}", title=f"thing{n}", text=f"answer{n % 20} filler{n}") for n in range(60)
    )
    return collection


def judged(papers: Collection):
    queries = {f"q{n}": f"question{n % 20} thing{n}" for n in range(60)}
    return examples_from_judgements(papers, queries, {f"q{n}": {f"p{n}": 1.0} for n in range(60)})


def test_which_queries_nothing_answers() -> None:
    qrels = {"a": {"d": 0.0}, "b": {"d": 0.0, "e": 1.0}, "c": {"d": -1.0}, "d": {}, "e": {"d": 0.0}}
    texts = {"a": " one ", "b": "two", "c": "three", "d": "four"}
    assert unanswerable_queries(texts, qrels) == {"a": "one", "c": "three"}


def test_it_tells_what_is_absent_from_what_is_there(papers: Collection) -> None:
    states = papers.encoder.encode_queries(ABSENT)
    head, slot = learn_null_slot(Head(32), judged(papers), ABSENT, states)
    assert slot.opened
    assert slot.measures.auroc > 0.85
    assert slot.measures.calibration_error is not None
    assert slot.measures.calibration_error < 0.15
    assert slot.gain > 0.2
    assert head.null_slot is not None
    version = papers.add_model(head, {"null_slot": slot.to_dict()})
    new = [f"unheard{n} unseen{n} unknown{n}" for n in range(20)]
    found = papers.search_batch([*judged(papers).texts[:20], *new], model=version)
    weights = np.array([one.attention.null_weight for one in found])
    assert weights[:20].mean() < weights[20:].mean() - 0.2


def test_each_fold_is_measured_by_the_slot_of_the_others(
    papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worked out with evidence that is made up; the slot itself is fitted to all queries."""
    examples, states = judged(papers), papers.encoder.encode_queries(ABSENT)
    texts = [*examples.texts, *ABSENT]
    drawn = np.random.default_rng(5).normal(size=len(texts)) + (np.arange(len(texts)) < len(examples))
    evidence = dict(zip(texts, drawn, strict=True))

    def made_up(_head: Head, _snapshot: object, some: list[str], states: np.ndarray) -> np.ndarray:
        np.testing.assert_array_equal(states, papers.encoder.encode_queries(some))
        return np.array([evidence[text] for text in some])

    monkeypatch.setattr(null_slot, "evidence_of", made_up)
    _, slot = learn_null_slot(Head(32), examples, ABSENT, states, seed=3)
    every = np.array([evidence[text] for text in texts])
    wrong = np.arange(len(texts)) >= len(examples)
    fold = np.random.default_rng(3).permutation(len(texts)) % null_slot.FOLDS
    level, slope = fit_null_slot(torch.as_tensor(every), torch.as_tensor(wrong))
    assert (slot.level, slot.slope) == pytest.approx((level, slope))
    crossed = np.zeros(len(texts))
    for number in range(null_slot.FOLDS):
        rest = fold != number
        fitted = fit_null_slot(torch.as_tensor(every[rest]), torch.as_tensor(wrong[rest]))
        crossed[~rest] = 1 / (1 + np.exp(fitted[1] * every[~rest] - fitted[0]))
    assert slot.measures.to_dict() == pytest.approx(answerability(crossed, wrong).to_dict())
    likelihood = np.log(np.where(wrong, crossed, 1 - crossed)).mean()
    share = wrong.mean()
    assert slot.gain == pytest.approx(likelihood - share * np.log(share) - (1 - share) * np.log(1 - share))


@pytest.mark.parametrize(("absent", "opened"), [(-2.0, True), (2.0, False)])
def test_a_slot_that_grows_with_the_evidence_is_not_opened(
    papers: Collection, monkeypatch: pytest.MonkeyPatch, absent: float, opened: bool
) -> None:
    """Where what nothing answers scores higher, "nothing fits" would be said of the best hits."""

    def made_up(_head: Head, _snapshot: object, some: list[str], _states: object) -> np.ndarray:
        draw = np.random.default_rng(1).normal(size=len(some))
        return draw + np.array([absent if text in ABSENT else 0.0 for text in some])

    monkeypatch.setattr(null_slot, "evidence_of", made_up)
    states = papers.encoder.encode_queries(ABSENT)
    head, slot = learn_null_slot(Head(32), judged(papers), ABSENT, states)
    assert slot.gain > 0.1  # it tells them apart either way
    assert slot.opened is opened
    assert (head.null_slot is not None) is opened


def test_a_slot_that_says_nothing_is_not_opened(papers: Collection) -> None:
    """The same queries on both sides: nothing tells them apart."""
    examples = judged(papers)
    same = examples.texts[::2]
    head, slot = learn_null_slot(Head(32), examples, same, examples.states[::2])
    assert not slot.opened
    assert head.null_slot is None
    assert "left out" in slot.to_text()


def test_queries_that_were_trained_on_are_asked_of_heads_that_were_not(papers: Collection) -> None:
    """With a head that knows its queries by heart the slot would be set too high for all others."""
    examples, options = judged(papers), TrainingOptions(epochs=30, learning_rate=2e-2, retention=0.0, folds=0)
    trained = finetune(examples, replace(options, tune=False))
    before = {name: tensor.clone() for name, tensor in trained.head.state_dict().items()}
    asked: list[list[int]] = []
    known = evidence_of(trained.head, examples.snapshot, examples.texts, examples.states).mean()

    def without(held_out: list[int]) -> Head:
        asked.append(held_out)
        return Head(32)

    states = papers.encoder.encode_queries(ABSENT)
    head, slot = learn_null_slot(trained.head, examples, ABSENT, states, train_without=without)
    assert slot.opened
    assert head.null_slot is not None
    assert trained.head.null_slot is None
    assert sorted(query for part in asked for query in part) == list(range(60))
    unknown = evidence_of(Head(32), examples.snapshot, examples.texts, examples.states).mean()
    assert known > unknown + 1
    for name, tensor in before.items():  # the ranking is what it was
        np.testing.assert_array_equal(tensor.numpy(), head.state_dict()[name].numpy())


def test_after_training_the_record_says_so(papers: Collection) -> None:
    examples, options = judged(papers), TrainingOptions(epochs=2, folds=0, tune=False)
    trained, slot = with_null_slot(finetune(examples, options), examples, options, ABSENT, papers.encoder)
    assert trained.record["null_slot"]["opened"] == slot.opened
    with pytest.raises(InvalidRequest, match="use scope head"):
        with_null_slot(trained, examples, replace(options, scope="query"), ABSENT, papers.encoder)
    with pytest.raises(InvalidRequest, match="2 judged queries that nothing answers and 60"):
        learn_null_slot(trained.head, examples, ABSENT[:2], papers.encoder.encode_queries(ABSENT[:2]))
