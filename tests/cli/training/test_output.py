"""Lines about a training: what answers, what is kept, and how to go back."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from dsearch.cli.training import output
from dsearch.cli.training.output import (
    Outcome,
    _served,
    answers_now,
    epochs_text,
    is_kept,
    kept_lines,
    leg_lines,
    outcome_of_task,
)
from dsearch.jobs import TrainingJob
from dsearch.training import Registration


def test_a_version_that_answers_is_told_with_its_way_back() -> None:
    undo = "dsearch rollback -c papers"
    assert answers_now("v2", undo) == f"v2 answers now. Undo: {undo}"
    assert "Undo" not in answers_now("v2", None)


@pytest.mark.parametrize("live", [True, False])
def test_values_learned_by_a_server_are_told(live: bool) -> None:
    gate = {"verdict": "passed", "reason": "r", "measure": "log loss", "p_value": 0.01, "slices": []}
    gate |= {"alpha": 0.05, "harm": 0.3, "margin": 0.01, "min_queries": 5, "canary_overlap": None}
    result = {"live": live, "model": "v2", "trained": "v2", "parent": "v1", "examples": 9, "epochs": 3}
    back = "dsearch rollback -c papers"
    result |= {"verdict": "It predicts year.", "reason": "r", "seconds": 1.0, "gate": gate, "undo": back}
    outcome = outcome_of_task("papers", TrainingJob(objective="context", field="year"), result)
    if live:
        assert outcome.lines[0] == "It predicts year."
        assert outcome.lines[-1].endswith(f"Undo: {back}")
    else:
        assert outcome.lines[-1].startswith("v2 is kept but does not answer; predict with model='v2', or:")


def test_a_kept_version_says_how_to_use_it() -> None:
    promote = "or: dsearch promote v2 -c papers"
    assert is_kept("papers", "v2") == f"v2 is kept but does not answer; try it with --model v2, {promote}"
    assert is_kept("papers", "v2", "ask it").endswith(f"answer; ask it, {promote}")


def test_a_version_that_came_too_late_is_named_with_the_reason() -> None:
    """The tuned search, or one with a memory, may pass in place of the version that was trained."""
    kept = Registration("v2", None, "v1", "no gain")
    assert kept_lines("papers", kept) == [is_kept("papers", "v2")]
    late = replace(kept, reason="v4 became live meanwhile", passed="v3", outdated_by="v4")
    assert kept_lines("papers", late) == ["v4 became live meanwhile", is_kept("papers", "v3")]


@pytest.mark.parametrize(("live", "answers"), [(None, "v2"), ("v2", "v2"), ("v1", "v1")])
def test_json_names_what_was_trained_and_what_answers(
    monkeypatch: pytest.MonkeyPatch, live: str | None, answers: str
) -> None:
    """The tuned search may have become live in place of the version that was trained."""
    monkeypatch.setattr(output, "_lines_of_ranking", lambda *_: [])
    learned: Any = SimpleNamespace(result=SimpleNamespace(record={"epochs": 3}))
    job = TrainingJob(self_supervised=True)
    outcome = output.outcome_of("papers", job, learned, Registration("v2", live, "v0", "r", "s"))
    expected = {"version": answers, "trained": "v2", "live": live is not None, "reason": "r", "verdict": "s"}
    assert outcome.record == {**expected, "previous": None, "undo": None, "epochs": 3}
    assert outcome.live == (live is not None)


@pytest.mark.parametrize(
    ("epochs", "text"),
    [
        (0, "0 epochs: no amount of training answered held-out queries better"),
        (1, "1 epoch"),
        (3, "3 epochs"),
        ("2 to 4", "2 to 4 epochs"),
    ],
)
def test_epochs_are_counted(epochs: int | str, text: str) -> None:
    assert epochs_text(epochs) == text


def test_what_is_served_of_a_training_is_told_unless_it_is_all() -> None:
    assert _served(1.0, 1.0) == ""
    assert _served(0.5, 1.0) == ", of which 50% is served, for the sake of unseen documents"
    assert _served(1.0, 2.0) == ", keywords weighed 2 times as high, for the sake of unseen documents"


def test_a_leg_is_named_only_where_it_is_better_than_both() -> None:
    assert leg_lines({"scores": {"untuned": 0.5, "keyword": 0.5, "dense": 0.3}}) == []
    [line] = leg_lines({"scores": {"untuned": 0.5, "keyword": 0.51, "dense": 0.3}})
    assert line.startswith("  keyword alone answers the judged queries better than both legs untuned")
    assert leg_lines({"scores": {"keyword": 0.9}}) == leg_lines({"scores": None}) == []


@pytest.mark.parametrize(
    ("live", "promote", "stops"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_an_outcome_is_printed_and_stops_if_the_gate_prevented_it(
    capsys: pytest.CaptureFixture[str], live: bool, promote: bool, stops: bool
) -> None:
    outcome = Outcome(live, {"a": 1}, ["one", "two"])
    for as_json in (False, True):
        code: Any = None
        try:
            outcome.show(json=as_json, promote=promote)
        except typer.Exit as stopped:
            code = stopped.exit_code
        assert code == (3 if stops else None)
        printed = capsys.readouterr().out
        assert json.loads(printed) == {"a": 1} if as_json else printed == "one\ntwo\n"
