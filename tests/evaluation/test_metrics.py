from __future__ import annotations

import math

import ir_measures
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.errors import InvalidRequest
from dsearch.evaluation import evaluate, mean_values, without_positives

ORACLE = {
    "nDCG@10": "nDCG@10",
    "nDCG@3": "nDCG@3",
    "nDCG": "nDCG",
    "Recall@100": "R@100",
    "Recall@2": "R@2",
    "RR@10": "RR@10",
    "RR@1": "RR@1",
    "RR": "RR",
    "AP": "AP",
    "AP@5": "AP@5",
    "P@5": "P@5",
}
DOCUMENTS = [f"d{n}" for n in range(30)]
GRADES = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 4).map(float), min_size=1, max_size=20)
QRELS = st.dictionaries(st.sampled_from(["q1", "q2", "q3", "q4"]), GRADES, min_size=1)
RANKINGS = st.lists(st.sampled_from(DOCUMENTS), unique=True, max_size=30)
RUNS = st.dictionaries(st.sampled_from(["q1", "q2", "q3", "q5"]), RANKINGS)


def with_scores(rankings):
    return {q: [(d, float(100 - n)) for n, d in enumerate(ranking)] for q, ranking in rankings.items()}


def oracle(run, qrels):
    """ir_measures on the queries that have a relevant document; it skips rankings that are empty."""
    left_out = set(without_positives(qrels))
    judged = {q: {d: int(g) for d, g in by.items()} for q, by in qrels.items() if q not in left_out}
    values = {name: dict.fromkeys(judged, 0.0) for name in ORACLE}
    if not judged:
        return values
    measures = {ir_measures.parse_measure(theirs): ours for ours, theirs in ORACLE.items()}
    scored = {q: dict(ranking) for q, ranking in run.items() if q in judged and ranking}
    if scored:
        for metric in ir_measures.iter_calc(list(measures), judged, scored):
            values[measures[metric.measure]][metric.query_id] = metric.value
    return values


@given(QRELS, RUNS)
def test_agrees_with_ir_measures(qrels, rankings):
    run = with_scores(rankings)
    ours = evaluate(run, qrels, tuple(ORACLE))
    theirs = oracle(run, qrels)
    for name in ORACLE:
        assert ours[name] == pytest.approx(theirs[name], abs=1e-6), name
        assert all(0 <= value <= 1 + 1e-12 for value in ours[name].values())


def test_the_hand_worked_example():
    qrels = {"q": {"a": 3.0, "b": 1.0, "c": 0.0, "z": 2.0}}
    run = {"q": [("c", 9.0), ("b", 8.0), ("unjudged", 7.0), ("a", 6.0)]}
    values = mean_values(evaluate(run, qrels, ("nDCG@4", "Recall@3", "RR@10", "AP", "P@5")))
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert values == pytest.approx(
        {
            "nDCG@4": (1 / math.log2(3) + 3 / math.log2(5)) / ideal,
            "Recall@3": 1 / 3,
            "RR@10": 1 / 2,
            "AP": (1 / 2 + 2 / 4) / 3,
            "P@5": 2 / 5,
        }
    )


def test_the_order_counts_and_the_scores_do_not():
    qrels = {"q": {"a": 1.0}}
    assert evaluate({"q": [("b", 1.0), ("a", 5.0)]}, qrels, ("RR",)) == {"RR": {"q": 0.5}}


def test_queries_without_results_score_zero_and_unjudged_queries_are_ignored():
    values = evaluate({"stranger": [("a", 1.0)], "empty": []}, {"missing": {"a": 1.0}, "empty": {"a": 1.0}})
    assert {name: list(by) for name, by in values.items()} == {name: ["missing", "empty"] for name in values}
    assert set(mean_values(values).values()) == {0.0}


def test_excluded_pairs_leave_ranking_and_judgements():
    qrels = {"q": {"source": 4.0, "a": 1.0}, "other": {"source": 1.0}}
    run = {"q": [("source", 3.0), ("x", 2.0), ("a", 1.0)], "other": [("source", 1.0)]}
    values = evaluate(run, qrels, ("nDCG@2", "RR"), exclude={"q": {"source"}})
    assert values["RR"] == {
        "q": 0.5,
        "other": 1.0,
    }  # `a` moved up to rank 2
    assert values["nDCG@2"]["q"] == pytest.approx(1 / math.log2(3))


def test_queries_that_lose_their_last_positive_are_left_out():
    qrels = {"q": {"source": 4.0, "a": 0.0}, "none": {"a": 0.0}, "kept": {"a": 1.0}}
    assert list(evaluate({}, qrels, ("AP",), exclude={"q": {"source"}})["AP"]) == ["kept"]
    assert without_positives(qrels) == ["none"]


def test_negative_grades_gain_nothing():
    qrels = {"q": {"a": -2.0, "b": 1.0}}
    values = mean_values(evaluate({"q": [("a", 2.0), ("b", 1.0)]}, qrels, ("nDCG", "RR", "AP")))
    assert values == pytest.approx({"nDCG": 1 / math.log2(3), "RR": 0.5, "AP": 0.5})


def test_a_document_ranked_twice_is_refused():
    with pytest.raises(InvalidRequest, match="query 'q': a document is ranked twice"):
        evaluate({"q": [("a", 2.0), ("a", 1.0)]}, {"q": {"a": 1.0}})


@pytest.mark.parametrize("name", ["ndcg@10", "nDCG@0", "nDCG@-1", "P", "MRR@10", "", "AP@"])
def test_unknown_measures_name_the_known(name):
    with pytest.raises(InvalidRequest, match="use one of nDCG, Recall, RR, AP, P"):
        evaluate({}, {"q": {"a": 1.0}}, (name,))


def test_no_judgements_give_no_values():
    assert evaluate({}, {}, ("AP",)) == {"AP": {}}
    assert mean_values({"AP": {}}) == {"AP": 0.0}


def test_more_queries_than_one_block(monkeypatch):
    qrels = {f"q{n}": {"a": 1.0 + n % 3, "b": 1.0} for n in range(50)}
    run = {query: [("b", 2.0), ("a", 1.0)][: n % 3] for n, query in enumerate(qrels)}
    whole = evaluate(run, qrels)
    monkeypatch.setattr("dsearch.evaluation.metrics.QUERIES_AT_ONCE", 7)
    parts = evaluate(run, qrels)
    assert parts == whole
    assert list(parts["AP"]) == list(qrels)
