"""The report of a tuning, and when it ends with the exit code of what was held back."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from dsearch.cli.commands import tune as command
from dsearch.cli.training.session import JudgedFolder
from dsearch.jobs import TuningJob
from dsearch.training import Registration

RECORD: dict[str, Any] = {
    "version": "v2",
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
    "text": "gate: refused: too few",
}


@pytest.mark.parametrize(
    ("live", "options", "code"), [(True, [], 0), (False, [], 3), (False, ["--no-promote"], 0)]
)
def test_a_tuning_ends_as_refused_only_where_it_was_to_be_promoted(
    dsearch: Any, monkeypatch: pytest.MonkeyPatch, beir: Any, live: bool, options: list[str], code: int
) -> None:
    monkeypatch.setattr(command, "_tune_here", lambda *_: {**RECORD, "live": live})
    ended, out, _ = dsearch("tune", "--data", beir, "-c", "papers", *options)
    assert ended == code
    lines = out.splitlines()
    assert lines[0].startswith("It stays.")
    assert ("Undo: " in lines[-1]) == live
    assert "nDCG@10 on 9 queries: untuned 0.5000, dense 0.4000, tuned 0.6000" in lines
    assert "gate: refused: too few" in lines
    assert lines[-1].startswith("v2 answers now" if live else "v2 is kept but does not answer")


def test_the_record_is_json_without_the_text(
    dsearch: Any, monkeypatch: pytest.MonkeyPatch, beir: Any
) -> None:
    monkeypatch.setattr(command, "_tune_here", lambda *_: dict(RECORD))
    code, out, _ = dsearch("tune", "--data", beir, "--json")
    assert code == 3
    assert json.loads(out) == {name: value for name, value in RECORD.items() if name != "text"}


@pytest.mark.parametrize(
    ("registered", "live", "text"),
    [
        (Registration("v2", "v2", "v1", "better", "It is live.", passed="v2"), True, "report"),
        (Registration("v2", None, "v1", "as asked", "It stays.", passed="v2"), False, "report"),
        (
            Registration("v2", None, "v1", "v3 is live now", "It stays.", passed="v2", outdated_by="v3"),
            False,
            "report\nv3 is live now",
        ),
    ],
    ids=["live", "not promoted", "outdated"],
)
def test_what_passed_is_live_only_where_it_answers(
    monkeypatch: pytest.MonkeyPatch, registered: Registration, live: bool, text: str
) -> None:
    learned = SimpleNamespace(
        register=lambda *_: registered,
        summary=lambda _: {"second_stage": None},
        result=SimpleNamespace(gate=SimpleNamespace(to_text=lambda: "report"), record={"seed": 4}),
    )
    monkeypatch.setattr(command, "opened_engine", lambda *_, **__: nullcontext((MagicMock(), None)))
    monkeypatch.setattr(command, "judged_job", lambda _, job, folder: job)
    tuned: list[TuningJob] = []
    monkeypatch.setattr("dsearch.training.run_tuning", lambda _, job, __: tuned.append(job) or learned)
    folder, job = JudgedFolder(Path("judged"), "train"), TuningJob(seed=4, margin=0.5)
    assert command._tune_here("papers", job, folder, None, {}) == {
        "version": "v2",
        "live": live,
        "reason": registered.reason,
        "verdict": registered.sentence,
        "previous": None,
        "undo": None,
        "seed": 4,
        "second_stage": None,
        "text": text,
    }
    assert tuned == [job]
