"""Judgements that mean nothing show themselves before anything is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, finetune
from dsearch.training.gate.noise import PRIOR_OF_NOISE, permutation_p_value, probability_of_noise
from dsearch.training.tune import tune
from dsearch.types import Document

COUNT = 40


@pytest.fixture
def examples(engine: SearchEngine) -> Examples:
    collection: Collection = engine.create("words")
    collection.ingest([Document(id=f"d{i}", text=f"word{i} common{i % 7}") for i in range(2 * COUNT)])
    queries = {f"q{i:03}": f"word{i}" for i in range(COUNT)}
    judged = {f"q{i:03}": {f"d{i}": 1.0} for i in range(COUNT)}
    return examples_from_judgements(collection, queries, judged)


def dealt(examples: Examples, by: int) -> Examples:
    """The judgements of each query go to another one."""
    of = examples.relevant
    return replace(examples, relevant=[*of[by:], *of[:by]])


def test_judgements_that_the_live_search_confirms_mean_something(examples: Examples) -> None:
    head = Head(examples.states.shape[1]).eval()
    assert probability_of_noise(examples, head) < 0.01
    assert probability_of_noise(dealt(examples, 3), head) > PRIOR_OF_NOISE


def test_one_document_for_all_queries_means_nothing(examples: Examples) -> None:
    one = replace(examples, relevant=[examples.relevant[0]] * COUNT)
    assert probability_of_noise(one, Head(examples.states.shape[1]).eval()) > PRIOR_OF_NOISE


def test_a_permutation_p_value_by_hand() -> None:
    """Three queries, of six permutations only the given one fits all: 1/6."""
    generator = np.random.default_rng(0)
    assert permutation_p_value(np.eye(3), generator) == pytest.approx(1 / 6, abs=0.02)
    assert permutation_p_value(np.ones((3, 3)), generator) == 1.0


def test_nothing_goes_live_by_judgements_that_mean_nothing(examples: Examples) -> None:
    noise = dealt(examples, 3)
    trained = finetune(noise, TrainingOptions(epochs=2))
    assert trained.goes_live is None
    assert trained.gate.verdict != "passed"
    assert not tune(noise).passed
