"""Judged queries that nothing answers are told by the scores of their first hits."""

from __future__ import annotations

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.engine.evaluate import judged_answerability


def test_queries_that_nothing_answers_have_lower_first_scores(collection: Collection) -> None:
    queries = {"a": "apple bread", "b": "lemon mango", "c": "zebra", "d": "quantum tunnel", "e": " "}
    qrels = {"a": {"d0": 1}, "b": {"d10": 2}, "c": {"d0": 0}, "d": {"d3": 0, "d4": -1}, "e": {"d0": 0}}
    version = collection.add_model(Head(32).eval(), {})
    for model in (None, "v0", version):
        found = judged_answerability(collection, queries, qrels, model=model)
        assert found is not None
        assert (found.answerable, found.unanswerable, found.auroc) == (2, 2, 1.0)
    for of_one_kind in ({"a": {"d0": 1}}, {"c": {"d0": 0}}, {}):
        assert judged_answerability(collection, queries, of_one_kind) is None
