"""What was trained goes live in place of the version that was live when its run began, and of no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.training.topics import queries_of, topics_in

from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.client import LocalEngine
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.jobs import ExampleScores, TrainingJob, TuningJob
from dsearch.training import Candidate, JobResult, Registration, RunFolder, remember, run_training, run_tuning
from dsearch.training.candidate import Recorded
from dsearch.training.gate.gate import GateReport
from dsearch.training.registry import register, register_outcomes, register_second_stage
from dsearch.types import Document

TEXTS, JUDGEMENTS = queries_of()
WHY = "not promoted, since v1 became live during the run, which began with v0"


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    """Its v1 becomes live during the run."""
    topics = topics_in(engine)
    topics.add_model(topics.head("v0"), {})
    return topics


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "passed", property(lambda _: True))


def trained(topics: Collection) -> JobResult:
    return run_training(topics, TrainingJob(queries=TEXTS, judgements=JUDGEMENTS, epochs=1))


def tuned(topics: Collection) -> JobResult:
    return run_tuning(topics, TuningJob(queries=TEXTS, judgements=JUDGEMENTS))


def predicting(topics: Collection) -> JobResult:
    topics.ingest([Document(f"n{n}", f"alpha{n % 20} beta{n}", metadata={"n": n}) for n in range(60)])
    return run_training(topics, TrainingJob(objective="context", field="n", epochs=1))


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize(
    ("run", "accept"), [(trained, False), (tuned, False), (tuned, True), (predicting, False)]
)
def test_a_run_is_kept_if_another_version_became_live(
    topics: Collection, run: Callable[[Collection], JobResult], accept: bool
) -> None:
    learned = run(topics)
    topics.promote("v1")
    registered = learned.register(topics, replace(TrainingJob(self_supervised=True), accept=accept))
    record = topics.store.model(registered.version).record
    assert record["live_at_start"] == "v0"
    if accept:
        assert (registered.live, registered.outdated_by) == (registered.version, None)
        assert topics.live_model == registered.version
        return
    assert registered.live is None
    assert (registered.passed, registered.outdated_by) == (registered.version, "v1")
    assert topics.live_model == "v1"
    assert registered.reason.count(WHY) == 1
    command = f"dsearch compare v1 {registered.version} -c topics --data JUDGEMENTS"
    assert f"judge it again by `{command}` or by scores of v1" in registered.reason
    assert (record["outdated_by"], WHY in record["verdict"]) == ("v1", True)
    assert "compared_with" not in record
    # Scores of the two versions judge it again.
    scores = ExampleScores([0.1 * i for i in range(12)], [0.11 * i + 1 for i in range(12)], live="v1")
    again = LocalEngine(topics_engine(topics)).judge_model("topics", registered.version, scores)
    assert again.result is not None
    assert again.result["live"] is True
    assert topics.live_model == registered.version


def topics_engine(topics: Collection) -> Any:
    """An engine with this one collection, for calls that take its name."""
    from types import SimpleNamespace

    return SimpleNamespace(collection=lambda name: topics, readonly=False)


@pytest.mark.usefixtures("passing")
def test_a_run_goes_live_while_its_version_still_is(topics: Collection) -> None:
    learned = tuned(topics)
    topics.promote("v1")
    topics.promote("v0")
    registered = learned.register(topics, TrainingJob(self_supervised=True))
    assert (registered.live, topics.live_model) == (registered.version, registered.version)


@pytest.mark.usefixtures("passing")
def test_queries_that_were_inserted_meanwhile_are_no_other_version(topics: Collection) -> None:
    learned = tuned(topics)
    query = {"q": "a wording of nobody"}
    begun = remember(topics, query, {"q": {"d3-0": 1.0}}, accept=True).model
    assert topics.live_model == begun != "v0"
    assert learned.register(topics, TrainingJob(self_supervised=True)).live == topics.live_model


def gate_of(before: float, after: float) -> GateReport:
    from dsearch.jobs import SavingJob
    from dsearch.training import Gate, judge_scores

    scores = [0.01 * i for i in range(20)]
    job = SavingJob(before=[before + one for one in scores], after=[after + 1.01 * one for one in scores])
    return judge_scores(job, Gate())


def test_a_tuned_search_beside_it_is_kept_too(topics: Collection) -> None:
    worse, better = gate_of(1, 0), gate_of(0, 1)
    assert better.passed
    record = {"gate": worse.to_dict(), "tuned": {"scope": "tune", "gate": better.to_dict()}}
    tuned = Candidate(head=topics.head("v0"), record=record["tuned"])
    head = Candidate(head=topics.head("v0"), record={**record, "live_at_start": "v0"}, tuned=tuned)
    kept = register(topics, head)
    assert (kept.live, kept.passed, topics.live_model) == (kept.passed, kept.passed, kept.passed)
    topics.promote("v1")
    outdated = register(topics, head)
    assert (outdated.live, outdated.outdated_by, topics.live_model) == (None, "v1", "v1")
    assert outdated.passed not in (None, outdated.version)
    assert WHY in outdated.reason
    assert f"`dsearch compare v1 {outdated.passed} -c topics" in outdated.reason
    assert topics.store.model(outdated.passed or "").record["outdated_by"] == "v1"


@pytest.mark.parametrize("behind", ["what was live", "what was trained"])
def test_a_second_stage_is_kept_behind_the_version_that_it_follows(topics: Collection, behind: str) -> None:
    better = gate_of(0, 1)
    passed = behind == "what was trained"
    record = {"gate": (better if passed else gate_of(1, 0)).to_dict(), "live_at_start": "v0"}
    topics.promote("v1") if passed else None
    first = register(topics, Candidate(head=topics.head("v0"), record=record))
    topics.promote("v1")
    stage = SecondStage()
    registered = register_second_stage(topics, stage, {"gate": better.to_dict(), "second_stage": {}}, first)
    assert (registered.live, registered.outdated_by, topics.live_model) == (None, "v1", "v1")
    assert registered.version == first.version
    assert registered.passed is not None
    model = topics.store.model(registered.passed)
    assert model.parent == (first.version if passed else "v0")
    assert model.record["outdated_by"] == "v1"
    assert topics.head(registered.passed).second_stage is not None


def test_rows_that_are_not_added_are_told(topics: Collection) -> None:
    topics.promote("v1")
    record = {"live": "v0", "setting": None, "gate": gate_of(0, 1).to_dict()}
    registered = register_outcomes(topics, [], record, Registration("v1", None, "v0", "kept"))
    assert registered.outdated_by == "v1"
    assert "rows of past queries: not added, since v1 became live during the run" in registered.reason
    assert "train from the feedback again" in registered.reason


def test_a_resumed_run_began_when_it_was_started(tmp_path: Path, topics: Collection) -> None:
    run = RunFolder(tmp_path / "run", {"data": "1", "live_at_start": "v0"})
    assert run.live_at_start == "v0"
    assert (
        RunFolder(tmp_path / "run", {"data": "1", "live_at_start": "v1"}, resume=True).live_at_start == "v0"
    )
    with pytest.raises(InvalidRequest, match="holds another run: data is"):
        RunFolder(tmp_path / "run", {"data": "2", "live_at_start": "v0"}, resume=True)
    job = TrainingJob(queries=TEXTS, judgements=JUDGEMENTS, epochs=1, memory=False, tune=False)

    def resumed(identity: Any, join: bool) -> RunFolder:
        folder = RunFolder(tmp_path / "other", dict(identity), resume=join)
        folder.live_at_start = "v7"  # of its file
        return folder

    assert run_training(topics, job, open_run=resumed).result.record["live_at_start"] == "v7"


def test_values_are_learned_behind_the_live_version(topics: Collection) -> None:
    topics.promote("v1")
    learned = predicting(topics)
    assert (learned.parent, learned.result.record["live_at_start"]) == ("v1", "v1")
