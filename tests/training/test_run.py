"""`run_training`: identity of a run, observers, and what each kind of job does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from support.training.observers import Recorder, StopWhen

from dsearch.attention.retrieval.learned_score import new_score
from dsearch.client import LocalEngine
from dsearch.engine import SearchEngine
from dsearch.errors import Cancelled, InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.store import Event, Impression
from dsearch.training import Gate, RunFolder, run, run_training
from dsearch.training.gate.gate import GateReport, judge
from dsearch.types import Document

PAIRS = 24
QUERIES = {f"q{i}": f"question{i} colour{i % 3}" for i in range(PAIRS)}
JUDGEMENTS = {f"q{i}": {f"d{i}": 1.0} for i in range(PAIRS)}
JOB = TrainingJob(queries=QUERIES, judgements=JUDGEMENTS, epochs=2, tune=False)


@pytest.fixture
def pairs(engine: SearchEngine) -> Any:
    collection = engine.create("pairs")
    collection.ingest([Document(f"d{i}", f"answer{i} colour{i % 3}") for i in range(PAIRS)])
    return collection


def test_a_run_is_known_by_its_data_its_documents_its_options_and_its_parent(
    pairs: Any, tmp_path: Path
) -> None:
    identities: list[Mapping[str, Any]] = []

    def open_run(identity: Mapping[str, Any], join: bool) -> RunFolder:
        identities.append(identity)
        assert not join
        return RunFolder(tmp_path / str(len(identities)), dict(identity))

    def identity(job: TrainingJob) -> Mapping[str, Any]:
        run_training(pairs, job, open_run=open_run)
        return identities[-1]

    first = identity(JOB)
    assert set(first) == {"data", "documents", "options", "defaults", "parent", "live_at_start"}
    assert identity(JOB) == first
    other = TrainingJob(queries=QUERIES, judgements=JUDGEMENTS, epochs=1, tune=False)
    assert identity(other)["options"] != first["options"]
    fewer = TrainingJob(
        queries=QUERIES, judgements={id: JUDGEMENTS[id] for id in list(JUDGEMENTS)[1:]}, epochs=2, tune=False
    )
    assert identity(fewer)["data"] != first["data"]
    # A teacher that has changed its mind, and another document that takes no part.
    others: list[dict[str, Any]] = [
        {"objective": "teacher", "teacher": {"q0": {"d0": score, "d1": 0.5}}} for score in (0.9, 0.1)
    ]
    others += [{"exclude": {"q0": [id]}} for id in ("d1", "d2")]
    data = {str(identity(replace(JOB, **chosen))["data"]) for chosen in others}
    assert len(data | {first["data"]}) == 5
    pairs.ingest([Document("more", "one more")])
    later = identity(JOB)
    assert later["documents"] != first["documents"]
    assert (later["options"], later["parent"]) == (first["options"], first["parent"])
    pairs.delete(["more"])  # in the same generation
    assert identity(JOB)["documents"] != later["documents"]


def test_an_observer_receives_everything_and_stops_the_job(pairs: Any) -> None:
    observer = Recorder()
    learned = run_training(pairs, JOB, observer)
    assert len(observer.headrooms) == 1
    assert observer.stages[-2:] == ["train", "train"]
    assert observer.steps[-1].done == observer.steps[-1].total
    assert (learned.examples, learned.parent, learned.left_out) == (PAIRS, "v0", learned.left_out)
    with pytest.raises(Cancelled):
        run_training(pairs, JOB, StopWhen(lambda: True))
    assert pairs.store.models() == []  # nothing is registered by running


def test_a_run_goes_on_until_its_result_is_registered(
    pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the calibration, when the head is trained."""
    job = TrainingJob(queries=QUERIES, judgements=JUDGEMENTS, epochs=1, tune=False)
    runs: list[RunFolder] = []

    def open_run(identity: Mapping[str, Any], join: bool) -> RunFolder:
        runs.append(RunFolder(tmp_path / "run", dict(identity), resume=bool(runs)))
        return runs[-1]

    with monkeypatch.context() as patched:
        patched.setattr(run, "with_calibration", MagicMock(side_effect=Cancelled("stopped")))
        with pytest.raises(Cancelled):
            run_training(pairs, job, open_run=open_run)
    learned = run_training(pairs, job, open_run=open_run)
    assert torch.equal(learned.result.head.query_delta, run_training(pairs, job).result.head.query_delta)
    run_training(pairs, job, open_run=open_run)  # as after a version that could not be written
    learned.register(pairs, job)
    with pytest.raises(InvalidRequest, match="is finished; give another folder"):
        run_training(pairs, job, open_run=open_run)


def test_a_local_engine_reports_to_its_observer(pairs: Any, engine: SearchEngine) -> None:
    observer = Recorder()
    task = LocalEngine(engine, observer=observer).train(
        "pairs", queries=QUERIES, judgements=JUDGEMENTS, epochs=1
    )
    assert task.state == "done"
    assert observer.epochs
    stopped = LocalEngine(engine, observer=StopWhen(lambda: True))
    task = stopped.train("pairs", queries=QUERIES, judgements=JUDGEMENTS, epochs=1)
    assert (task.state, task.result, task.problem) == ("cancelled", None, None)


class Stopped(Exception):
    """Raised where a test has seen enough."""


