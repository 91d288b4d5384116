"""What a task is given reaches what does its work, for each kind of task, and each option of its job does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from support.cli.recorder import holds
from support.doors import arrays

import dsearch.training
from dsearch.declared import options_of
from dsearch.jobs import EvaluationJob, LearningJob, SavingJob, TrainingJob, TuningJob
from dsearch.service.tasks import jobs, manager
from dsearch.service.tasks.manager import Job, Tasks, TaskWork
from dsearch.service.tasks.store import StoredTask, TaskKind

OUTCOME = {
    "record": "given-record",
    "passed": "given-passed",
    "reason": "given-reason",
    "left_out": "given-left-out",
    "second_stage": "given-stage",
    "sequence": 37,
    "encoded": 29,
}
REQUEST = {"promote": "given-promote", "accept": "given-accept", "queries": "given-queries"}
RUN = {"collection": "given-collection", "tell": "given-tell", "cancelled": "given-cancelled"}
OPENED = {"memory_bytes": 41, "opener": "given-opener"}
APART = {**OPENED, "request": "given-queries"}
MADE = {"device": "cuda:1", "folder": "given-folder", "task": "given-task"}
PROMOTED = {name: REQUEST[name] for name in ("promote", "accept")}
LEARNED = {name: OUTCOME[name] for name in ("record", "passed", "reason", "left_out", "second_stage")}
FILE = {"name": "given-name", "offset": 31, "size": 43}
ARRIVES: dict[str, tuple[TaskKind, dict[str, Any], dict[str, Any]]] = {
    "files": (
        "files",
        {"file": "given-file", "files": [FILE]},
        RUN | FILE | {"place": "given-place", "folder": "given-folder"},
    ),
    "train": ("train", REQUEST, RUN | APART | MADE | PROMOTED | LEARNED),
    "tune": ("tune", REQUEST, RUN | APART | MADE | PROMOTED | LEARNED),
    "save": (
        "save",
        {**REQUEST, "file": "given-file"},
        RUN | APART | MADE | PROMOTED | {"place": "given-place"},
    ),
    "judge": (
        "save",
        {**REQUEST, "version": "given-version"},
        RUN | {"memory_bytes": 41, "version": "given-version"} | PROMOTED | {"passed": "given-passed"},
    ),
    "evaluate": ("evaluate", REQUEST, RUN | APART),
    "refresh": ("refresh", {"kind": "given-kind"}, RUN | {"kind": "given-kind"}),
    "compact": ("compact", {}, RUN | {"patience_s": manager.READERS_S}),
    "migrate": (
        "migrate",
        {},
        RUN | {"memory_bytes": 41, "opener": "given-opener", "sequence": 37, "encoded": 29},
    ),
}
"""By the way of a task: its kind, its request, and what must arrive."""


class _Catalogue:
    """Collections that note what is done with them."""

    def __init__(self, outside: MagicMock):
        self._outside = outside
        self.finish_migration = outside.finish_migration

    @contextmanager
    def writing(self, name: str, **options: Any) -> Iterator[MagicMock]:
        self._outside.writing(name, **options)
        yield self._outside.collection


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    outside = MagicMock()
    outside.run_spawned.return_value = OUTCOME
    for name in ("run_spawned", "register_learned", "compact", "store_files", "public_report"):
        monkeypatch.setattr(manager, name, getattr(outside, name))
    for name in ("register_verdict", "summary"):
        monkeypatch.setattr(dsearch.training, name, getattr(outside, name))
    return outside


def _given(outside: MagicMock) -> dict[str, Any]:
    """What a `TaskWork` is made with."""
    uploads = {"uploads": MagicMock(), "forms": MagicMock(), "stored": outside.stored}
    return {"open_engine": "given-opener", "catalogue": _Catalogue(outside), **uploads}


@pytest.mark.parametrize("way", ARRIVES)
def test_what_a_task_is_given_reaches_what_does_its_work(outside: MagicMock, way: str) -> None:
    kind, request, arrives = ARRIVES[way]
    given = _given(outside)
    given["uploads"].verified.return_value = given["forms"].verified.return_value = "given-place"
    work = TaskWork(**given, memory_bytes=41, device="cuda:1")
    task = StoredTask("given-task", kind, "given-collection", "running", "", None, None, 1, None, None, None)
    run: Any = {"folder": Path("given-folder"), "report": "given-tell", "cancelled": "given-cancelled"}
    work.result(Job(task, dict(request), **run))
    calls = arrays([[name, args, options] for name, args, options in outside.mock_calls])
    missing = [name for name, value in arrives.items() if not holds(calls, value)]
    assert not missing, f"{missing} of {calls}"


def test_a_move_that_is_repeated_tells_of_all_that_was_encoded(outside: MagicMock) -> None:
    outside.finish_migration.side_effect = [None, MagicMock()]
    given = _given(outside)
    task = StoredTask("t", "migrate", "papers", "running", "", None, None, 1, None, None, None)
    run: Any = {"folder": Path("given-folder"), "report": None, "cancelled": None}
    TaskWork(**given, memory_bytes=None, device="cpu").result(Job(task, {}, **run))
    prepared = [call.args[1].encoded for call in outside.finish_migration.call_args_list]
    assert prepared == [OUTCOME["encoded"], 2 * OUTCOME["encoded"]]


def test_what_tasks_are_made_with_reaches_their_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MagicMock()
    monkeypatch.setattr(manager, "TaskWork", made.work)
    monkeypatch.setattr(manager, "TaskUploads", made.uploads)
    engine: Any = MagicMock()
    engine.home.path = tmp_path
    opened: Any = "given-opener"
    for device, memory_bytes in (("cpu", 41), ("cuda:1", 41), ("cuda:1", None)):
        made.reset_mock()
        how: dict[str, Any] = {"memory_bytes": memory_bytes, "device": device, "stored": made.stored}
        Tasks(engine, engine, opened, model_upload_bytes=29, **how)
        (_, opener, _, _), options = made.work.call_args
        assert (opener, options) == ("given-opener", how)
        assert made.uploads.of_models.call_args.args == (tmp_path / manager.FOLDER_NAME, 29)
        assert made.uploads.of_forms.call_args.args == (tmp_path / manager.FOLDER_NAME,)
    Tasks(engine, engine, opened)
    assert made.work.call_args.kwargs["memory_bytes"] > 2**20  # the machine's


JOBS: dict[type[LearningJob], str] = {
    TrainingJob: "run_training",
    TuningJob: "run_tuning",
    SavingJob: "judge_layer",
}


@pytest.mark.parametrize("job", JOBS)
def test_each_option_of_a_request_reaches_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: type[LearningJob]
) -> None:
    outside = MagicMock()
    monkeypatch.setattr(jobs, "be_first_to_go", lambda: None)
    monkeypatch.setattr("dsearch.service.tasks.results.write_learned", outside.write_learned)
    monkeypatch.setattr("dsearch.engine.parts_from_file", outside.parts_from_file)
    outside.parts_from_file.return_value = ("given-head", "given-change")
    for name in JOBS.values():
        monkeypatch.setattr(dsearch.training, name, getattr(outside, name))
    aliases = {name: about.alias or name for name, (_, about) in options_of(job).items()}
    given = {field.name: f"<{field.name}>" for field in dataclasses.fields(job)}
    request = {aliases.get(name, name): value for name, value in given.items()}
    own = {
        "parent": "given-parent",
        "record": "given-record",
        "encoder": "given-encoder",
        "place": "given-place",
    }
    work: Any = {TrainingJob: jobs.train_job, TuningJob: jobs.tune_job, SavingJob: jobs.save_job}[job]
    work(lambda _: None, outside.open_engine, "given-collection", {**request, **own}, tmp_path, "cuda:1")
    calls = arrays([[name, args, options] for name, args, options in outside.mock_calls])
    arrives = {*given.values(), "given-collection"}
    arrives |= {"given-head", "given-change", *own.values()} if job is SavingJob else set()
    arrives |= {"cuda:1"} if job is TrainingJob else set()
    missing = [value for value in arrives if not holds(calls, value)]
    assert not missing, f"{missing} of {calls}"


def test_each_option_of_a_request_reaches_the_verdict_and_the_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = MagicMock()
    monkeypatch.setattr(jobs, "be_first_to_go", lambda: None)
    for name in ("judged_scores", "run_evaluation"):
        monkeypatch.setattr(dsearch.training, name, getattr(outside, name))
    for job, work in (
        (
            SavingJob,
            lambda request: jobs.judge_job(lambda _: None, outside.opener, "given-name", request),
        ),
        (
            EvaluationJob,
            lambda request: jobs.evaluate_job(lambda _: None, outside.opener, "given-name", request),
        ),
    ):
        outside.reset_mock()
        given = {field.name: f"given-{field.name}" for field in dataclasses.fields(job)}
        work(given)
        calls = arrays([[name, args, options] for name, args, options in outside.mock_calls])
        missing = [value for value in given.values() if not holds(calls, value)]
        assert not missing, f"{missing} of {calls}"
