"""Queries that a version, or one of its ancestors, was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.evaluate import encode_queries, trained_apart, trained_on
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.engine.state.remembered import JUDGEMENTS
from dsearch.store import MemoryRow
from dsearch.types import Document, Query

ASKED = [Query("1", "the  River\nsource"), Query("2", "a boat"), Query("3", "nothing of this")]


@pytest.mark.parametrize("stored", [True, False])
def test_queries_are_recognised_by_text_or_embedding_through_all_ancestors(
    tmp_path: Path, stored: bool
) -> None:
    encoder = HashingEncoder()
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as engine:
        collection = engine.create("t")
        collection.ingest([Document("d", "river boat")])
        head = Head(encoder_dim=32)
        versions, parent = [], "v0"
        for text in ("The river source", "a boat"):
            texts = ["something else", text]
            learned = LearnedQueries(texts) if stored else LearnedQueries(None, encoder.encode_queries(texts))
            parent = collection.add_model(head, {}, parent=parent, learned_from=learned)
            versions.append(parent)
        parent = collection.add_model(head, {}, parent=parent)  # tuned, say: it stores none of its own
        states = encode_queries(collection, ASKED)

        def known(version: str) -> list[str]:
            return trained_on(collection, version, ASKED, states)

        assert known("v0") == []
        assert known(versions[0]) == ["1"]
        assert known(versions[1]) == ["1", "2"]
        assert known(parent) == ["1", "2"]
        apart = trained_apart(collection, [versions[1], versions[0], "v0"], ASKED, states)
        assert apart is not None
        assert apart.groups == {"trained on": ["1", "2"], "not trained on": ["3"]}
        said = "2 of these 3 queries were trained on (2 by v2, 1 by v1); only the group not trained on shows"
        assert apart.warning.startswith(said)
        alone = trained_apart(collection, versions, ASKED[:2], states[:2])
        assert alone is not None
        assert alone.groups == {"trained on": ["1", "2"], "not trained on": []}
        assert alone.warning.endswith("none of them shows how well new queries are answered: judge others")
        assert trained_apart(collection, ["v0"], ASKED, states) is None


def test_queries_that_a_memory_answers_by_are_recognised_by_their_text(collection: Collection) -> None:
    """Whether its version was trained with them or they were inserted since."""
    states = np.eye(1, 32, dtype=np.float32)
    head, at = Head(32), np.zeros(1, np.int64)
    head.memory = QueryMemory(states, states, at + 1, at, at, np.ones(1), texts=["one"])
    version = collection.add_model(head.eval(), {})
    row = int(collection.store.rows()[0])
    collection.remembered.add([MemoryRow("The River  source", states[0], {row: 1.0}, JUDGEMENTS, "", 0)])
    asked = encode_queries(collection, ASKED)
    assert trained_on(collection, version, ASKED, asked) == ["1"]
    assert trained_on(collection, "v0", ASKED, asked) == []
