"""An evaluation of systems: which are compared, what they are called, and whom it teaches confidence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.errors import InvalidRequest
from dsearch.jobs import EvaluationJob
from dsearch.training import evaluation
from dsearch.training.evaluation import _systems, run_evaluation
from dsearch.types import Progress

QUERIES = {"q1": "cat", "q2": "dog", "q3": " "}
JUDGED = {"q1": {"a": 1.0}, "q2": {"b": 1.0}, "q3": {"a": 1.0}, "q4": {"a": 1.0}}


def job(**options: Any) -> EvaluationJob:
    return EvaluationJob(QUERIES, JUDGED, **options)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What was called; nothing is searched."""
    calls: dict[str, list[Any]] = {"calibrated": [], "run": [], "report": []}
    report = SimpleNamespace(to_dict=lambda: {"systems": []})

    def build(scores: Any, baseline: str, groups: Any, *, left_out: int) -> Any:
        calls["report"].append((list(scores), baseline, groups, left_out))
        return report

    def run(collection: Any, queries: Any, system: Any, *, states: Any) -> str:
        calls["run"].append(([query.id for query in queries], system.mode, system.model, states))
        return "run"

    def calibrate(collection: Any, version: str, texts: Any, qrels: Any) -> None:
        calls["calibrated"].append(version)

    states = SimpleNamespace(of=lambda model: f"states of {model}")
    monkeypatch.setattr(evaluation, "QueryStates", lambda collection, queries: states)
    monkeypatch.setattr(evaluation, "make_run", run)
    monkeypatch.setattr(evaluation, "evaluate", lambda run, qrels: {"nDCG@10": {"q1": 0.5, "q2": 1.0}})
    monkeypatch.setattr(evaluation, "build_report", build)
    monkeypatch.setattr(evaluation, "calibrate_by_judgements", calibrate)
    monkeypatch.setattr(evaluation, "trained_apart", lambda *_: None)
    monkeypatch.setattr(evaluation, "absent_documents_warning", lambda *_: None)
    return calls


def collection(live: str = "v1") -> Any:
    return SimpleNamespace(live_model=live)


@pytest.mark.parametrize(
    ("live", "options", "calibrated"),
    [
        ("v1", {}, ["v1"]),
        ("v1", {"model": "v1"}, ["v1"]),
        ("v1", {"model": "v2"}, []),
        ("v1", {"training": {"q1": {"a": 1.0}}}, []),
    ],
)
def test_confidence_is_calibrated_for_what_answers_by_judgements_that_it_did_not_learn(
    done: dict[str, list[Any]], live: str, options: dict[str, Any], calibrated: list[str]
) -> None:
    run_evaluation(collection(live), job(**options))
    assert done["calibrated"] == calibrated


def test_every_system_ranks_the_queries_that_have_words(done: dict[str, list[Any]]) -> None:
    seen: list[Progress] = []
    observer: Any = SimpleNamespace(progress=seen.append)
    result = run_evaluation(collection(), job(), observer)
    assert [queries for queries, *_ in done["run"]] == [["q1", "q2"]] * 4
    assert [(mode, model) for _, mode, model, _ in done["run"]] == [
        ("dense", "v0"),
        ("keyword", "v0"),
        ("hybrid", "v0"),
        ("hybrid", "v1"),
    ]
    assert done["run"][-1][3] == "states of v1"
    assert [(step.done, step.total) for step in seen] == [(done, 4) for done in range(5)]
    [(systems, baseline, groups, left_out)] = done["report"]
    assert (systems, baseline) == (["dense", "keyword", "hybrid", "trained v1"], "hybrid")
    assert (groups, left_out) == ({}, 0)
    assert result["systems"] == []


def test_judged_queries_without_a_text_are_left_out_and_named(
    done: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would count 0: nobody can search for them."""
    scored: list[list[str]] = []
    monkeypatch.setattr(evaluation, "evaluate", lambda run, qrels: scored.append(list(qrels)) or {})
    result = run_evaluation(collection(), job())
    assert scored == [["q1", "q2"]] * 4
    assert "'q3', 'q4'" in result["warning"]
    nobody = EvaluationJob({"q3": " "}, JUDGED)
    with pytest.raises(InvalidRequest, match="'q1'"):
        run_evaluation(collection(), nobody)


def test_systems_are_named_by_version_and_way() -> None:
    named = _systems(collection(), job(systems=[{"model": "v0"}, {"mode": "dense"}, {"model": "v2"}]))
    assert list(named) == ["v0 hybrid", "v1 dense", "v2 hybrid"]
    assert list(_systems(collection("v0"), job())) == ["dense", "keyword", "hybrid"]
    assert list(_systems(collection("v0"), job(model="v3")))[-1] == "trained v3"


def test_two_systems_are_compared_query_by_query(done: dict[str, list[Any]]) -> None:
    one = run_evaluation(collection(), job(systems=[{"model": "v0"}]))
    assert "comparison" not in one
    two = run_evaluation(collection(), job(systems=[{"model": "v2"}, {"model": "v0"}]))
    assert (two["comparison"]["first"], two["comparison"]["second"]) == ("v2 hybrid", "v0 hybrid")
    assert done["report"][-1][1] == "v2 hybrid"


def test_warnings_are_one_sentence_after_the_other(
    done: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = SimpleNamespace(groups={"learned": ["q1"]}, warning="learned from")
    monkeypatch.setattr(evaluation, "trained_apart", lambda *_: apart)
    monkeypatch.setattr(evaluation, "absent_documents_warning", lambda *_: "absent")
    result = run_evaluation(collection(), job(training={"q1": {"a": 1.0}}))
    assert result["warning"].endswith("; learned from; absent")
    groups = done["report"][-1][2]
    assert groups["learned"] == ["q1"]
    assert "q1" in groups["seen"]
    assert "q2" in groups["unseen"]
