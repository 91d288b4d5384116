"""What is left to gain, counted by hand."""

from __future__ import annotations

import pytest

from dsearch.engine import Collection, SearchEngine
from dsearch.training import examples_from_judgements, headroom
from dsearch.training.gate.held_out import Headroom
from dsearch.types import Document


@pytest.fixture
def many(engine: SearchEngine) -> Collection:
    collection = engine.create("many")
    collection.ingest([Document(id=f"d{i:03}", text=f"word{i}") for i in range(150)])
    return collection


def test_recall_and_first_hits(many: Collection) -> None:
    queries = {"found": "word3", "half": "word4", "lost": "word5"}
    served = [hit.id for hit in many.search("word5", limit=150).hits]
    qrels = {
        "found": {"d003": 1.0},
        "half": {"d004": 1.0, many.search("word4", limit=60).hits[50].id: 1.0},
        "lost": {served[140]: 1.0},
    }
    found = headroom(examples_from_judgements(many, queries, qrels))
    assert (found.queries, found.judgements) == (3, 4)
    assert found.recall_at_10 == pytest.approx((1 + 0.5 + 0) / 3)
    assert found.recall_at_100 == pytest.approx((1 + 1 + 0) / 3)
    assert found.answered_first == pytest.approx(2 / 3)
    assert "recall@10 0.500, recall@100 0.667, answered at rank 1: 67%" in found.to_text()


def test_it_says_when_training_is_unlikely_to_help() -> None:
    assert Headroom(800, 900, 0.8, 0.95, 0.6).doubts == []
    assert "unlikely" not in Headroom(800, 900, 0.8, 0.95, 0.6).to_text()
    assert "97% of the queries are answered at rank 1" in Headroom(800, 900, 0.98, 1.0, 0.97).to_text()
    assert "among the first ten already" in Headroom(800, 900, 0.95, 0.96, 0.8).to_text()
    assert "40 training queries are too few" in Headroom(40, 50, 0.5, 0.9, 0.3).to_text()
    assert Headroom(40, 50, 0.5, 0.9, 0.3).to_dict()["doubts"]