@pytest.mark.parametrize("scored", [True, False])
def test_a_live_score_of_its_own_is_not_compared_by_inner_products(
    pairs: Any, monkeypatch: pytest.MonkeyPatch, scored: bool
) -> None:
    head = pairs.head("v0")
    score = new_score("gaussian", pairs.store.dimension)
    pairs.promote(pairs.add_model(head.scoring_by(score) if scored else head, {}))
    shown = Impression("p", "question1", 0.0, ids=("d1", "d2"))
    pairs.feedback.record([shown], [Event("e", "p", "key", "", "click", "d1", 1, 0.0, 0.0)])
    live: list[Any] = []

    def stopped(*_: Any, **options: Any) -> None:
        live.append(options["live"])
        raise Stopped

    monkeypatch.setattr(run, "finetune_from_feedback", stopped)
    with pytest.raises(Stopped):
        run_training(pairs, TrainingJob(source="feedback"))
    assert (live[0] is None) == scored


@dataclass
class Learned:
    """As much of a trained head as a second stage asks for."""

    goes_live: str | None
    folds: list[Any]
    record: dict[str, Any] = field(
        default_factory=lambda: {"options": {"seed": 0}, "gate": judge(None, None, Gate()).to_dict()}
    )
    encoder: Any = None
    tuned: Any = None
    held_out: Any = None
    head: Any = None


@pytest.mark.parametrize(
    ("goes_live", "live", "base"),
    [(None, "v0", "start"), (None, "v1", None), ("head", "v1", "head"), ("tuned", "v0", None)],
)
def test_a_second_stage_follows_what_answers_and_nothing_else(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, goes_live: str | None, live: str, base: str | None
) -> None:
    made = engine.create("made")
    made.ingest([Document(f"d{i}", f"answer{i} colour{i % 3}") for i in range(PAIRS)], second_stage=True)
    made.add_model(made.head("v0"), {})
    made.promote(live)
    learned = Learned(goes_live, [SimpleNamespace(heads={"start": None, "head": None})])
    followed: list[str] = []
    monkeypatch.setattr(run, "finetune", lambda *_, **__: learned)
    monkeypatch.setattr(run, "with_calibration", lambda record, *_, **__: record)
    monkeypatch.setattr(run, "train_second_stage", lambda *given, **__: followed.append(given[3]))
    run_training(made, JOB)
    assert followed == [base] * (base is not None)


@dataclass
class Tuned:
    """As much of a tuned search as a calibration asks for."""

    head: Any
    record: dict[str, Any] = field(default_factory=lambda: {"gate": judge(None, None, Gate()).to_dict()})


@pytest.mark.parametrize("remembers", [True, False])
def test_a_memory_is_not_calibrated_by_the_queries_that_it_remembers(
    pairs: Any, monkeypatch: pytest.MonkeyPatch, remembers: bool
) -> None:
    tuned = Tuned(SimpleNamespace(memory=object() if remembers else None))
    learned = Learned(None, [], tuned=tuned, held_out="held out")
    judged: list[Any] = []

    def calibrated(record: Any, _: Any, head: Any, known: Any, *more: Any, **options: Any) -> Any:
        judged.append(known)
        return record

    monkeypatch.setattr(run, "finetune", lambda *_, **__: learned)
    monkeypatch.setattr(run, "with_calibration", calibrated)
    monkeypatch.setattr(run, "made_queries", lambda _: None)
    monkeypatch.setattr(run, "ranked_examples", lambda *_: "all of them")
    run_training(pairs, JOB)
    assert judged == ["held out", None if remembers else "all of them"]


@pytest.mark.parametrize(("rows", "head"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_head_of_feedback_goes_live_only_where_its_rows_do_not(
    pairs: Any, monkeypatch: pytest.MonkeyPatch, rows: bool, head: bool
) -> None:
    def gate(passed: bool) -> GateReport:
        verdict: Any = "passed" if passed else "refused"
        return replace(judge(None, None, Gate()), verdict=verdict, reason="so")

    shown = Impression("p", "question1", 0.0, ids=("d1", "d2"))
    pairs.feedback.record([shown], [Event("e", "p", "key", "", "click", "d1", 1, 0.0, 0.0)])
    memory = RowsJudged(gate(rows), {"gate": gate(rows).to_dict()})
    monkeypatch.setattr(run, "finetune_from_feedback", lambda *_, **__: Judged(gate(head)))
    monkeypatch.setattr(run, "remember_outcomes", lambda *_, **__: memory)
    monkeypatch.setattr(run, "rows_of_feedback", lambda *_: (["a row"], {}))
    monkeypatch.setattr(run.TrustedSlice, "of", lambda *_: None)
    learned = run_training(pairs, TrainingJob(source="feedback", queries=QUERIES, judgements=JUDGEMENTS))
    given: Any = learned.result
    assert given.gate.passed == (head and not rows)
    assert (run.ROWS_FIRST in given.gate.reason) == (head and rows)
    assert given.record["gate"] == given.gate.to_dict()


@dataclass
class RowsJudged:
    """As much of judged rows as feedback asks for."""

    gate: GateReport
    record: dict[str, Any]
    rows: list[Any] = field(default_factory=list)


@dataclass
class Judged:
    """As much of a trained head as feedback asks for."""

    gate: GateReport
    record: dict[str, Any] = field(default_factory=dict)
    tuned: None = None

    def judged(self, gate: GateReport, **more: Any) -> Judged:
        return Judged(gate, {**self.record, **more, "gate": gate.to_dict()})
