"""The report of a tuning, and when it ends with the exit code of what was held back."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest

from dsearch.cli.commands import train as command

GATE: dict[str, Any] = {
    "verdict": "refused",
    "reason": "too few",
    "measure": "nDCG@10",
    "p_value": None,
    "decision": None,
    "canary_overlap": None,
    "alpha": 0.05,
    "harm": 0.3,
    "margin": 0.01,
    "min_queries": 5,
    "slices": [],
}
RECORD: dict[str, Any] = {
    "model": "v2",
    "live": False,
    "reason": "too few",
    "verdict": "It stays.",
    "undo": "dsearch rollback -c papers",
    "keyword_weight": 0.5,
    "hop_strength": 0.0,
    "k1": None,
    "b": None,
    "examples": 9,
    "scores": {"untuned": 0.5, "dense": 0.4, "tuned": 0.6},
    "second_stage": None,
    "gate": GATE,
}


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The result of every tuning."""
    result = dict(RECORD)
    monkeypatch.setattr(command, "judged_by", lambda engine, home, collection, job, folder: job)
    monkeypatch.setattr(command, "writing", lambda *_, **__: nullcontext(MagicMock()))
    monkeypatch.setattr(command, "finished", lambda *_: dict(result))
    return result


@pytest.mark.parametrize(
    ("live", "options", "code"), [(True, [], 0), (False, [], 3), (False, ["--no-promote"], 0)]
)
def test_a_tuning_ends_as_refused_only_where_it_was_to_be_promoted(
    dsearch: Any, tuned: dict[str, Any], beir: Any, live: bool, options: list[str], code: int
) -> None:
    tuned["live"] = live
    ended, out, _ = dsearch("tune", "--data", beir, "-c", "papers", *options)
    assert ended == code
    lines = out.splitlines()
    assert lines[0].startswith("It stays.")
    assert ("Undo: " in lines[-1]) == live
    assert "nDCG@10 on 9 queries: untuned 0.5000, dense 0.4000, tuned 0.6000" in lines
    assert "gate: refused: too few" in lines
    assert lines[-1].startswith("v2 is live now" if live else "v2 is stored but not live")


@pytest.mark.parametrize("late", [None, "v3"])
def test_a_version_that_came_too_late_says_why(
    dsearch: Any, tuned: dict[str, Any], beir: Any, late: str | None
) -> None:
    tuned |= {"outdated_by": late, "reason": "v3 is live now"}
    out = dsearch("tune", "--data", beir, "-c", "papers")[1]
    assert ("v3 is live now" in out.splitlines()) == (late is not None)


@pytest.mark.usefixtures("tuned")
def test_the_result_is_json_with_the_version(dsearch: Any, beir: Any) -> None:
    code, out, _ = dsearch("tune", "--data", beir, "--json")
    assert code == 3
    assert json.loads(out) == {
        ("version" if name == "model" else name): value for name, value in RECORD.items()
    }
