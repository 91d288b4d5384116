"""Lines about a training: what answers, what is kept, and how to go back."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer

from dsearch.cli.training import (
    live_line,
    show_training,
    stored_line,
    training_lines,
)
from dsearch.jobs import TrainingJob

GATE: dict[str, Any] = {
    "verdict": "passed",
    "reason": "r",
    "measure": "log loss",
    "p_value": 0.01,
    "slices": [],
    "alpha": 0.05,
    "harm": 0.3,
    "margin": 0.01,
    "min_queries": 5,
    "canary_overlap": None,
}


def result_of(live: str | None, **others: Any) -> dict[str, Any]:
    """The result of a training that made v2."""
    return {
        "live": live is not None,
        "model": live or "v2",
        "trained": "v2",
        "parent": "v1",
        "passed": live,
        "examples": 9,
        "epochs": 3,
        "seconds": 1.0,
        "gate": GATE,
        "reason": "r",
        "verdict": "It is so.",
        "undo": "dsearch rollback -c papers",
        **others,
    }


@pytest.mark.parametrize("live", ["v2", None])
def test_learned_values_are_told(live: str | None) -> None:
    job = TrainingJob(objective="context", field="year")
    values = {"before": {"accuracy": 0.5}, "after": {"accuracy": 0.75}}
    lines = training_lines("papers", job, result_of(live, kind="label", values=values))
    assert lines[:2] == [
        "It is so.",
        "papers: v2 learned values of 'year' (label) from 9 documents in 1.0 s (3 epochs)",
    ]
    assert "  held-out documents: accuracy 0.5000 → 0.7500" in lines
    if live:
        assert lines[-1].endswith("Undo: dsearch rollback -c papers")
    else:
        assert lines[-1].startswith("v2 is stored but not live; predict with model='v2', or:")


JOB = TrainingJob(self_supervised=True)


def test_a_version_that_came_too_late_is_named_with_the_reason() -> None:
    """The tuned search, or one with a memory, may pass in place of the version that was trained."""
    assert training_lines("papers", JOB, result_of(None))[-1] == stored_line("papers", "v2")
    late = result_of(None, reason="v4 became live meanwhile", passed="v3", outdated_by="v4")
    lines = training_lines("papers", JOB, late)
    assert (lines[-2], lines[-1]) == ("v4 became live meanwhile", stored_line("papers", "v3"))


def test_the_search_that_is_live_in_place_of_the_training_is_named() -> None:
    tuned = {"gate": GATE, "keyword_weight": 0.5, "hop_strength": 0.0}
    lines = training_lines("papers", JOB, result_of("v3", tuned=tuned))
    assert any(line.startswith("tuned search, ") and line.endswith(": passed: r") for line in lines)
    assert lines[-2] == "v3, the tuned search, is better than what answered before"
    stage = {"verdict": "passed", "text": "second stage (steps): passed: r"}
    lines = training_lines("papers", JOB, result_of("v3", second_stage=stage))
    assert lines[-2:] == [stage["text"], live_line("v3", "dsearch rollback -c papers")]


@pytest.mark.parametrize(
    ("live", "promote", "stops"), [("v2", True, False), (None, True, True), (None, False, False)]
)
def test_a_training_is_shown_and_stops_if_the_gate_prevented_it(
    capsys: pytest.CaptureFixture[str], live: str | None, promote: bool, stops: bool
) -> None:
    for as_json in (False, True):
        code: Any = None
        try:
            job = TrainingJob(self_supervised=True, promote=promote)
            show_training("papers", job, result_of(live), json=as_json)
        except typer.Exit as stopped:
            code = stopped.exit_code
        assert code == (3 if stops else None)
        printed = capsys.readouterr().out
        if as_json:
            told = json.loads(printed)
            assert (told["version"], told["live"], told["trained"]) == ("v2", live is not None, "v2")
        else:
            assert printed.startswith("It is so.\npapers: v2 trained on 9 queries in 1.0 s (3 epochs)\n")
