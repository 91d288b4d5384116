"""Training queries among the keys of their answers: which, how strong, and found by who asks alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, EncodedDocuments, SearchEngine
from dsearch.training import Examples, examples_from_judgements
from dsearch.training.data.examples import with_query_keys
from dsearch.training.finetune.full import further_of
from dsearch.types import Document

TEXTS = {"a": "apples grow on trees", "b": "boats cross the water", "c": "clocks show the time"}


@pytest.fixture
def fruit(tmp_path: Path) -> Iterator[Collection]:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("fruit")
        collection.ingest([Document(id, text) for id, text in TEXTS.items()])
        yield collection


def examples(fruit: Collection, qrels: dict[str, dict[str, float]]) -> Examples:
    return examples_from_judgements(fruit, {id: f"question {id}" for id in qrels}, qrels)


def stored(fruit: Collection) -> EncodedDocuments:
    state = fruit.snapshot
    return EncodedDocuments(state, state.embeddings(np.arange(state.positions)))


def test_each_query_is_a_key_of_its_best_answers(fruit: Collection) -> None:
    asked = examples(
        fruit, {"q0": {"a": 3.0, "b": 2.0, "c": 1.0}, "q1": {"a": 1.0}, "q2": {"c": 1.0, "a": 1.0}}
    )
    documents = with_query_keys(stored(fruit), fruit.store, asked, asked.states, strength=0.5)
    ids = fruit.ids_at(fruit.snapshot, np.array([sorted(documents.further)]))[0]
    assert list(ids) == ["a", "c"]
    of_a, of_c = (documents.further[at] for at in sorted(documents.further))
    np.testing.assert_allclose(of_a.embeddings, 0.5 * asked.states[[0, 1, 2]])
    np.testing.assert_allclose(of_c.embeddings, 0.5 * asked.states[[2]])
    assert of_a.spans.tolist() == [[0, len(TEXTS["a"])]] * 4  # its own key, and three queries
    assert stored(fruit).further == {}


def test_keys_stand_behind_the_passages_that_are_there(fruit: Collection) -> None:
    asked = examples(fruit, {"q0": {"b": 1.0}})
    assert with_query_keys(stored(fruit), fruit.store, asked, asked.states, strength=0.0).further == {}
    once = with_query_keys(stored(fruit), fruit.store, asked, asked.states, strength=0.9)
    twice = with_query_keys(once, fruit.store, asked, asked.states, strength=0.1)
    (found,) = twice.further.values()
    np.testing.assert_allclose(found.embeddings, [0.9 * asked.states[0], 0.1 * asked.states[0]], rtol=1e-6)
    assert len(found.spans) == 3
    further = further_of(twice)
    assert further is not None
    assert len(set(further.owners.tolist())) == 1


def test_of_many_queries_some_are_drawn(fruit: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsearch.training.data.examples.MOST", 4)
    asked = examples(fruit, {f"q{i}": {"a": 1.0} for i in range(9)})
    drawn: list[np.ndarray] = []
    for seed in (0, 0, 1):
        documents = with_query_keys(stored(fruit), fruit.store, asked, asked.states, strength=0.9, seed=seed)
        drawn += [found.embeddings for found in documents.further.values()]
    assert [len(keys) for keys in drawn] == [4, 4, 4]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert not np.array_equal(drawn[0], (0.9 * asked.states[:4]).astype(np.float32))
