"""Scope `query`: the query encoder learns, documents stay, and what was trained is what answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.training.numbers import PAIRS
from support.training.observers import Recorder

from dsearch.encoder import Encoder
from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.training import (
    Examples,
    TrainingOptions,
    finetune,
    query_options,
    train_student,
)
from dsearch.training.gate.held_out import HeldOut


@pytest.mark.parametrize("method", ["lora", "all"])
def test_the_encoder_learns_and_the_served_search_shows_it(
    numbers: Collection, examples: Examples, tiny: Encoder, method: str
) -> None:
    before, weights = tiny.encode_queries(examples.texts), [p.clone() for p in tiny.parameters()]
    options = query_options(
        encoder_method=method,
        epochs=30,
        folds=0,
        learning_rate=1e-6,
        encoder_learning_rate=1e-2,
        batch_size=8,
    )
    trained = finetune(examples, options, encoder=numbers.encoder)
    assert all(torch.equal(a, b) for a, b in zip(tiny.parameters(), weights, strict=True))
    assert trained.record["scope"] == "query"
    assert trained.record["gate"]["canary_overlap"] is None

    def answered(model: str) -> int:
        found = numbers.search_batch(examples.texts, limit=1, model=model)
        return sum(result.hits[0].id == f"d{i}" for i, result in enumerate(found))

    version = numbers.add_model(trained.head, trained.record, encoder=trained.encoder)
    numbers.promote(version)
    assert answered(version) > answered("v0") + PAIRS / 3
    assert numbers.search_batch(examples.texts[:1], limit=1)[0].stamp.model == version
    assert np.abs(numbers.query_states(examples.texts, "dense").numpy() - before).max() > 0.1
    numbers.promote("v0")
    np.testing.assert_array_equal(numbers.query_states(examples.texts, "dense").numpy(), before)


def test_what_the_trainer_ranks_by_is_what_is_served(numbers: Collection, examples: Examples) -> None:
    options = query_options(epochs=4, folds=0, encoder_learning_rate=1e-2)
    student = train_student(examples, options, encoder=numbers.encoder)
    answers = HeldOut(examples, examples).answers(student.head, student.states(examples))
    version = numbers.add_model(student.head, {}, encoder=student.change)
    found = numbers.search_batch(examples.texts, limit=10, model=version)
    for i, result in enumerate(found):
        ranks = [hit.rank for hit in result.hits if hit.id == f"d{i}"]
        expected = 1 / np.log2(ranks[0] + 1) if ranks else 0.0
        assert answers.all[i] == pytest.approx(expected), (i, ranks)


def test_equal_seeds_give_equal_encoders(numbers: Collection, examples: Examples) -> None:
    options = query_options(epochs=2)
    one, same = (train_student(examples, options, encoder=numbers.encoder) for _ in range(2))
    other = train_student(examples, query_options(epochs=2, seed=1), encoder=numbers.encoder)
    assert one.change is not None
    for name, tensor in one.change.tensors.items():
        assert torch.equal(tensor, same.change.tensors[name])
    assert any(not torch.equal(t, other.change.tensors[name]) for name, t in one.change.tensors.items())


def test_it_is_held_out_and_gated_like_a_head(numbers: Collection, examples: Examples) -> None:
    observer = Recorder()
    trained = finetune(
        examples,
        query_options(epochs=2, folds=2),
        encoder=numbers.encoder,
        observer=observer,
    )
    assert observer.stages == ["validate"] * 4 + ["train"] * 2
    assert trained.gate.slice("all").queries == PAIRS
    assert trained.gate.verdict in ("refused", "cannot tell")


def test_scope_query_asks_for_the_encoder(examples: Examples) -> None:
    with pytest.raises(InvalidRequest, match="scope='query' trains the query encoder; give encoder="):
        finetune(examples, query_options(epochs=1))
    with pytest.raises(InvalidRequest, match="scope='all'; use one of head, query"):
        TrainingOptions(scope="all")
    with pytest.raises(InvalidRequest, match="method='some'; use one of lora, all"):
        query_options(encoder_method="some")
    with pytest.raises(InvalidRequest, match="encoder_learning_rate=0"):
        query_options(encoder_learning_rate=0.0)
