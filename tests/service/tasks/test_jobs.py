"""Jobs in a task's process: what they report, where they go on, and how requests become jobs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.errors import Cancelled
from dsearch.jobs import TrainingJob, TuningJob
from dsearch.service.tasks import jobs
from dsearch.service.tasks.jobs import TaskNote, _observer, _resumed_or_new, job_from_request
from dsearch.training import Epoch, RunFolder
from dsearch.types import Progress


def test_stages_with_epochs_are_reported_by_epoch_and_others_by_step() -> None:
    reported: list[Any] = []
    observer = _observer(reported.append)
    for stage in ("train", "validate", "encode", "tune"):
        observer.progress(Progress(stage, 1, 9, 0.5))
    assert reported == [Progress("encode", 1, 9, 0.5), Progress("tune", 1, 9, 0.5)]
    reported.clear()
    observer.epoch("validate", Epoch(2, 5, 0.25, 0.125, 3.0, {"all": 0.4}, {"all": 0.5}))
    figures = {
        "stage": "validate",
        "epoch": 2,
        "loss": 0.25,
        "retention": 0.125,
        "ndcg_at_10_before": {"all": 0.4},
        "ndcg_at_10": {"all": 0.5},
    }
    assert reported == [Progress("validate", 2, 5, 3.0), TaskNote("metric", figures)]
    reported.clear()
    room: Any = SimpleNamespace(to_dict=lambda: {"left": 0.1})
    observer.headroom(room)
    assert reported == [TaskNote("headroom", {"left": 0.1})]
    assert observer.cancelled() is False


def test_the_same_run_goes_on_and_another_one_begins_anew(tmp_path: Path) -> None:
    open_run = _resumed_or_new(tmp_path)
    first = open_run({"scope": "head", "seed": 1}, False)
    assert first.path == tmp_path / "run"
    (first.path / "metrics.jsonl").write_text('{"stage": "train", "epoch": 1}\n')
    again = open_run({"scope": "head", "seed": 1}, True)
    assert [line["epoch"] for line in again.metrics()] == [1]
    other = open_run({"scope": "head", "seed": 2}, False)
    assert other.metrics() == []
    assert isinstance(other, RunFolder)
    assert other.path == first.path
    (other.path / "metrics.jsonl").write_text('{"stage": "train", "epoch": 2}\n')
    assert [line["epoch"] for line in open_run({"scope": "head", "seed": 2}, True).metrics()] == [2]


def test_a_request_becomes_a_job_and_what_this_release_lacks_is_ignored() -> None:
    job = job_from_request(
        TrainingJob,
        {"queries": {"q": "cat"}, "judgements": {"q": {"d": 1.0}}, "from": "clicks", "old": 1, "seed": 7},
    )
    assert (job.queries, job.judgements, job.source, job.seed) == (
        {"q": "cat"},
        {"q": {"d": 1.0}},
        "clicks",
        7,
    )
    assert job_from_request(TuningJob, {"queries": {}, "judgements": {}, "seed": 3}).seed == 3


class _Engine:
    """An engine whose collections are their names."""

    def __init__(self) -> None:
        self.closed = False

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def collection(self, name: str) -> str:
        return f"<{name}>"

    def prepare_migration(self, name: str, report: Any) -> Any:
        report(Progress("encode", 1, 1, 0.0))
        return SimpleNamespace(sequence=7, encoded=3)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stays as likely to be ended as it was."""
    monkeypatch.setattr(jobs, "be_first_to_go", lambda: None)


@pytest.mark.parametrize("live", ["v2", None])
def test_a_verdict_names_the_version_that_it_compares_with(quiet: None, live: str | None) -> None:
    """Only in its place is the judged one promoted."""
    scores = {"before": [0.1, 0.2, 0.3], "after": [0.1, 0.2, 0.3]}
    collection = SimpleNamespace(name="papers", store=SimpleNamespace(verdicts=list))
    opened: Any = lambda: nullcontext(SimpleNamespace(collection=lambda _: collection))  # noqa: E731
    request = {**scores, **({"live": live} if live else {})}
    judged = jobs.judge_job(lambda _: None, opened, "papers", request)
    assert judged["compared_with"] == live
    assert judged["gate"]["verdict"] != "passed"


def test_a_model_is_read_from_where_this_release_or_an_earlier_one_kept_it(tmp_path: Path) -> None:
    assert jobs._uploaded({"place": "/home/model", "content": "eA=="}, tmp_path) == Path("/home/model")
    assert jobs._uploaded({"content": "dGVuc29ycw=="}, tmp_path).read_bytes() == b"tensors"


def test_a_migration_reports_as_it_goes(quiet: None) -> None:
    reported: list[Any] = []
    engine: Any = _Engine
    prepared = jobs.prepare_job(reported.append, engine, "papers")
    assert prepared == {"sequence": 7, "encoded": 3}
    assert reported == [Progress("encode", 1, 1, 0.0)]


def test_an_error_of_a_training_closes_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    import dsearch.training

    def stop(*_: Any, **__: Any) -> None:
        raise Cancelled("stopped")

    monkeypatch.setattr(dsearch.training, "run_tuning", stop)
    opened = _Engine()
    job: Any = (lambda _: None, lambda: opened, "papers", {"queries": {}, "judgements": {}}, tmp_path, "cpu")
    with pytest.raises(Cancelled):
        jobs.tune_job(*job)
    assert opened.closed
