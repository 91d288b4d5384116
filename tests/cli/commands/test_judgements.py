"""Judgements of a folder become data of a job, and too few answered queries are told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli.terminal import Terminal

import dsearch.training
from dsearch.cli.training import JudgedFolder, judged_job
from dsearch.jobs import TrainingJob, TuningJob
from dsearch.training.data.validation import CheckedData, DataReport
from dsearch.training.gate.held_out import FEW_QUERIES


def collection(*stored: str) -> Any:
    rows = {id: row for row, id in enumerate(stored)}
    store = SimpleNamespace(rows_of=lambda ids: {id: rows[id] for id in ids if id in rows})
    return SimpleNamespace(name="papers", store=store)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a folder gives, and how it was read."""
    state: dict[str, Any] = {"qrels": {}, "report": DataReport()}

    def check(collection: Any, folder: Path, split: str, *, strict: bool) -> CheckedData:
        state["read"] = folder, split, strict
        return CheckedData({"q1": "cat"}, state["qrels"], state["report"])

    monkeypatch.setattr(dsearch.training, "checked_judgements", check)
    return state


EMPTY: Any = {"queries": {}, "judgements": {}}


def test_only_queries_with_a_stored_relevant_document_are_answered(
    checked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    checked["qrels"] = {
        "q1": {"a": 1.0},
        "q2": {"a": 0.0},
        "q3": {"gone": 2.0},
        "q4": {"b": 0.5, "gone": 1.0},
    }
    judged_job(collection("a", "b"), TrainingJob(**EMPTY), JudgedFolder(Path("f"), "dev", strict=True))
    assert checked["read"] == (Path("f"), "dev", True)
    assert (
        f"2 judged queries have an answer; reliable training needs {FEW_QUERIES}, so {FEW_QUERIES - 2} are "
        "missing: until then `dsearch tune` gains more"
    ) in capsys.readouterr().err
    judged_job(collection("a"), TuningJob(**EMPTY), JudgedFolder(Path("f"), "dev"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("count", "told"), [(FEW_QUERIES - 1, True), (FEW_QUERIES, False)])
def test_enough_queries_need_no_word(
    checked: dict[str, Any], capsys: pytest.CaptureFixture[str], count: int, told: bool
) -> None:
    checked["qrels"] = {f"q{number}": {"a": 1.0} for number in range(count)}
    judged_job(collection("a"), TrainingJob(**EMPTY), JudgedFolder(Path("f"), "train"))
    assert ("are missing" in capsys.readouterr().err) == told


def test_a_job_has_all_that_the_files_say(
    checked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checked["qrels"] = {"q1": {"a": 1.0}}
    checked["report"].add("unknown documents", "f:1: gone")
    (tmp_path / "pairs.tsv").write_text("q1\tb\nq1\ta\n")
    (tmp_path / "teacher.tsv").write_text("q1\ta\t-1.5\n")
    folder = JudgedFolder(tmp_path, "train", tmp_path / "pairs.tsv", tmp_path / "teacher.tsv")
    job = judged_job(collection("a"), TrainingJob(**EMPTY, seed=4), folder)
    assert (job.queries, job.judgements, job.seed) == ({"q1": "cat"}, {"q1": {"a": 1.0}}, 4)
    assert (job.exclude, job.teacher) == ({"q1": ["a", "b"]}, {"q1": {"a": -1.5}})
    assert job.left_out == {"unknown documents": 1}
    assert "left out: unknown documents: 1" in capsys.readouterr().err
    tuned = judged_job(collection("a"), TuningJob(**EMPTY), folder)
    assert tuned.exclude == {"q1": ["a", "b"]}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("train", "--from", "feedback", "--split", "test"), "--split"),
        (("train", "--from", "feedback", "--strict"), "--strict"),
        (("train", "--exclude", "pairs.tsv", "--split", "dev"), "--split, --exclude"),
        (("remember", "river", "d1", "--split", "test"), "--split"),
    ],
)
def test_options_about_judgements_need_some(
    dsearch: Terminal, arguments: tuple[str, ...], named: str
) -> None:
    code, _, err = dsearch(*arguments, "-c", "papers")
    assert code == 1
    assert err == f"dsearch: {named} without --data; give the judgements with --data, or leave it out\n"
