from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.errors import InvalidRequest
from dsearch.evaluation import bootstrap_mean, build_report, evaluate, paired_bootstrap, split_seen
from dsearch.evaluation import report as module


def values(numbers):
    return {f"q{n}": float(number) for n, number in enumerate(numbers)}


def test_the_interval_is_the_one_that_theory_gives():
    numbers = np.random.default_rng(1).normal(0.3, 1.0, size=400)
    interval = bootstrap_mean(values(numbers))
    half = 1.96 * numbers.std() / np.sqrt(400)
    assert interval.mean == pytest.approx(numbers.mean())
    assert interval.low == pytest.approx(numbers.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(numbers.mean() + half, abs=0.01)


def test_pairing_takes_out_what_both_systems_share():
    shared = np.random.default_rng(2).uniform(0, 10, size=100)
    interval = paired_bootstrap(values(shared + 0.1), values(shared))
    assert (interval.low, interval.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert interval.p_one_sided == pytest.approx(1 / 10_001)


def test_pairs_are_made_by_id_not_by_place():
    a = {"x": 1.0, "y": 0.0}
    assert paired_bootstrap(a, {"y": 0.0, "x": 1.0}).high == 0.0


def test_equal_systems_have_p_one():
    assert paired_bootstrap(values([0.5, 1]), values([0.5, 1])).p_one_sided == 1.0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.integers(0, 3))
@settings(max_examples=by_size(30, 300))
def test_the_interval_holds_for_any_values(numbers, seed):
    interval = bootstrap_mean(values(numbers), samples=200, seed=seed)
    assert min(numbers) - 1e-9 <= interval.low <= interval.high <= max(numbers) + 1e-9
    assert interval == bootstrap_mean(values(numbers), samples=200, seed=seed)


def test_small_blocks_give_sound_intervals_too(monkeypatch):
    numbers = np.random.default_rng(3).normal(size=50)
    whole = bootstrap_mean(values(numbers))
    monkeypatch.setattr(module, "DRAWS_AT_ONCE", 10 * 50)
    parts = bootstrap_mean(values(numbers))
    assert parts == whole  # the same stream of draws, cut elsewhere


def test_bad_requests():
    with pytest.raises(
        InvalidRequest, match=r"2 values and 1 cannot be paired: 1 query is in one only, .*'q1'"
    ):
        paired_bootstrap(values([1, 2]), values([1]))
    with pytest.raises(InvalidRequest, match="0 values and 10 samples"):
        bootstrap_mean({}, samples=10)
    with pytest.raises(InvalidRequest, match="1 value and 0 samples"):
        bootstrap_mean(values([1]), samples=0)


QRELS = {"s": {"a": 1.0}, "u1": {"b": 1.0}, "u2": {"c": 2.0, "a": 0.0}}
TRAIN = {"t": {"a": 1.0}}
DENSE = {"s": [("a", 1.0)], "u1": [("x", 2.0), ("b", 1.0)]}
HYBRID = {"s": [("a", 1.0)], "u1": [("b", 1.0)], "u2": [("c", 1.0)]}


def report(**options):
    seen, unseen = split_seen(QRELS, TRAIN)
    systems = {"dense": evaluate(DENSE, QRELS, ("RR",)), "hybrid": evaluate(HYBRID, QRELS, ("RR",))}
    return build_report(systems, groups={"seen": seen, "unseen": unseen}, samples=500, **options)


def test_report_has_every_group_and_system():
    result = report()
    assert [(line.group, line.queries, line.measure) for line in result.lines] == [
        ("all", 3, "RR"),
        ("seen", 1, "RR"),
        ("unseen", 2, "RR"),
    ]
    assert result.cell("dense", "RR").mean == pytest.approx(0.5)
    assert result.cell("dense", "RR").difference is None
    assert result.cell("hybrid", "RR", "seen").difference.mean == 0.0
    assert result.cell("hybrid", "RR", "unseen").difference.mean == pytest.approx(0.75)


def test_report_differences_are_the_paired_bootstrap():
    result = report()
    a, b = evaluate(HYBRID, QRELS, ("RR",))["RR"], evaluate(DENSE, QRELS, ("RR",))["RR"]
    expected = paired_bootstrap(a, b, samples=500)
    assert result.cell("hybrid", "RR").difference == expected


def test_report_keeps_systems_and_measures_apart():
    draw = np.random.default_rng(4).uniform
    systems = {name: {m: values(draw(size=30)) for m in ("AP", "RR")} for name in ("a", "b", "c")}
    result = build_report(systems, baseline="b", samples=100)
    for name, by_measure in systems.items():
        for measure, by_query in by_measure.items():
            cell = result.cell(name, measure)
            assert cell.mean == pytest.approx(np.mean(list(by_query.values())))
            if name != "b":
                expected = paired_bootstrap(by_query, systems["b"][measure], samples=100)
                assert cell.difference.mean == pytest.approx(expected.mean)
                assert cell.difference.low == pytest.approx(expected.low)


def test_report_as_text_and_json():
    result = report(baseline="hybrid", left_out=2)
    text = result.to_text()
    assert text.splitlines()[0].split() == ["queries", "measure", "dense", "hybrid"]
    assert "unseen (2)" in text
    assert "-0.7500 [-1.0000, -0.5000]" in text
    assert "difference to hybrid" in text
    assert "2 judged queries without a relevant document" in text
    assert json.loads(json.dumps(result.to_dict()))["lines"][0]["cells"]["hybrid"]["difference"] is None


def test_a_leg_that_is_better_by_itself_is_named():
    """Against the system that answers, the last one; a leg that is worse is not mentioned."""
    qrels = {f"q{i}": {"a": 1.0} for i in range(8)}
    first, second = [("a", 2.0), ("b", 1.0)], [("b", 2.0), ("a", 1.0)]
    runs = {
        "dense": dict.fromkeys(qrels, first),
        "keyword": dict.fromkeys(qrels, second),
        "hybrid": dict.fromkeys(qrels, first),
        "trained v1": {query: second if query < "q6" else first for query in qrels},
    }
    systems = {name: evaluate(run, qrels) for name, run in runs.items()}
    better = build_report(systems, baseline="hybrid", samples=500).better_leg
    assert better is not None
    assert (better.leg, better.system) == ("dense", "trained v1")
    assert better.difference.mean == pytest.approx(better.mean - better.system_mean)
    assert "dense alone answers these queries better than trained v1: nDCG@10 1.0000 against" in better.text
    assert "chance" not in better.text
    assert build_report({name: systems[name] for name in ("dense", "keyword", "hybrid")}).better_leg is None
    nearly = {**systems, "trained v1": evaluate({**runs["dense"], "q0": second}, qrels)}
    told = build_report(nearly, baseline="hybrid", samples=500)
    assert "which may be chance" in told.to_text().splitlines()[-1]


def test_groups_without_queries_are_not_shown():
    result = build_report({"one": evaluate(DENSE, QRELS, ("RR",))}, groups={"seen": [], "strangers": ["zz"]})
    assert [line.group for line in result.lines] == ["all"]
    assert "bootstrap" not in result.to_text()


def test_report_refuses_what_cannot_be_compared():
    dense = evaluate(DENSE, QRELS, ("RR",))
    with pytest.raises(InvalidRequest, match="at least one system"):
        build_report({})
    with pytest.raises(InvalidRequest, match="baseline 'bm25' is not among the systems"):
        build_report({"dense": dense}, baseline="bm25")
    with pytest.raises(InvalidRequest, match="system 'b' has measures"):
        build_report({"a": dense, "b": evaluate(DENSE, QRELS, ("AP",))})
    with pytest.raises(InvalidRequest, match="1 query has a value in one system only, such as 'u2'"):
        build_report({"a": dense, "b": {"RR": {"s": 1.0, "u1": 1.0}}})
    with pytest.raises(InvalidRequest, match="no cell for 'dense', 'AP', 'all'"):
        build_report({"dense": dense}).cell("dense", "AP")


def test_judgements_without_a_relevant_document_have_an_empty_report():
    systems = {name: evaluate({}, {"q": {"a": 0.0}}) for name in ("dense", "hybrid")}
    told = build_report(systems, baseline="hybrid", left_out=1)
    assert (told.lines, told.better_leg, told.left_out) == ([], None, 1)
