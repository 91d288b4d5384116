"""What a model keeps of the queries that it learned from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.evaluate import encode_queries, trained_on
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, finetune
from dsearch.training.finetune import head
from dsearch.training.finetune.head import queries_of
from dsearch.training.registry import register
from dsearch.types import Document, Query

COUNT = 24
QUERIES = {f"q{i:02d}": f"question{i % 8} asked{i} thing{i % 3}" for i in range(COUNT)}
JUDGED = {f"q{i:02d}": {f"d{i}": 2.0, f"d{(i + 12) % COUNT}": 1.0} for i in range(COUNT)}


@pytest.fixture
def synonyms(engine: SearchEngine) -> Collection:
    made = engine.create("synonyms")
    made.ingest([Document(f"d{i}", f"answer{i % 8} filler{i} thing{i % 3}") for i in range(COUNT)])
    return made


@pytest.fixture
def examples(synonyms: Collection) -> Examples:
    return examples_from_judgements(synonyms, QUERIES, JUDGED)


@pytest.mark.parametrize("source", ["judgements", "clicks", "documents"])
def test_a_version_knows_the_queries_that_it_learned_from(
    synonyms: Collection, examples: Examples, source: str
) -> None:
    """By their texts or, of clicks and of the documents' own sentences, by their embeddings."""
    examples = replace(examples, source=source)  # type: ignore[arg-type]
    trained = finetune(examples, TrainingOptions(epochs=1, folds=0, tune=False))
    assert trained.learned_from is not None
    assert trained.learned_from.texts == (list(QUERIES.values()) if source == "judgements" else None)
    made = register(synonyms, trained)
    asked = [Query("new", "which nobody asked"), Query("known", QUERIES["q03"])]
    assert trained_on(synonyms, made.version, asked, encode_queries(synonyms, asked)) == ["known"]


def test_all_texts_are_kept_and_of_many_embeddings_some(
    examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MOST_KEPT", 7)
    assert queries_of(examples, seed=0).texts == list(QUERIES.values())
    states = queries_of(replace(examples, source="clicks"), seed=0).states
    assert states is not None
    at = [int(np.flatnonzero((examples.states == state).all(1))[0]) for state in states]
    assert len(set(at)) == 7
    assert at == sorted(at)
